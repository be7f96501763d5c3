"""The command line: what it prints, what it refuses, and in which words."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.clean import envelopes, rules, timing
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.spark import java
from restante.pipeline.tables import TABLES
from support.documents import ROOT, Document
from support.mailbox.reference_sources import Their
from support.pipeline.runs import LakeWorld, command, spark_command
from support.pipeline.servers import client, current, mailbox, nameplate, ours
from support.pipeline.sessions import INTERPRETED, environment
from support.pipeline.source_reads import read
from support.processes import RESTANTE, run
from support.waku.archives import archive_of
from support.waku.letters import letter

GUIDE = Document("docs/pipeline/operating.md")


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """Return a lake into which the one row of a server at tmp_path / "a" was taken."""
    world = LakeWorld(None, tmp_path)
    with ours(tmp_path / "a", nameplate(1)):
        world.take(f"relay={tmp_path / 'a'}", "nameplates")
    return world


READERS = ("query", "delta", "polars", "files")
"""The guide's programs that read a lake."""


def test_a_command_starts_spark_and_is_quiet(tmp_path: Path) -> None:
    """The only one of these tests with a Java of its own; all others are called in this process."""
    with ours(tmp_path / "a", nameplate(1)):
        done = run(
            *(*RESTANTE, "pipeline", "ingest", "--lake", tmp_path / "lake", "--source", f"relay={tmp_path / 'a'}"),
            variables=environment(INTERPRETED) | {"JAVA_HOME": str(java.find_home()), "XDG_CACHE_HOME": os.devnull},
        )
    assert "relay: nameplates: 1 row read: 1 clean" in done.stdout.splitlines()
    said = r"ingest: Spark: ready, [\d.]+ s\n(ingest: relay: \w+: 1 row, [\d.]+ s\n)+"
    assert re.fullmatch(said, done.stderr), "nothing of Java or Spark"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the guide leaves a file open
def test_the_guides_first_lake_from_a_server_to_a_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_line, sql = GUIDE.commands("first lake", "run --source", "sql")
    run_words = shlex.split(run_line.removeprefix("./run pipeline "))
    monkeypatch.chdir(tmp_path)
    with ours(tmp_path / "restante-data", nameplate(1), mailbox(2), client(3), current(None)):
        done = spark_command(spark, *run_words)
        pages = sorted(Path("reports").glob("*.html"))
        pages[0].unlink()
        plan, again, unchanged = (command(*run_words, *more).stdout.splitlines() for more in (["--plan"], [], []))
    said = done.stdout.splitlines()
    tables = ("live", "nameplates", "mailboxes", "client_versions")
    assert said[:4] == [f"relay: {table}: 1 row read: 1 clean" for table in tables]
    assert "outcomes: 1 day built (2023-11-14 to 2023-11-14), 2 rows" in said
    assert "run: relay: nameplates: 1 row, " in done.stderr
    assert done.stderr.count("Spark: ready") == 1
    assert "relay: nameplates: nothing new" in again
    assert "outcomes: 0 days built, 0 rows" in again
    assert sorted(line for line in said if line.endswith(" written")) == [
        f"reports: {page} written" for page in pages
    ]
    assert len(pages) == 3
    assert f"reports: {pages[0].stem} to write" in plan
    assert [line for line in again if line.endswith(" written")] == [f"reports: {pages[0]} written"]
    assert unchanged[-1] == "reports: nothing new"

    line, _, file = sql.partition(" > ")
    Path(file).write_text(guided(line))
    for name in READERS:
        exec(GUIDE.blocks[name], {})
        shown = capsys.readouterr()
        assert shown.err == ""
        assert all(word in shown.out for word in ("claimed", "nameplate")), name
    [select] = GUIDE.lines("select")
    rows = re.findall(r" (\w+) +(\d+) +(\d+)$", guided(select), re.MULTILINE)
    assert sorted(rows) == [("claimed", "0", "1"), ("nameplate", "1", "1")]
    *describe, summarize = GUIDE.lines("describe")
    described, of_one, shares = map(guided, describe)
    assert re.search(r"^outcomes +2  one row per server, day", described, re.MULTILINE)
    assert re.search(r"^kind +VARCHAR +no +nameplate: a nameplate;", of_one, re.MULTILINE)
    assert re.fullmatch(r"app_id,share\r?\n[^,]+,0\.5\r?\n", shares)
    echo, _, line = summarize.partition(" | ")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(shlex.split(echo)[1].encode())))
    assert {column["column_name"] for column in json.loads(guided(line))} >= {"app_id", "kind", "happy"}
    [compact], [vacuum] = (GUIDE.lines(name) for name in ("compact", "vacuum"))
    assert set(guided(compact).splitlines()) == {f"{name}: nothing to merge" for name in TABLES}
    assert guided(vacuum) == "0 files removed, 0 bytes\n"


