"""What a run finds at fault around it, and SIGKILL in the middle of it. Nothing is lost by any of it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from restante.common.errors import StoreError
from restante.pipeline import ingest
from restante.pipeline.lake import delta_table
from restante.pipeline.lake.lake import LAKE_FORMAT
from restante.pipeline.sources.scratch import scratch
from restante.pipeline.sources.source import Source
from support.bounds import PATIENCE, wait_until
from support.pipeline.runs import COUNTING, LakeWorld, command
from support.pipeline.servers import NOW, T0, current, mailbox, nameplate, ours
from support.pipeline.sessions import ENVIRONMENT, INTERPRETED, environment
from support.processes import RESTANTE, process_group, run
from support.waku.archives import archive_of
from support.waku.letters import letter

SECONDS_PER_DAY: Final = 86_400.0

COMMANDS: Final = (
    ("build",),
    ("build", "--plan"),
    ("sql",),
    ("compact",),
    ("compact", "--plan"),
    ("vacuum",),
    ("vacuum", "--plan"),
    ("gaps", "--mailserver", "west"),
)
"""The commands that read or write what is in a lake. `run` and `ingest` also make one."""


@pytest.fixture
def sources(tmp_path: Path) -> tuple[str, ...]:
    with ours(tmp_path / "mailbox", nameplate(1), current(None)):
        return ("--source", f"mailbox={tmp_path / 'mailbox'}")


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("restante: ")
    return line.removeprefix("restante: ")


def test_every_command_works_on_an_empty_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with ours(tmp_path / "mailbox"):
        command("run", "--lake", lake, "--source", f"mailbox={tmp_path / 'mailbox'}", "--keep", "3")
    for arguments in COMMANDS[:-1]:
        done = command(*arguments, "--lake", lake)
        assert done.stderr == "", arguments
        assert "restante" not in done.stdout
    assert one_sentence(command(*COMMANDS[-1], "--lake", lake, ends=2)) == (
        "the lake has no envelopes yet: run `restante pipeline run` with a Waku archive or envelope files"
    )
    assert {path.name for path in lake.iterdir()} == {"lake.json", "lock"}


def test_every_command_refuses_a_lake_of_an_older_version(plain: LakeWorld, sources: tuple[str, ...]) -> None:
    plain.lived("2023-11-14")
    (plain.path / "lake.json").write_text(json.dumps({"format": LAKE_FORMAT - 1}))
    before = plain.bytes()
    for arguments in (*COMMANDS, ("run", *sources), ("ingest", *sources), ("run", *sources, "--plan")):
        sentence = one_sentence(command(*arguments, "--lake", plain.path, ends=2))
        assert "was made by an older version of Restante" in sentence, arguments
        assert "name a new folder with --lake, and run ingest and build again; keep this one if a" in sentence
    assert plain.bytes() == before


ENDS: Final = """
import json, sys
from restante.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["restante", "pipeline", *words]
    try:
        main()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
