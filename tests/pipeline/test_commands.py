"""The command line: what it prints, what it refuses, and in which words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from restante.pipeline import cleaning, envelopes, timing
from restante.pipeline.lake import Lake
from restante.pipeline.notes import Ledger
from restante.pipeline.tables import TABLES
from support.bounds import PATIENCE
from support.documents import ROOT, Document
from support.effort import is_thorough
from support.pipeline.runs import LakeWorld, command
from support.pipeline.servers import client, current, mailbox, nameplate, ours, read
from support.pipeline.sessions import INTERPRETED, environment
from support.processes import run

GUIDE = Document("docs/pipeline.md")


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """Give a lake into which the one row of a server at tmp_path / "a" was taken."""
    world = LakeWorld(None, tmp_path)
    with ours(tmp_path / "a", nameplate(1), current(None)):
        found = read(f"relay={tmp_path / 'a'}", tmp_path / "scratch")["nameplates"]
    ledger = Ledger(read=1, clean=1, counted=1)
    world.add("nameplates", found.clean, source="relay", ledger=ledger, marks=dict(found.span.marks))
    return world


def reading() -> dict[str, str]:
    """Give the guide's programs that read a lake."""
    return {name: GUIDE.blocks[name] for name in ("query", "delta", "polars", "files")}


def test_the_guides_first_lake_from_a_server_to_a_query(tmp_path: Path) -> None:
    ingest, build, sql = GUIDE.commands("first lake", "ingest", "build", "sql")
    [vacuum] = GUIDE.lines("vacuum")

    def sh(line: str) -> subprocess.CompletedProcess[str]:
        words = line.replace("./run", f"{sys.executable} -m restante")
        return subprocess.run(
            ["sh", "-c", words],
            cwd=tmp_path,
            env=environment({} if is_thorough() else INTERPRETED),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )

    with ours(tmp_path / "restante-data", nameplate(1), mailbox(2), client(3), current(None)):
        taken = sh(ingest)
    assert taken.stdout.splitlines() == [
        "relay: nameplates: 1 row read: 1 clean",
        "relay: mailboxes: 1 row read: 1 clean",
        "relay: client_versions: 1 row read: 1 clean",
    ]
    assert "ingest: relay: nameplates: 1 row, " in taken.stderr
    assert "WARN" not in taken.stderr
    planned = command("build", "--lake", tmp_path / "restante-lake", "--plan").stdout.splitlines()
    assert "outcomes: 1 day to build (2023-11-14 to 2023-11-14)" in planned
    built = sh(build).stdout.splitlines()
    assert "outcomes: 1 day built (2023-11-14 to 2023-11-14), 2 rows" in built
    sh(sql)
    shown = {name: run(sys.executable, "-c", block, cwd=tmp_path) for name, block in reading().items()}
    assert {name: each.stderr for name, each in shown.items()} == dict.fromkeys(shown, "")
    rows = re.findall(r"(\w+) +│ +(\d+) │ +(\d+) │", shown["query"].stdout)
    assert sorted(rows) == [("claimed", "0", "1"), ("nameplate", "1", "1")]
    for each in shown.values():
        assert all(word in each.stdout for word in ("claimed", "nameplate"))
    assert sh(vacuum).stdout == "0 files removed, 0 bytes\n"


def test_what_the_guide_reads_a_lake_with_is_installed_with_the_pipeline() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {re.split(r"[^\w-]", each)[0] for each in project["optional-dependencies"]["pipeline"]}
    for name, block in reading().items():
        used = set(re.findall(r"^import (\w+)", block, re.MULTILINE))
        if not used <= installed:
            assert f"pip install {' '.join(sorted(used))}" in GUIDE.text, name


@pytest.mark.parametrize("name", TABLES)
def test_the_guide_names_every_column_of_every_table(name: str) -> None:
    table = TABLES[name]
    columns = ", ".join(f"`{column.name}`" for column in table.columns)
    assert f"| `{name}` | {table.grain} | {columns} |\n" in GUIDE.text


@pytest.mark.parametrize("reason", [*cleaning.FAULTS, *timing.FAULTS, *filter(None, envelopes.FAULTS)])
def test_the_guide_tells_every_reason_of_the_quarantine(reason: str) -> None:
    assert reason in GUIDE.text