def guided(line: str) -> str:
    """Run a line of the guide in this process, and give what it prints."""
    return command(*shlex.split(line.removeprefix("./run pipeline "))).stdout


def test_the_libraries_that_the_guide_reads_a_lake_with_are_installed_with_the_pipeline() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {re.split(r"[^\w-]", each)[0] for each in project["optional-dependencies"]["pipeline"]}
    for name in READERS:
        used = set(re.findall(r"^import (\w+)", GUIDE.blocks[name], re.MULTILINE))
        if not used <= installed:
            assert f"pip install {' '.join(sorted(used))}" in GUIDE.text, name


def test_the_guide_names_every_column_of_every_table_and_every_fault_of_a_row() -> None:
    for name, table in TABLES.items():
        columns = ", ".join(f"`{column.name}`" for column in table.columns)
        assert f"| `{name}` | {table.grain} | {columns} |\n" in GUIDE.text
    for fault in (*rules.USAGE_FAULTS, *timing.TIMING_FAULTS, *envelopes.ENVELOPE_FAULTS):
        assert fault in GUIDE.text


@pytest.mark.parametrize("name", ["ingest", "run"])
def test_a_plan_shows_what_would_be_read_before_there_is_a_lake(tmp_path: Path, name: str) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        said = command(name, "--lake", tmp_path / "lake", "--source", f"relay={tmp_path / 'a'}", "--plan")
    assert "relay: nameplates: 1 row to read" in said.stdout.splitlines()
    assert not (tmp_path / "lake").exists()


def test_a_run_after_which_a_source_is_missing_goes_on_with_the_others_and_exits_with_1(
    tmp_path: Path, lake: LakeWorld
) -> None:
    given = ("--source", f"gone={tmp_path / 'gone'}", "--source", f"relay={tmp_path / 'a'}")
    said = command("run", "--lake", lake.path, *given, "--plan", ends=1)
    assert "relay: nameplates: nothing new" in said.stdout.splitlines()
    assert "outcomes: 1 day to build (2023-11-14 to 2023-11-14)" in said.stdout.splitlines()
    assert said.stderr == f"restante: source gone: cannot read {tmp_path / 'gone'}: No such file or directory\n"


def test_a_run_keeps_clean_and_built_tables_for_as_long_as_it_is_told(tmp_path: Path, lake: LakeWorld) -> None:
    known = {"app_id": "x", "kind": "nameplate", "measure": "total", "day": date(2023, 11, 14), "source": "relay"}
    lake.add("durations", [dict.fromkeys((column.name for column in TABLES["durations"].columns), 0) | known])
    given = ("--source", f"relay={tmp_path / 'a'}", "--keep", "1")
    said = command("run", "--lake", lake.path, *given)
    assert (lake.rows("nameplates"), lake.rows("durations")) == ([], [])
    assert re.search(r"durations: 1 row from before [\d-]+ dropped", said.stderr)


def test_a_damaged_source_is_reported_in_one_sentence_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"SQLite format 3\0" + bytes(100))
    with ours(tmp_path / "a", nameplate(1), current(None)):
        given = ("--source", f"torn={tmp_path / 'torn'}", "--source", f"relay={tmp_path / 'a'}")
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan", ends=1)
    assert said.stdout.splitlines()[1] == "relay: nameplates: 1 row to read"
    assert "torn" not in said.stdout
    assert said.stderr.startswith(f"restante: source torn: {tmp_path / 'torn'} is damaged")
    assert said.stderr.count("\n") == 1