"""


def as_nobody() -> None:
    """Drop the capabilities by which root may read and write any file (prctl(2))."""
    drop, override, read_search = 24, 1, 2
    for capability in (override, read_search):
        ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0)


def test_a_lake_that_may_not_be_read_or_written_to_is_not_called_damaged(plain: LakeWorld) -> None:
    plain.lived("2023-11-14")
    (plain.path / "lock").unlink()
    cases = [
        ("", 0, "sql", "cannot read the lake {}"),
        ("nameplates", 0, "sql", "cannot read {}"),
        ("nameplates/month=2023-11-01", 0, "sql", "cannot read {}"),
        ("", 0o500, "compact", "cannot write to the lake {}"),
        ("", 0o500, "sql", ""),
    ]
    names = []
    for number, (name, mode, what, _) in enumerate(cases):
        lake = shutil.copytree(plain.path, plain.folder / str(number))
        (lake / name).chmod(mode)
        names.append([what, "--lake", str(lake)])
    program = [sys.executable, "-c", ENDS, json.dumps(names)]
    done = subprocess.run(program, preexec_fn=as_nobody, capture_output=True, check=True, text=True, timeout=PATIENCE)
    lines = done.stderr.splitlines()
    assert (lines[1:8:2], lines[8:]) == (["1"] * 4, ["0"]), "what may only be read is read"
    for number, (name, *_, sentence) in enumerate(cases[:4]):
        line = lines[2 * number]
        assert line.startswith(f"restante: {sentence.format(plain.folder / str(number) / name)}")
        assert "Permission denied" in line
        assert "remove" not in line, "its owner can read what is there"


def test_a_lake_without_some_of_its_tables_is_read(plain: LakeWorld, sources: tuple[str, ...]) -> None:
    plain.lived("2023-11-14")
    plain.build(builds=COUNTING, only="outcomes")
    shutil.rmtree(plain.path / "nameplates")
    for arguments in COMMANDS[1:-1]:
        assert command(*arguments, "--lake", plain.path).stderr == "", arguments
    printed = command("build", "--plan", "--lake", plain.path).stdout
    assert re.search(r"^outcomes, .*: nothing to build until you ingest a mailbox server's", printed, re.MULTILINE)
    assert len(plain.rows("outcomes")) == 1
    planned = command("run", "--plan", "--lake", plain.path, *sources)
    assert {"mailbox: nameplates: 1 row to read", "outcomes: 0 days to build"} <= set(planned.stdout.splitlines())
    assert "was removed" not in planned.stderr


@pytest.mark.parametrize("leaves", ["nothing", "an empty folder"], ids=["removed", "unmounted"])
@pytest.mark.parametrize("names", [("usage", "waku", "traces", "logs", "files"), ("one", "glob")], ids=len)
def test_a_source_that_disappears_before_it_is_read_is_reported_and_the_others_are_read(
    tmp_path: Path, sources: tuple[str, ...], names: tuple[str, ...], leaves: str
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with ours(mount / "usage", nameplate(1), current(None)):
        pass
    archive_of(mount / "waku")
    for name, content in (("traces", b'{"connection": 1}\n'), ("logs", b"[]"), ("files", letter(1).raw)):
        (mount / name).mkdir()
        (mount / name / "x.rlp").write_bytes(content)
    paths = [mount / {"one": "traces/x.rlp", "glob": "files/*.rlp"}.get(name, name) for name in names]
    refused = ingest._refusals  # nothing public is between finding a source and reading it

    def gone(*arguments: Any) -> dict[str, str]:
        for folder in mount.iterdir():
            folder.rename(tmp_path / folder.name)
            if leaves == "an empty folder":
                folder.mkdir()
        return refused(*arguments)

    options = [f"--source={name}={path}" for name, path in zip(names, paths, strict=True)]
    run_line = ["ingest", "--plan", "--lake", str(tmp_path / "lake"), *options, *sources]
    with patch.object(ingest, "_refusals", gone):
        done = command(*run_line, ends=1)
    printed = done.stdout.splitlines()
    assert printed[:2] == [f"mailbox: {table}: 1 row to read" for table in ("live", "nameplates")]
    assert {line.partition(":")[0] for line in printed} == {"mailbox"}
    for line, path in zip(done.stderr.splitlines(), paths, strict=True):
        assert line.startswith("restante: ")
        assert str(path) in line
    for name in ("usage", "waku", "traces", "logs", "files"):
        (tmp_path / name).rename(mount / name)
    assert command(*run_line).stderr == ""


def test_a_source_that_disappears_during_a_run_is_finished_by_the_next(world: LakeWorld, tmp_path: Path) -> None:
    for name in ("logs", "files", "away"):
        (tmp_path / name).mkdir()
    traced = {"connection": 1, "command": "bind", "id": "a", "server_rx": T0, "commit": None, "server_tx": T0 + 1}
    (tmp_path / "logs" / "trace").write_text(f"{json.dumps(traced)}\n")
    (tmp_path / "logs" / "log").write_text(json.dumps([{"name": "pake1", "start": T0, "stop": T0 + 1}]))
    (tmp_path / "files" / "x.rlp").write_bytes(letter(1).raw)
    specs = [f"{name}={tmp_path / name}" for name in ("logs", "files")]
    read = ingest._ingest_span  # nothing public is between two sources of a run

    def meanwhile(run: ingest.Run, spark: SparkSession, source: Source, *rest: Any) -> Any:
        rows = read(run, spark, source, *rest) if source.name == "logs" else None
        if (tmp_path / source.name).exists():
            (tmp_path / source.name).rename(tmp_path / "away" / source.name)
        return rows or read(run, spark, source, *rest)

    with patch.object(ingest, "_ingest_span", meanwhile):
        failures = [result.failure for result in world.ingest(*specs) if result.failure]
    assert failures == [
        f"source {path.parent}: cannot read {tmp_path / path}: No such file or directory"
        for path in (Path("logs/log"), Path("files/x.rlp"))
    ]
    tables = ("server_commands", "client_events", "archived", "quarantine")
    assert [len(world.rows(name)) for name in tables] == [1, 0, 0, 0]
    for name in ("logs", "files"):
        (tmp_path / "away" / name).rename(tmp_path / name)
    assert {result.failure for result in world.ingest(*specs)} == {""}
    assert [len(world.rows(name)) for name in tables] == [1, 1, 1, 0]


def test_a_disk_that_fills_between_two_tables_loses_nothing(world: LakeWorld, tmp_path: Path) -> None:
    append = delta_table.append_commit

    def full(delta: Any, folder: Path, table: Any, *info: Any, **commit: Any) -> None:
        if table.name == "mailboxes":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(delta, folder, table, *info, **commit)

    with ours(tmp_path / "mailbox", nameplate(1), mailbox(1), current(None)):
        with patch.object(delta_table, "append_commit", full), pytest.raises(StoreError) as refused:
            world.ingest(f"mailbox={tmp_path / 'mailbox'}")
        assert str(refused.value) == (
            f"cannot commit to {world.path}/mailboxes: No space left on device; this commit was not made"
        )
        world.ingest(f"mailbox={tmp_path / 'mailbox'}")
    assert [len(world.rows(name)) for name in ("nameplates", "mailboxes")] == [1, 1]


def test_rows_are_not_lost_in_quarantine_while_the_clock_is_set_back(world: LakeWorld, tmp_path: Path) -> None:
    back, later = NOW - 20 * SECONDS_PER_DAY, NOW + 3 * SECONDS_PER_DAY

    def failures(now: float, spec: str = f"mailbox={tmp_path / 'mailbox'}") -> list[str]:
        """Ingest at a time of this machine's clock; return why sources were not read."""
        world.now = now
        return [result.failure for result in world.ingest(spec) if result.failure]

    with ours(tmp_path / "mailbox", nameplate(1)) as server:
        [failure] = failures(0.0)
        assert failure.startswith("source mailbox: the times of 1 row of nameplates are out of range")
        assert failure.endswith("first day, 2015-01-01 00:00:00+00:00: set the clock, and run this again")
        assert failures(NOW) == []
        server.write(nameplate(0, started=NOW + 3600.0))
        world.messages.clear()
        assert failures(back) == [], "it is as late as the last commit, or a day later"
        assert len([line for line in world.messages if line.startswith("this machine's clock says 2023-1")]) == 1
        server.write(nameplate(0, started=NOW))
        assert failures(NOW + 1.0) == [], "another commit of the right clock"
        server.write(nameplate(0, started=later))
        [failure] = failures(back)
        assert failure.startswith("source mailbox: the times of 1 row of nameplates are out of range")
        assert failures(later) == []
    (tmp_path / "x.rlp").write_bytes(letter(1, now=int(later) + 2 * 86_400).raw)
    [failure] = failures(back, f"files={tmp_path / 'x.rlp'}")
    assert failure.startswith("source files: the times of 1 row of archived are out of range")
    assert failures(later + 2 * SECONDS_PER_DAY, f"files={tmp_path / 'x.rlp'}") == []
    assert [len(world.rows(name)) for name in ("nameplates", "archived")] == [4, 1]
    assert world.version("quarantine") is None


