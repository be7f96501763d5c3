"""SIGKILL in the middle of a run: what others see, and what the next run makes of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from support.pipeline.sessions import ENVIRONMENT, INTERPRETED, environment
from support.processes import RESTANTE, process_group

STOPPED: Final = "restante: stopped; committed rows stay; run this again to do the rest"

MORTAL: Final = """
import os, signal, sys, threading, time
from pathlib import Path
from restante.cli.main import main
from restante.pipeline.build import run as build
from restante.pipeline.lake import staging, table

def die(*given, **others):
    os.kill(os.getpid(), signal.SIGKILL)

{where}
main()
"""
"""A command that kills itself at a place in the code."""


WHILE_SPARK_WRITES: Final = """
staging._written = lambda *given: threading.Event().wait()  # nothing goes on once it has written

def watch():
    while not any(Path(sys.argv[4]).glob("nameplates/run-*")):
        time.sleep(0.001)
    copies = list(Path(os.environ["TMPDIR"]).glob("restante-*/*"))
    print(f"{len(copies)} copies", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.NAME)

threading.Thread(target=watch, daemon=True).start()
"""

WHEN_FILES_ARE_IN_PLACE: Final = """
build.build.__kwdefaults__["builds"] = {"outcomes": build.BUILDS["outcomes"]}
table.LakeTable._append = die
"""


def mortal(where: str, command: str, lake: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends itself there; its temporary files are beside the lake."""
    copies = lake.with_name("copies")
    copies.mkdir(exist_ok=True)
    line = [sys.executable, "-c", MORTAL.format(where=where), "pipeline", command, "--lake", str(lake), *words]
    environ = environment(INTERPRETED) | {"TMPDIR": str(copies)}
    return subprocess.run(line, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE)


def until(happened: Callable[[], object]) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_prints_one_sentence_and_leaves_no_copies(tmp_path: Path, name: str) -> None:
    where = WHILE_SPARK_WRITES.replace("NAME", name)
    with ours(tmp_path / "a", *(nameplate(number) for number in range(2000))):
        done = mortal(where, "ingest", tmp_path / "lake", "--source", f"relay={tmp_path / 'a'}")
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[-1]) == (128 + signal.Signals[name], STOPPED)
    assert "Traceback" not in done.stderr
    assert any(re.fullmatch("[1-9] copies", line) for line in lines)
    assert not list((tmp_path / "copies").glob("restante-*"))


# ── while Java starts ────────────────────────────────────────────────────────────────────────────

JAVA: Final = """#!/bin/sh
echo $$ > "$0.started.draft"
mv "$0.started.draft" "$0.started"
exec sleep 600
"""
"""As Java does whose temporary files were removed while it started: it goes on."""


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.thorough), "SIGKILL"])
def test_a_run_stopped_while_java_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    java, copies = tmp_path / "java" / "bin" / "java", tmp_path / "copies"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    copies.mkdir()
    line = [*RESTANTE, "pipeline", "ingest", f"--lake={tmp_path / 'lake'}", f"--source=relay={tmp_path / 'a'}"]
    environ = ENVIRONMENT | {"JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(copies)}
    with ours(tmp_path / "a", nameplate(1)), process_group(line, env=environ, stderr=subprocess.PIPE) as running:
        until(java.with_name("java.started").exists)
        process = Path("/proc") / java.with_name("java.started").read_text().strip() / "cmdline"
        running.send_signal(signal.Signals[name])
        if name == "SIGKILL":
            running.wait(PATIENCE)
            assert list(copies.iterdir())
        else:
            _, said = running.communicate(timeout=PATIENCE)
            until(lambda: not process.exists() or not process.read_bytes())  # a zombie has none
            assert (running.returncode, said.splitlines()[-1]) == (128 + signal.Signals[name], STOPPED)
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    with scratch() as folder:
        assert list(copies.iterdir()) == [folder]


# ── a reader ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.thorough
def test_a_reader_sees_a_day_before_or_after_a_killed_build(world: LakeWorld, tmp_path: Path) -> None:
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", *(nameplate(number) for number in range(3))) as server:
        world.ingest(spec)
        world.build(only="outcomes")
        with reading(world.path) as answers:
            until(lambda: len(answers) > 2)
            server.write(nameplate(0, started=T0 + 5), mailbox(7))
            world.ingest(spec)
            assert mortal(WHEN_FILES_ARE_IN_PLACE, "build", world.path).returncode == -signal.SIGKILL
            assert set(answers) == {(3, 1)}
            world.build(only="outcomes")
            seen = len(answers)
            until(lambda: len(answers) > seen + 3)  # the last is of a view that is newer than the build
    assert set(answers) == {(3, 1), (5, 2)}


@contextmanager
def reading(lake: Path) -> Iterator[list[tuple[int, int]]]:
    """Query DuckDB for a day over and over: how many ended, in how many rows; through views new and old."""
    answers: list[tuple[int, int]] = []
    over = threading.Event()

    def query() -> None:
        with duckdb.connect() as database:
            while not over.is_set():
                with Lake.open(lake, write=False) as opened:
                    database.execute(view(opened.table(TABLES["outcomes"])))
                for _ in range(3):
                    answers.extend(database.execute("SELECT sum(ended)::INT, count(*) FROM outcomes").fetchall())
                    over.wait(0.02)  # the other core is Spark's

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(query)
        try:
            yield answers
        finally:
            over.set()
        reader.result()
