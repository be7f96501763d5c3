"""What a run finds at fault around it: the lake, a source, the disk and the clock. Nothing is lost by any of it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from restante.common.errors import StoreError
from restante.pipeline import ingest
from restante.pipeline.build import run as build_run
from restante.pipeline.lake import delta_log
from restante.pipeline.lake.lake import LAKE_FORMAT
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.vacuum import waste
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.sources.source import Source
from support.bounds import PATIENCE
from support.pipeline.lakes import held
from support.pipeline.plain_builds import COUNTING, without_spark
from support.pipeline.runs import LakeWorld, command
from support.pipeline.servers import NOW, T0, current, mailbox, nameplate, ours
from support.pipeline.tables import dicts
from support.pipeline.tables import rows as written
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
    """Return the option for a server with a nameplate."""
    with ours(tmp_path / "relay", nameplate(1), current(None)):
        return ("--source", f"relay={tmp_path / 'relay'}")


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_sentence(said: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that a command printed."""
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert line.startswith("restante: ")
    return line.removeprefix("restante: ")


# ── the lake ─────────────────────────────────────────────────────────────────────────────────────


def test_every_command_works_on_an_empty_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with ours(tmp_path / "relay"):
        command("run", "--lake", lake, "--source", f"relay={tmp_path / 'relay'}", "--keep", "3")
    for words in COMMANDS[:-1]:
        said = command(*words, "--lake", lake)
        assert said.stderr == "", words
        assert "restante" not in said.stdout
    assert one_sentence(command(*COMMANDS[-1], "--lake", lake, ends=2)) == (
        "the lake has no envelopes yet: run `restante pipeline run` with a Waku archive or envelope files"
    )
    assert {path.name for path in lake.iterdir()} == {"lake.json", "lock"}


