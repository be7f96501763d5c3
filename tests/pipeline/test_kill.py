"""SIGKILL in the middle of a run: what others see, and what the next run makes of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pytest

from restante.pipeline.lake.lake import Lake
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.tables import TABLES
from restante.pipeline.views import view
from support.bounds import PATIENCE
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import T0, mailbox, nameplate, ours
from support.pipeline.sessions import ENVIRONMENT, INTERPRETED, SETTINGS
from support.processes import RESTANTE, kill_group, process_group

MORTAL: Final = """
import json, os, signal, sys, threading, time
from contextlib import nullcontext
from pathlib import Path
from restante.pipeline.lake import staging, table
from restante.pipeline.spark import session as spark

def die(*given, **others):
    os.kill(os.getpid(), signal.SIGKILL)

def begun(*given, **others):
    signal.signal(signal.SIGINT, handler)  # as what begins a session does
    return nullcontext(session)

with spark.session("local[2]", settings=json.loads(sys.argv[1])) as session:
    handler = signal.getsignal(signal.SIGINT)
    for line in sys.stdin:
        where, lake, arguments, said = json.loads(line)
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
            client = session._sc._gateway._gateway_client
            parents, client.thread_connection = client.thread_connection, threading.local()
            spark.session = begun
            exec(where)
            from restante.cli.main import main
            sys.argv = ["restante", "pipeline", *arguments]
            main()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Commands that kill themselves, each in a child of a process that has a session. The children use that session one
after the other, each over its own connection to Java. The parent never uses `deltalake`, which refuses to be used
after a fork."""

BEFORE_THE_SECOND_COMMIT: Final = """
commit = table.LakeTable.commit
def once(lake_table, *given, **others):
    table.LakeTable.commit = die
    return commit(lake_table, *given, **others)
table.LakeTable.commit = once
"""

WHILE_SPARK_WRITES: Final = """
staging._written = lambda *given: threading.Event().wait()  # nothing goes on once it has written

def watch():
    while not any(Path(lake).glob("nameplates/run-*")):
        time.sleep(0.001)
    copies = list(Path(os.environ["TMPDIR"]).glob("restante-*/*"))
    print(f"{len(copies)} copies", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGNAL)

threading.Thread(target=watch, daemon=True).start()
"""

WHEN_FILES_ARE_IN_PLACE: Final = """
from restante.pipeline.build import run as build
build.build.__kwdefaults__["builds"] = {"outcomes": build.BUILDS["outcomes"]}
table.LakeTable._append = die
"""


class Mortal:
    """What has commands killed."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._said = process, folder / "said"
        self.copies = folder / "copies"

    def dies(self, where: str, command: str, lake: Path, *arguments: str) -> None:
        """Run a command in a process of its own, which kills itself at a place in the code."""
        assert self.ends(where, command, lake, *arguments)[0] == -signal.SIGKILL

    def ends(self, where: str, command: str, lake: Path, *arguments: str) -> tuple[int, str]:
        """Do so; give how it ended, and what it wrote to standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._said.unlink(missing_ok=True)
        hang = threading.Timer(PATIENCE, kill_group, (self._process,))
        hang.start()
        told = [where, str(lake), [command, "--lake", str(lake), *arguments], str(self._said)]
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        ended = self._process.stdout.readline()
        hang.cancel()
        return int(ended), self._said.read_text()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    folder = tmp_path_factory.mktemp("mortal")
    (folder / "copies").mkdir()
    with process_group(
        [sys.executable, "-c", MORTAL, json.dumps(SETTINGS | INTERPRETED)],
        env=ENVIRONMENT | {"TMPDIR": str(folder / "copies")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield Mortal(process, folder)


@pytest.mark.thorough
def test_ingest_killed_between_two_tables_is_finished_by_the_next_run(
    world: LakeWorld, mortal: Mortal, tmp_path: Path
) -> None:
    with ours(tmp_path / "a", nameplate(1), mailbox(2)):
        spec = f"relay={tmp_path / 'a'}"
        mortal.dies(BEFORE_THE_SECOND_COMMIT, "ingest", world.path, "--source", spec)
        assert (len(world.rows("nameplates")), len(world.rows("mailboxes"))) == (1, 0)
        assert list(world.path.glob("mailboxes/run-*")), "Spark had written what was not committed"
        world.ingest(spec)
    assert (len(world.rows("nameplates")), len(world.rows("mailboxes"))) == (1, 1)
    assert not list(world.path.glob("*/run-*")), "what the first run left is gone"


STOPPED: Final = "restante: stopped; committed rows stay; run this again to do the rest"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_prints_one_sentence_and_leaves_no_copies(mortal: Mortal, tmp_path: Path, name: str) -> None:
    left = set(mortal.copies.iterdir())  # by those that were killed
    with ours(tmp_path / "a", *(nameplate(number) for number in range(2000))):
        where = WHILE_SPARK_WRITES.replace("SIGNAL", name)
        code, said = mortal.ends(where, "ingest", tmp_path / "lake", "--source", f"relay={tmp_path / 'a'}")
    lines = said.splitlines()
    assert code == 128 + signal.Signals[name]
    assert lines[-1] == STOPPED
    assert "Traceback" not in said
    assert any(re.fullmatch("[1-9] copies", line) for line in lines)
    assert set(mortal.copies.glob("restante-*")) <= left


JAVA_THAT_GOES_ON: Final = """#!/bin/sh
echo $$ > "$0.started.draft"
mv "$0.started.draft" "$0.started"
exec sleep 600
"""
"""As Java does whose temporary files were removed while it started."""


@pytest.fixture
def java_starting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a command whose Java has been started and is not ready; give what shows that Java runs."""
    started = tmp_path / "java" / "bin" / "java.started"
    started.parent.mkdir(parents=True)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    started.with_suffix("").write_text(JAVA_THAT_GOES_ON)
    started.with_suffix("").chmod(0o755)
    (tmp_path / "copies").mkdir()
    with (
        ours(tmp_path / "a", nameplate(1)),
        process_group(
            [*RESTANTE, "pipeline", "ingest", f"--lake={tmp_path / 'lake'}", f"--source=relay={tmp_path / 'a'}"],
            env=ENVIRONMENT | {"JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(tmp_path / "copies")},
            stderr=subprocess.PIPE,
        ) as running,
    ):
        until(started.exists)
        yield running, Path("/proc") / started.read_text().strip() / "cmdline"


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.thorough)])
def test_a_run_that_is_stopped_while_java_starts_leaves_no_java(
    java_starting: tuple[subprocess.Popen[str], Path], name: str
) -> None:
    running, java = java_starting
    running.send_signal(signal.Signals[name])
    _, said = running.communicate(timeout=PATIENCE)
    until(lambda: not java.exists() or not java.read_bytes())  # a zombie has none
    assert (running.returncode, said.splitlines()[-1]) == (128 + signal.Signals[name], STOPPED)