def test_a_plan_tells_what_would_be_read_before_there_is_a_lake(tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        said = command("ingest", "--lake", tmp_path / "lake", "--source", f"relay={tmp_path / 'a'}", "--plan")
    assert "relay: nameplates: 1 row to read" in said.stdout.splitlines()
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("broken", [b"SQLite format 3\0" + bytes(100), b"SQLite format 3\0"])
def test_of_a_damaged_source_there_is_a_sentence_and_the_others_go_on(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "torn").write_bytes(broken)
    with ours(tmp_path / "a", nameplate(1), current(None)):
        given = ("--source", f"torn={tmp_path / 'torn'}", "--source", f"relay={tmp_path / 'a'}")
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan", ends=1)
    assert said.stdout.splitlines()[0] == "relay: nameplates: 1 row to read"
    assert "torn" not in said.stdout
    assert said.stderr.startswith(f"restante: source torn: {tmp_path / 'torn'} is damaged")
    assert said.stderr.count("\n") == 1


def test_an_empty_file_stops_no_run(tmp_path: Path) -> None:
    for name in ("trace", "usage.sqlite"):
        (tmp_path / name).touch()
    with ours(tmp_path / "a", nameplate(1), current(None)):
        named = {"trace": "trace", "theirs": "usage.sqlite", "relay": "a"}
        given = [f"--source={name}={tmp_path / path}" for name, path in named.items()]
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan")
    assert "relay: nameplates: 1 row to read" in said.stdout.splitlines()
    assert said.stderr.splitlines() == [
        f"ingest: source {name}: {tmp_path / named[name]} is empty: nothing was written to it yet"
        for name in ("trace", "theirs")
    ]


def test_a_source_that_fails_is_told_of_and_ends_the_command_with_1(lake: LakeWorld, tmp_path: Path) -> None:
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(b"SQLite format 3\0" + bytes(100))
    given = ("--source", f"relay={tmp_path / 'a'}", "--source", f"torn={torn}")
    said = command("ingest", "--lake", lake.path, *given, ends=1)
    assert said.stdout.splitlines() == [
        "relay: nameplates: nothing new",
        "relay: mailboxes: nothing new",
        "relay: client_versions: nothing new",
    ]
    assert "Traceback" not in said.stderr
    assert said.stderr.startswith(f"restante: source torn: {torn} is damaged")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ingest"], "nothing to read: name a source, --source NAME=PATH"),
        (["ingest", "--source", "relay"], "--source relay: name it and say where it is, --source NAME=PATH"),
        (["ingest", "--source", "a=."], ". is nothing that usage, timing logs or envelopes are read from"),
        (["build"], "there is no lake in"),
        (["sql"], "there is no lake in"),
        (["vacuum"], "there is no lake in"),
        (["build", "--from", "yesterday"], "--from yesterday: a day looks like 2026-11-21"),
        (["build", "--from", "2026-02-02", "--to", "2026-02-01"], "--from 2026-02-02 is after --to 2026-02-01"),
        (["build", "--keep", "0"], "--keep 0: a number of days, from 1 to 36525"),
        (["build", "--keep", "nameplates=3"], "--keep nameplates=3: there is no table nameplates here"),
        (["vacuum", "--grace", "-1"], "--grace: a number of hours, 0 or more"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command(*arguments, ends=2)
    assert said.stdout == ""
    assert said.stderr.startswith(f"restante: {words}")
    assert said.stderr.count("\n") == 1


def test_a_source_named_twice_is_refused(tmp_path: Path) -> None:
    with ours(tmp_path / "a"), ours(tmp_path / "b"):
        given = ("--source", f"x={tmp_path / 'a'}", "--source", f"x={tmp_path / 'b'}")
        said = command("ingest", "--lake", tmp_path / "lake", *given, ends=2)
    assert said.stderr == "restante: --source: x is named twice; every source needs a name of its own\n"
    assert not (tmp_path / "lake").exists()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    with world.run():
        said = command("build", "--lake", world.path, ends=2)
    assert said.stderr.startswith("restante: another run is writing to the lake")


def test_a_lake_of_a_newer_version_is_refused(lake: LakeWorld) -> None:
    (lake.path / "lake.json").write_text(json.dumps({"format": 99, "first_day": "2015-01-01"}))
    said = command("sql", "--lake", lake.path, ends=2)
    assert "newer version of Restante" in said.stderr


def test_a_damaged_lake_is_told_of(lake: LakeWorld) -> None:
    (lake.path / "nameplates" / "_delta_log" / f"{0:020}.json").write_text("torn")
    said = command("build", "--lake", lake.path, ends=1)
    assert "damaged" in said.stderr
    assert said.stderr.count("\n") == 1


def test_vacuum_removes_what_is_of_no_version_and_plans_to_before(lake: LakeWorld) -> None:
    left = lake.path / "nameplates" / "run-0" / "part.parquet"
    left.parent.mkdir()
    left.write_bytes(b"12345")
    assert command("vacuum", "--lake", lake.path, "--plan").stdout == "1 file to remove, 5 bytes\n"
    assert left.exists()
    assert command("vacuum", "--lake", lake.path).stdout == "1 file removed, 5 bytes\n"
    assert not left.exists()
    assert len(lake.rows("nameplates")) == 1


def test_keep_drops_what_is_older(lake: LakeWorld, tmp_path: Path) -> None:
    given = ("--source", f"relay={tmp_path / 'a'}", "--keep", "nameplates=30")
    said = command("ingest", "--lake", lake.path, *given)
    assert "nameplates: 1 row of before" in said.stderr
    assert lake.rows("nameplates") == []
    with Lake.open(lake.path, write=False) as opened:
        assert opened.tables() == ["nameplates"]