def test_a_source_that_is_missing_or_of_unknown_kind_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    Their(tmp_path).stop()
    named = {"gone": "gone", "none": "no*", "text": "text", "post": "relay.sqlite", "log@relay": "a", "relay": "a"}
    with ours(tmp_path / "a", nameplate(1), current(None)):
        given = [f"--source={name}={tmp_path / path}" for name, path in named.items()]
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan", ends=1)
    assert said.stdout.splitlines()[1] == "relay: nameplates: 1 row to read"
    assert {line.partition(":")[0] for line in said.stdout.splitlines()} == {"relay"}
    nothing = "is not a source of usage records, timing logs or envelopes: name a server's database"
    wanted = (
        f"source gone: cannot read {tmp_path}/gone: No such file or directory",
        f"source none: {tmp_path}/no* {nothing}",
        f"source text: {tmp_path}/text {nothing}",
        f"source post: {tmp_path}/relay.sqlite is the reference server's channel database",
        f"source log: @relay is for timing logs, and {tmp_path}/a/restante.sqlite is a mailbox server's database",
    )
    for line, words in zip(said.stderr.splitlines(), wanted, strict=True):
        assert line.startswith(f"restante: {words}")


def test_errors_in_the_command_line_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        relay = f"--source=relay={tmp_path / 'a'}"
        for wrong in (relay, "--source=west", "--source=WEST=x", "--source=west@=x"):
            command("ingest", "--lake", tmp_path / "lake", relay, wrong, ends=2)
        for wrong in ("5x", "1", "", "511m", "-1g", "1 g"):
            said = command("run", "--lake", tmp_path / "lake", relay, f"--memory={wrong}", ends=2).stderr
            assert said.startswith(f"restante: --memory: '{wrong}' is ")
    assert not (tmp_path / "lake").exists()


def test_an_empty_file_does_not_fail_a_run(tmp_path: Path) -> None:
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


def test_a_build_without_its_inputs_names_them_and_what_to_ingest(lake: LakeWorld) -> None:
    """The lake has nameplates, but none of that day."""
    for plan, done in (((), "0 days built, 0 rows"), (("--plan",), "0 days to build")):
        said = command("build", "--lake", lake.path, "--from", "1999-01-01", "--to", "1999-01-01", *plan).stdout
        until = "nothing to build until you ingest"
        waku = "envelopes, traffic, coverage, hourly_coverage, gaps, lateness"
        assert said.splitlines() == [
            *(f"{table}: {done}" for table in ("outcomes", "durations", "pressure")),
            *(f"{table}: {done}" for table in ("busy_hours", "failures", "guesses")),
            f"mailbox_pressure, versions, addresses: {until} a mailbox server's data directory",
            f"timing, times, deliveries, transfers: {until} a client's timing log or a server's trace",
            f"{waku}: {until} a Waku archive or envelope files",
        ]