def test_what_a_run_left_that_was_killed_while_java_started_goes_with_the_next(
    java_starting: tuple[subprocess.Popen[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = java_starting
    running.kill()
    running.wait(PATIENCE)
    copies = tmp_path / "copies"
    assert list(copies.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    with scratch() as folder:
        assert list(copies.iterdir()) == [folder]


@pytest.mark.thorough
def test_a_reader_during_a_killed_and_repeated_build_sees_the_old_day_or_the_new_one(
    world: LakeWorld, mortal: Mortal, tmp_path: Path
) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(number) for number in range(3))) as server:
        world.ingest(spec)
        world.build(only="outcomes")
        with reading(world.path) as answers:
            answers.until(2)
            server.write(nameplate(0, started=T0 + 5), mailbox(7))
            world.ingest(spec)
            mortal.dies(WHEN_FILES_ARE_IN_PLACE, "build", world.path)
            assert set(answers) == {(3, 1)}
            world.build(only="outcomes")
            answers.until(len(answers) + ANSWERS_OF_A_VIEW)  # the last is of a view that is newer than the build
        assert set(answers) == {(3, 1), (5, 2)}


ANSWERS_OF_A_VIEW: Final = 3


class Answers(list[tuple[int, int]]):
    """What a reader was answered, and the error that ended it."""

    error: BaseException | None = None

    def until(self, number: int) -> None:
        """Wait until there are more than so many."""
        until(lambda: self.error or len(self) > number)
        if self.error:
            raise self.error


@contextmanager
def reading(lake: Path) -> Iterator[Answers]:
    """Query DuckDB for a day over and over: how many ended, in how many rows; through views new and old."""
    answers, over = Answers(), threading.Event()

    def query() -> None:
        try:
            with duckdb.connect() as database:
                while not over.is_set():
                    with Lake.open(lake, write=False) as opened:
                        database.execute(view(opened.table(TABLES["outcomes"])))
                    for _ in range(ANSWERS_OF_A_VIEW):
                        [found] = database.execute("SELECT sum(ended)::INT, count(*) FROM outcomes").fetchall()
                        answers.append(found)
                        over.wait(0.02)  # the other core is Spark's
        except BaseException as error:  # noqa: BLE001 - it is raised where the test is
            answers.error = error

    reader = threading.Thread(target=query)
    reader.start()
    try:
        yield answers
    finally:
        over.set()
        reader.join()
    if answers.error:
        raise answers.error


def until(happened: Callable[[], object]) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
