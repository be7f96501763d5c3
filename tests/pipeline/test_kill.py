"""SIGKILL in the middle of a run: what others see, and what the next run makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pytest

from pipeline.runs import ENVIRONMENT, World
from pipeline.servers import T0, current, mailbox, nameplate, ours
from restante.pipeline.lake import Lake
from restante.pipeline.tables import TABLES
from restante.pipeline.views import view

PATIENCE: Final = 300.0
"""Seconds for what takes five on a quiet machine."""

DYING: Final = """
import os, signal, sys
from restante.pipeline import laketable, staging

def die(*given, **others):
    os.kill(os.getpid(), signal.SIGKILL)

{where}
from restante.cli import main
sys.argv = ["restante", "pipeline", *{arguments}]
main()
"""

BEFORE_THE_SECOND_COMMIT: Final = """
commit = laketable.LakeTable.commit
def once(table, *given, **others):
    laketable.LakeTable.commit = die
    return commit(table, *given, **others)
laketable.LakeTable.commit = once
"""

WHEN_FILES_ARE_IN_PLACE: Final = """
laketable.LakeTable._append = die
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder for copies, which runs that are killed leave there."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    return folder


def dies(where: str, *arguments: str) -> None:
    """Run a command in a process of its own, which kills itself at a place in the code."""
    code = DYING.format(where=where, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def rows(world: World) -> dict[str, list[str]]:
    return {table: [repr(row) for row in world.rows(table)] for table in ("nameplates", "mailboxes", "outcomes")}


def test_ingest_killed_between_two_tables_is_finished_by_the_next_run(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), mailbox(2), current(None)):
        spec = f"relay={tmp_path / 'a'}"
        dies(BEFORE_THE_SECOND_COMMIT, "ingest", "--lake", str(world.path), "--source", spec)
        assert (len(world.rows("nameplates")), len(world.rows("mailboxes"))) == (1, 0)
        world.ingest(spec)
    assert (len(world.rows("nameplates")), len(world.rows("mailboxes"))) == (1, 1)


def test_ingest_killed_while_spark_writes_leaves_nothing_that_counts(world: World, tmp_path: Path) -> None:
    with ours(tmp_path / "a", *(nameplate(number) for number in range(2000)), current(None)):
        spec = f"relay={tmp_path / 'a'}"
        running = subprocess.Popen(
            [sys.executable, "-m", "restante", "pipeline", "ingest", "--lake", str(world.path), "--source", spec],
            env=ENVIRONMENT,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            until(lambda: any(world.path.glob("nameplates/run-*")))
        finally:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        assert world.rows("nameplates") == []
        world.ingest(spec)
    assert len(world.rows("nameplates")) == 2000


def test_who_interrupts_a_run_is_told_in_one_sentence_and_nothing_is_left_of_copies(
    world: World, tmp_path: Path, temporary: Path
) -> None:
    with ours(tmp_path / "a", *(nameplate(number) for number in range(2000)), current(None)):
        spec = f"relay={tmp_path / 'a'}"
        running = subprocess.Popen(
            [sys.executable, "-m", "restante", "pipeline", "ingest", "--lake", str(world.path), "--source", spec],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: any(world.path.glob("nameplates/run-*")))
            assert list(temporary.glob("restante-*/*"))
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
            running.wait()
    last = said.splitlines()[-1]
    assert last == "restante: stopped; what is committed stays, the rest is done when this is run again"
    assert "Traceback" not in said
    assert running.returncode == 128 + signal.SIGINT
    assert not list(temporary.glob("restante-*"))


def test_who_reads_while_a_build_is_killed_and_repeated_sees_the_old_day_or_the_new_one(
    world: World, tmp_path: Path
) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(number) for number in range(3)), current(None)) as server:
        world.ingest(spec)
        world.build(only="outcomes")
        with reading(world.path) as answers:
            until(lambda: len(answers) > 2)
            server.write(nameplate(0, started=T0 + 5), mailbox(7))
            world.ingest(spec)
            dies(WHEN_FILES_ARE_IN_PLACE, "build", "--lake", str(world.path))
            assert set(answers) == {(3, 1)}
            world.build(only="outcomes")
            seen = len(answers)
            until(lambda: len(answers) > seen + 2)
        assert set(answers) == {(3, 1), (5, 2)}


@contextmanager
def reading(lake: Path) -> Iterator[list[tuple[int, int]]]:
    """Ask DuckDB for a day over and over: how many ended, in how many rows; through views new and old."""
    answers: list[tuple[int, int]] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def ask() -> None:
        try:
            with duckdb.connect() as database:
                while not over.is_set():
                    with Lake.open(lake, write=False) as opened:
                        database.execute(view(opened.table(TABLES["outcomes"])))
                    for _ in range(3):
                        [found] = database.execute("SELECT sum(ended)::INT, count(*) FROM outcomes").fetchall()
                        answers.append(found)
        except BaseException as error:  # noqa: BLE001 - it is raised where the test is
            errors.append(error)

    reader = threading.Thread(target=ask)
    reader.start()
    try:
        yield answers
    finally:
        over.set()
        reader.join()
    if errors:
        raise errors[0]


def until(happened: object) -> None:
    """Wait for something that another thread or process does."""
    assert callable(happened)
    end = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > end:
            pytest.fail("it did not happen")
        time.sleep(0.01)