def test_empty_files_in_a_folder_are_said_and_stop_no_run(tmp_path: Path) -> None:
    for folder, name, content in (("traces", "trace", b'{"connection": 1}\n'), ("files", "a.rlp", letter(1).raw)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
    for empty in ("traces/b", "traces/c", "files/e.rlp"):
        (tmp_path / empty).touch()
    given = [f"--source={name}={tmp_path / name}" for name in ("traces", "files")]
    said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan")
    assert said.stderr.splitlines() == [
        f"ingest: source traces: {tmp_path}/traces/b and 1 other file are empty: nothing was written to them yet",
        f"ingest: source files: {tmp_path}/files/e.rlp is empty: nothing was written to it yet",
    ]
    assert "files: archived: 1 row to read" in said.stdout.splitlines()


def test_a_link_to_a_missing_file_fails_its_source_and_the_others_go_on(tmp_path: Path) -> None:
    for folder, name, content in (("traces", "trace", b'{"connection": 1}\n'), ("files", "a.rlp", letter(1).raw)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
        (tmp_path / folder / f"b{Path(name).suffix}").symlink_to("missing")
    with ours(tmp_path / "relay", nameplate(1), current(None)):
        places = {"traces": "traces", "globbed": "traces/*", "files": "files", "relay": "relay"}
        given = [f"--source={name}={tmp_path / place}" for name, place in places.items()]
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan", ends=1)
    assert said.stderr.splitlines() == [
        f"restante: cannot read {tmp_path / link}: No such file or directory"
        for link in ("traces/b", "traces/b", "files/b.rlp")
    ]
    assert {line.partition(":")[0] for line in said.stdout.splitlines()} == {"relay"}


def test_another_kind_of_source_under_a_known_name_is_refused_and_the_others_are_read(
    lake: LakeWorld, tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text('{"connection": 1}\n')
    given = [f"--source={name}={tmp_path / 'trace'}" for name in ("relay", "trace")]
    for plan in ((), ("--plan",)):
        said = command("ingest", "--lake", lake.path, given[0], *plan, ends=1)
        assert said.stdout == ""
        assert said.stderr == (
            f"restante: source relay: {tmp_path / 'trace'} is of another kind (timing logs or traces)"
            " than the rows that the lake has in nameplates: put back what was there, or give this one a name of its"
            " own\n"
        )
    assert "trace: server_commands: 1 row" in command("ingest", "--lake", lake.path, given[1], "--plan").stdout
    assert len(lake.rows("nameplates")) == 1


def test_a_file_that_two_sources_name_is_read_as_neither(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trace").write_text('{"connection": 1}\n')
    (tmp_path / "logs" / "new").touch()  # has no row to be counted twice
    (tmp_path / "hard").hardlink_to(tmp_path / "logs" / "trace")
    (tmp_path / "link").symlink_to("b")
    archive_of(tmp_path / "waku")
    named = {
        "a": "a",
        "b": "b/restante.sqlite",
        "link": "link",
        "all": "logs",
        "new": "logs/n*",
        "hard": "hard",
        "w1": "waku",
        "w2": "waku/archive.sqlite",
    }
    with ours(tmp_path / "a", nameplate(1), current(None)):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        given = [f"--source={name}={tmp_path / path}" for name, path in named.items()]
        said = command("ingest", "--lake", tmp_path / "lake", *given, "--plan", ends=1)
    assert {line.partition(":")[0] for line in said.stdout.splitlines()} == {"a", "new"}
    wrong = [line for line in said.stderr.splitlines() if line.startswith("restante: ")]
    pairs = [("b", "link"), ("link", "b"), ("all", "hard"), ("hard", "all"), ("w1", "w2"), ("w2", "w1")]
    for line, (name, other) in zip(wrong, pairs, strict=True):
        assert line.startswith(f"restante: source {name}: ")
        assert line.endswith(f" is read as source {other}, too, and would be counted twice: leave one of them out")


def test_a_source_that_had_rows_and_is_empty_now_fails(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    kept = {
        "relay": "nameplates",
        "west": "nameplates",
        "waku": "archived",
        "files": "archived",
        "log": "client_events",
    }
    for name, table in kept.items():
        world.add(table, [], source=name, ledger=Ledger(), marks={"": Mark(0, "", 0, "")})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").touch()
    (tmp_path / "data" / "restante.sqlite").touch()
    (tmp_path / "empty").touch()
    for name, table in kept.items():
        path = tmp_path / ("data" if name == "relay" else "empty")
        said = command("ingest", "--lake", world.path, "--source", f"{name}={path}", ends=1)
        assert said.stdout == ""
        assert said.stderr == (
            f"restante: source {name}: {path} is empty, and the lake has {table} of it: put back what was there, or"
            " leave this source out\n"
        )


def test_an_empty_trace_that_was_just_rotated_is_no_failure(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    world.add("server_commands", [], source="trace", ledger=Ledger(), marks={"0" * 64: Mark(0, "", 0, "")})
    (tmp_path / "trace").touch()
    said = command("ingest", "--lake", world.path, "--source", f"trace={tmp_path / 'trace'}")
    assert said.stdout.splitlines()[0] == "trace: server_commands: nothing new"


def test_a_clean_table_that_was_removed_is_read_from_its_source_again(lake: LakeWorld, tmp_path: Path) -> None:
    """As is advised where an earlier version's table has other columns."""
    words = ("ingest", "--lake", lake.path, "--source", f"relay={tmp_path / 'a'}", "--plan")
    assert "relay: nameplates: nothing new" in command(*words).stdout.splitlines()
    shutil.rmtree(lake.path / "nameplates")
    assert "relay: nameplates: 1 row to read" in command(*words).stdout.splitlines()


def test_an_archive_and_envelope_files_are_kinds_of_their_own(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    archive_of(tmp_path / "data")
    (tmp_path / "x.rlp").write_bytes(b"\xc0")
    mark = Mark(0, "", 0, "")
    world.add("archived", [], source="archive", ledger=Ledger(), marks={"": mark})
    world.add("archived", [], source="files", ledger=Ledger(), marks={"0" * 64: mark})
    for name, path, kind in (
        ("archive", "x.rlp", "envelope files"),
        ("files", "data/archive.sqlite", "Waku archive"),
    ):
        said = command("ingest", "--lake", world.path, "--source", f"{name}={tmp_path / path}", "--plan", ends=1)
        assert (
            f"{tmp_path / path} is of another kind ({kind}) than the rows that the lake has in archived"
            in said.stderr
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ingest"], "there is nothing to read: name a source with --source NAME=PATH"),
        (["ingest", "--source", "relay"], "--source relay: write a name and a path, --source NAME=PATH"),
        (["ingest", "--source", "A=."], "--source A=.: A cannot be a name: at most 63 of a-z"),
        (["build"], "there is no lake in"),
        (["sql"], "there is no lake in"),
        (["vacuum"], "there is no lake in"),
        (["compact"], "there is no lake in"),
        (["compact", "--plan"], "there is no lake in"),
        (["build", "--from", "yesterday"], "--from yesterday: this is not a day; write it like 2026-11-21"),
        (["build", "--from", "2026-02-02", "--to", "2026-02-01"], "--from 2026-02-02 is after --to 2026-02-01"),
        (["build", "--keep", "0"], "--keep 0: '0' is not a number of days from 1 to 36525"),
        (
            ["build", "--keep", "nameplates=3"],
            "--keep nameplates=3: this command writes no table nameplates; it writes",
        ),
        (["vacuum", "--grace", "-1"], "--grace: -1 is not a number of hours from 0 to 720"),
        (["vacuum", "--grace", "720.1"], "--grace: 720.1 is not a number of hours from 0 to 720"),
    ],
)
def test_misuse_is_one_sentence_that_says_what_to_do(
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
    assert said.stderr == "restante: --source: two sources have the name x; rename one of them\n"
    assert not (tmp_path / "lake").exists()


def test_vacuum_removes_unused_files_and_its_plan_counts_them(lake: LakeWorld) -> None:
    left = lake.path / "nameplates" / f"run-{'0' * 32}-{'1' * 32}" / "part.parquet"
    left.parent.mkdir()
    left.write_bytes(b"12345")
    assert command("vacuum", "--lake", lake.path, "--plan").stdout == "1 file to remove, 5 bytes\n"
    assert left.exists()
    assert command("vacuum", "--lake", lake.path).stdout == "1 file removed, 5 bytes\n"
    assert not left.exists()
    assert len(lake.rows("nameplates")) == 1


def test_compact_merges_files_and_its_plan_counts_them(lake: LakeWorld) -> None:
    [row] = lake.rows("nameplates")
    for number in (2, 3):
        lake.add("nameplates", [row | {"id": number}])
    planned = command("compact", "--lake", lake.path, "--plan").stdout.splitlines()
    assert "nameplates: 3 files to merge into 1" in planned
    assert "outcomes: nothing to merge" in planned
    assert lake.version("nameplates") == 2
    assert "nameplates: 3 files merged into 1" in command("compact", "--lake", lake.path).stdout.splitlines()
    assert sorted(each["id"] for each in lake.rows("nameplates")) == [1, 2, 3]
    assert "nameplates: nothing to merge" in command("compact", "--lake", lake.path).stdout.splitlines()


def test_a_run_that_the_disk_ends_names_the_tables_that_it_committed(
    lake: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ours(tmp_path / "b", mailbox(1), current(None)):
        lake.add("mailboxes", read(f"west={tmp_path / 'b'}", tmp_path / "scratch")["mailboxes"].clean, source="west")
    append = LakeTable._append

    def full(table: LakeTable, *given: Any) -> None:
        if table.table.name == "mailboxes":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(table, *given)

    monkeypatch.setattr(LakeTable, "_append", full)
    given = ("--source", f"relay={tmp_path / 'a'}", "--keep", "nameplates=30", "--keep", "mailboxes=30")
    said = command("ingest", "--lake", lake.path, *given, ends=1)
    assert said.stderr.splitlines()[-1] == (
        f"restante: cannot commit to {lake.path}/mailboxes: No space left on device; this commit was not made;"
        " committed before it: nameplates"
    )