STOPPED: Final = "restante: stopped; committed rows stay; run this again to do the rest"


STOPS_WHILE_SPARK_WRITES: Final = """
import os, signal, sys, threading, time
from pathlib import Path
from restante.cli.main import main
from restante.pipeline.lake import staging

staging._written_files = lambda *given: threading.Event().wait()  # nothing goes on once it has written

def watch():
    while not any(Path("lake").glob("nameplates/run-*")):
        time.sleep(0.001)
    copies = list(Path(os.environ["TMPDIR"]).glob("restante-*/*"))
    print(f"{len(copies)} copies", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.NAME)

threading.Thread(target=watch, daemon=True).start()
main()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_prints_one_sentence_and_leaves_no_copies(tmp_path: Path, name: str) -> None:
    (tmp_path / "copies").mkdir()
    program = (sys.executable, "-c", STOPS_WHILE_SPARK_WRITES.replace("NAME", name))
    variables = environment(INTERPRETED) | {"TMPDIR": str(tmp_path / "copies")}
    with ours(tmp_path / "a", *(nameplate(number) for number in range(2000))):
        line = (*program, "pipeline", "ingest", "--lake", "lake", "--source", "mailbox=a")
        done = run(*line, variables=variables, cwd=tmp_path, bound=PATIENCE)
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[-1]) == (128 + signal.Signals[name], STOPPED)
    assert "Traceback" not in done.stderr
    assert any(re.fullmatch("[1-9] copies", line) for line in lines)
    assert not list((tmp_path / "copies").glob("restante-*"))


JAVA: Final = """#!/bin/sh
echo $$ > "$0.started.draft"
mv "$0.started.draft" "$0.started"
exec sleep 600
"""
"""As Java does whose temporary files were removed while it started: it goes on."""


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.thorough), "SIGKILL"])
def test_a_stop_while_java_starts_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    java, copies = tmp_path / "java" / "bin" / "java", tmp_path / "copies"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    copies.mkdir()
    line = [*RESTANTE, "pipeline", "ingest", f"--lake={tmp_path / 'lake'}", f"--source=mailbox={tmp_path / 'a'}"]
    environ = ENVIRONMENT | {"JAVA_HOME": str(tmp_path / "java"), "TMPDIR": str(copies)}
    with ours(tmp_path / "a", nameplate(1)), process_group(line, env=environ, stderr=subprocess.PIPE) as running:
        wait_until(java.with_name("java.started").exists)
        process = Path("/proc") / java.with_name("java.started").read_text().strip() / "cmdline"
        running.send_signal(signal.Signals[name])
        if name == "SIGKILL":
            running.wait(PATIENCE)
            assert list(copies.iterdir())
        else:
            _, output = running.communicate(timeout=PATIENCE)
            wait_until(lambda: not process.exists() or not process.read_bytes())  # a zombie has none
            assert (running.returncode, output.splitlines()[-1]) == (128 + signal.Signals[name], STOPPED)
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    with scratch() as folder:
        assert list(copies.iterdir()) == [folder]