def test_every_command_refuses_a_lake_of_an_older_version_and_changes_nothing(
    tmp_path: Path, sources: tuple[str, ...]
) -> None:
    world = LakeWorld(None, tmp_path)
    lived(world, "2023-11-14")
    (world.path / "lake.json").write_text(json.dumps({"format": LAKE_FORMAT - 1, "first_day": "2015-01-01"}))
    before = everything(world.path)
    for each in (*COMMANDS, ("run", *sources), ("ingest", *sources), ("run", *sources, "--plan")):
        said = one_sentence(command(*each, "--lake", world.path, ends=2))
        assert "was made by an older version of Restante" in said, each
        assert "name a new folder with --lake, and run ingest and build again; keep this one if a source has" in said
    assert everything(world.path) == before


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

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def as_anybody() -> None:
    """Drop the capabilities by which root may read and write any file."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_a_lake_that_may_not_be_read_or_written_to_is_not_called_damaged(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    lived(world, "2023-11-14")
    (world.path / "lock").unlink()
    cases = [
        ("", 0, "sql", "cannot read the lake {}"),
        ("nameplates", 0, "sql", "cannot read {}"),
        ("nameplates/month=2023-11-01", 0, "sql", "cannot read {}"),
        ("", 0o500, "compact", "cannot write to the lake {}"),
        ("", 0o500, "sql", ""),
    ]
    lakes = [shutil.copytree(world.path, tmp_path / str(number)) for number in range(len(cases))]
    folders = [lake / name for lake, (name, *_) in zip(lakes, cases, strict=True)]
    for folder, (_, mode, *_) in zip(folders, cases, strict=True):
        folder.chmod(mode)
    words = [[name, "--lake", str(lake)] for lake, (*_, name, _) in zip(lakes, cases, strict=True)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", ENDS, json.dumps(words)],
            preexec_fn=as_anybody,
            capture_output=True,
            check=True,
            text=True,
            timeout=PATIENCE,
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    lines = done.stderr.splitlines()
    assert (lines[1:8:2], lines[8:]) == (["1"] * 4, ["0"]), "what may only be read is read"
    for line, folder, (*_, refused) in zip(lines[:8:2], folders, cases, strict=False):
        assert line.startswith(f"restante: {refused.format(folder)}")
        assert "Permission denied" in line
        assert "remove" not in line, "its owner can read what is there"


def test_a_lake_without_some_of_its_tables_is_read_and_the_others_stay(
    tmp_path: Path, sources: tuple[str, ...]
) -> None:
    world = LakeWorld(None, tmp_path)
    lived(world, "2023-11-14")
    assert built(world) == ["2023-11-14"]
    shutil.rmtree(world.path / "nameplates")
    for words in COMMANDS[1:-1]:
        assert command(*words, "--lake", world.path).stderr == "", words
    said = command("build", "--plan", "--lake", world.path).stdout.splitlines()
    [line] = [each for each in said if each.startswith("outcomes, ")]
    assert line.endswith(": nothing to build until you ingest a mailbox server's data directory")
    assert len(world.rows("outcomes")) == 1
    planned = command("run", "--plan", "--lake", world.path, *sources)
    said = planned.stdout.splitlines()
    assert "relay: nameplates: 1 row to read" in said
    assert "outcomes: 0 days to build" in said
    assert "was removed" not in planned.stderr


# ── a source that disappears ─────────────────────────────────────────────────────────────────────


def unmounted(folder: Path) -> None:
    """Leave an empty folder, as unmounting does."""
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("disappear", [shutil.rmtree, unmounted])
def test_a_source_that_disappears_before_it_is_read_is_reported_and_the_others_are_read(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, disappear: Callable[[Path], None]
) -> None:
    refused = ingest._refused
    with ours(tmp_path / "mount" / "usage", nameplate(1), current(None)):
        pass
    archive_of(tmp_path / "mount" / "waku")
    for name, content in (("traces", b'{"connection": 1}\n'), ("logs", b"[]"), ("files", letter(1).raw)):
        (tmp_path / "mount" / name).mkdir()
        (tmp_path / "mount" / name / "x.rlp").write_bytes(content)
    paths = {name: Path(name) for name in ("usage", "waku", "traces", "logs", "files")}
    paths |= {"one": Path("traces/x.rlp"), "glob": Path("files/*.rlp")}
    left = {**paths}
    for apart in (("one", "glob"), ("traces", "files")):  # what is named twice would be read by neither
        named = {name: path for name, path in left.items() if name not in apart}
        kept = shutil.copytree(tmp_path / "mount", tmp_path / "kept")

        def gone(*given: Any) -> dict[str, str]:
            for name in ("usage", "waku", "traces", "logs", "files"):
                disappear(tmp_path / "mount" / name)
            return refused(*given)

        monkeypatch.setattr(ingest, "_refused", gone)
        given = [f"--source={name}={tmp_path / 'mount' / path}" for name, path in named.items()]
        said = command("ingest", "--plan", "--lake", tmp_path / "lake", *given, *sources, ends=1)
        assert said.stdout.splitlines()[:2] == [f"relay: {table}: 1 row to read" for table in ("live", "nameplates")]
        assert {line.partition(":")[0] for line in said.stdout.splitlines()} == {"relay"}
        for line, path in zip(said.stderr.splitlines(), named.values(), strict=True):
            assert line.startswith("restante: ")
            assert str(tmp_path / "mount" / path) in line
        monkeypatch.setattr(ingest, "_refused", refused)
        shutil.rmtree(tmp_path / "mount")
        kept.rename(tmp_path / "mount")
        again = command("ingest", "--plan", "--lake", tmp_path / "lake", *given, *sources)
        assert again.stderr == ""


TRACE_LINE: Final = (
    f'{{"connection": 1, "command": "bind", "id": "a", "server_rx": {T0}, "commit": null, "server_tx": {T0 + 1}}}\n'
)


def test_a_source_that_disappears_between_its_tables_or_while_spark_reads_it_is_finished_by_the_next_run(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trace").write_text(TRACE_LINE)
    (tmp_path / "logs" / "log").write_text(json.dumps([{"name": "pake1", "start": T0, "stop": T0 + 1}]))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.rlp").write_bytes(letter(1).raw)
    names = ("logs", "files")
    specs = [f"{name}={tmp_path / name}" for name in names]
    (tmp_path / "away").mkdir()
    read = ingest._read

    def meanwhile(run: ingest.Run, spark: SparkSession, source: Source, *rest: Any) -> Any:
        if source.name != "logs" and (tmp_path / source.name).exists():
            (tmp_path / source.name).rename(tmp_path / "away" / source.name)
            return read(run, spark, source, *rest)
        found = read(run, spark, source, *rest)
        if source.name == "logs":
            (tmp_path / "logs").rename(tmp_path / "away" / "logs")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_read", meanwhile)
        failures = [each.failure for each in world.ingest(*specs) if each.failure]
    assert failures == [
        f"cannot read {tmp_path / path}: No such file or directory" for path in ("logs/log", "files/x.rlp")
    ]
    there = {name: len(world.rows(name)) for name in ("server_commands", "client_events", "archived", "quarantine")}
    assert [name for name, rows in there.items() if rows] == ["server_commands"]
    for name in names:
        (tmp_path / "away" / name).rename(tmp_path / name)
    assert [each.failure for each in world.ingest(*specs) if each.failure] == []
    assert {name: len(world.rows(name)) for name in there} == dict.fromkeys(there, 1) | {"quarantine": 0}


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


def test_a_disk_that_fills_between_two_tables_loses_nothing(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LakeTable._append

    def full(table: LakeTable, *given: Any) -> None:
        if table.table.name == "mailboxes":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(table, *given)

    with ours(tmp_path / "relay", nameplate(1), mailbox(1), current(None)):
        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "_append", full)
            with pytest.raises(StoreError) as told:
                world.ingest(f"relay={tmp_path / 'relay'}")
        assert str(told.value) == (
            f"cannot commit to {world.path}/mailboxes: No space left on device; this commit was not made;"
            " committed before it: live (relay), nameplates (relay)"
        )
        world.ingest(f"relay={tmp_path / 'relay'}")
    assert [len(world.rows(name)) for name in ("nameplates", "mailboxes")] == [1, 1]


# ── a clock that was set back ────────────────────────────────────────────────────────────────────


def lived(world: LakeWorld, *days: str, replace: dict[str, set[str | None]] | None = None) -> None:
    """Commit a nameplate for each day that is named."""
    rows = [{"started": f"{day}T22:13:20"} for day in days]
    with world.run() as within:
        table = within.lake.table(NAMEPLATES)
        staged = table.stage(held(dicts("nameplates", written("nameplates", rows)), table.table))
        table.commit([staged], info=world.info("nameplates"), replace=replace)


def built(world: LakeWorld) -> list[str]:
    """Build a table; give the days that it then has."""
    with without_spark(world), world.run() as run:
        build_run.build(run, builds={"outcomes": COUNTING["outcomes"]})
    return sorted(str(row["day"]) for row in world.rows("outcomes"))


@pytest.fixture
def plain(tmp_path: Path) -> LakeWorld:
    """Return a lake that is not there yet, without Spark."""
    return LakeWorld(None, tmp_path)


def test_days_after_a_clock_that_was_set_back_are_built_when_they_change(
    plain: LakeWorld,
) -> None:
    days = ["2023-11-12", "2023-11-13", "2023-11-14"]
    lived(plain, *days[:2])
    plain.now = NOW - 20 * SECONDS_PER_DAY
    assert built(plain) == days[:2]
    lived(plain, days[2])
    assert built(plain) == days
    lived(plain, days[0], replace={"day": {days[2]}})
    assert built(plain) == days[:2], "a later day that lost its rows is built, too"


def test_a_clock_that_was_ahead_when_days_were_dropped_does_not_keep_later_ones_from_being_built(
    plain: LakeWorld,
) -> None:
    lived(plain, "2023-11-12", "2023-11-13")
    plain.now = NOW + 3650 * SECONDS_PER_DAY
    first = datetime.fromtimestamp(plain.now, UTC).date() - timedelta(30)
    assert plain.keep("nameplates", first.isoformat()) == 2
    plain.now = NOW
    lived(plain, "2023-11-13", "2023-11-14")
    assert built(plain) == ["2023-11-14"], "what was left of a dropped day is not built"
    assert plain.keep("nameplates", date(2023, 11, 14).isoformat()) == 1


def test_files_and_log_entries_from_the_future_stay(plain: LakeWorld) -> None:
    lived(plain, "2023-11-14")
    plain.now = NOW + 3650 * SECONDS_PER_DAY
    for _ in range(3):
        lived(plain, "2023-11-14", replace={})
    folder = plain.path / "nameplates"
    with plain.run() as run:
        table = run.lake.table(NAMEPLATES)
        assert waste(table, grace=1.0, now=NOW) == []
        assert len(waste(table, grace=0.0, now=NOW)) == 3, "none is given"
    DeltaTable(folder).create_checkpoint()
    lived(plain, "2023-11-14")
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (NOW, NOW))
    assert delta_log.expired(folder, (), NOW - 3650 * SECONDS_PER_DAY) == []
    assert len(delta_log.expired(folder, (), NOW + 3650 * SECONDS_PER_DAY)) == 3


def failures(world: LakeWorld, *specs: str) -> list[str]:
    """Ingest; return why sources were not read."""
    return [result.failure for result in world.ingest(*specs) if result.failure]


def test_rows_are_not_lost_in_quarantine_while_the_clock_is_set_back(world: LakeWorld, tmp_path: Path) -> None:
    spec = f"relay={tmp_path / 'relay'}"
    with ours(tmp_path / "relay", nameplate(1)) as server:
        world.now = 0.0
        [failure] = failures(world, spec)
        assert failure.startswith("source relay: the times of 1 row of nameplates are out of range")
        assert failure.endswith("first day, 2016-01-01 00:00:00+00:00: set the clock, and run this again")
        world.now = NOW
        assert failures(world, spec) == []
        server.write(nameplate(0, started=NOW + 3600.0))
        world.now = NOW - 20 * SECONDS_PER_DAY
        world.steps.said.clear()
        assert failures(world, spec) == [], "it is as late as the last commit, or a day later"
        assert len([words for words in world.steps.said if words.startswith("this machine's clock says 2023-1")]) == 1
        world.now = NOW + 1.0  # another commit of the right clock
        server.write(nameplate(0, started=NOW))
        assert failures(world, spec) == []
        later = NOW + 3 * SECONDS_PER_DAY
        server.write(nameplate(0, started=later))
        world.now = NOW - 20 * SECONDS_PER_DAY
        [failure] = failures(world, spec)
        assert failure.startswith("source relay: the times of 1 row of nameplates are out of range")
        world.now = later
        assert failures(world, spec) == []
    assert (len(world.rows("nameplates")), world.version("quarantine")) == (4, None)


@pytest.mark.thorough
def test_envelopes_of_files_are_not_lost_in_quarantine_while_the_clock_is_set_back(
    world: LakeWorld, tmp_path: Path
) -> None:
    lived(world, "2023-11-14")
    (tmp_path / "files").mkdir()
    later = NOW + 3 * SECONDS_PER_DAY
    (tmp_path / "files" / "x.rlp").write_bytes(letter(1, now=int(later)).raw)
    world.now = NOW - 20 * SECONDS_PER_DAY
    [failure] = failures(world, f"files={tmp_path / 'files'}")
    assert failure.startswith("source files: the times of 1 row of archived are out of range")
    world.now = later
    assert failures(world, f"files={tmp_path / 'files'}") == []
    assert len(world.rows("archived")) == 1
