"""The command line: what it prints, what it refuses, and in which words."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.report.making import TABLES_READ
from restante.pipeline.schemas import CLEAN_TABLES, SOURCES
from restante.pipeline.spark import java
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.steps import Steps
from restante.pipeline.tables import BUILDS, TABLES
from restante.pipeline.tables.sources import BUILD as SOURCES_BUILD
from support.bounds import PATIENCE
from support.documents import Document
from support.mailbox.reference_sources import Their
from support.pipeline.runs import LakeWorld, command, spark_command
from support.pipeline.servers import T0, nameplate, ours
from support.pipeline.sessions import INTERPRETED, environment
from support.processes import RESTANTE, on_a_terminal, run
from support.waku.archives import archive_of
from support.waku.letters import letter

FIRST, READING = Document("docs/pipeline/first-lake.md"), Document("docs/pipeline/reading.md")
GUIDE = Document("docs/pipeline/operating.md")


@pytest.fixture
def lake(sources: Sources) -> LakeWorld:
    world = LakeWorld(None, sources.folder)
    world.take(f"mailbox={sources.folder / 'a'}", "nameplates")
    return world


def test_a_command_starts_spark_and_is_quiet(tmp_path: Path) -> None:
    """The only one of these tests with a Java of its own; all others are called in this process."""
    with ours(tmp_path / "a", nameplate(1)):
        done = run(
            *(*RESTANTE, "pipeline", "ingest", "--lake", tmp_path / "lake", "--source", f"mailbox={tmp_path / 'a'}"),
            variables=environment(INTERPRETED) | {"JAVA_HOME": str(java.find_home()), "XDG_CACHE_HOME": os.devnull},
            bound=PATIENCE,
        )
    assert "mailbox: nameplates: 1 row read: 1 clean" in done.stdout.splitlines()
    steps = r"ingest: Spark: ready, [\d.]+ s\n(ingest: mailbox: \w+: 1 row, [\d.]+ s\n)+"
    assert re.fullmatch(steps, done.stderr), "nothing of Java or Spark"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the guide leaves a file open
def test_the_guides_first_lake_from_a_server_to_a_query(
    spark: SparkSession,
    first_lake: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, done = first_lake
    run_line, sql = FIRST.commands("first lake", "run --source", "sql")
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "first"))
    Path("a.rlp").write_bytes(letter(1, now=int(T0)).raw)
    run_words = [*shlex.split(run_line.removeprefix("./run pipeline ")), "--source", "files=a.rlp"]
    pages = sorted(Path("reports").glob("20*.html"))
    with_files = spark_command(spark, *run_words).stdout.splitlines()
    pages[0].unlink()
    plan, again, unchanged = (command(*run_words, *more).stdout.splitlines() for more in (["--plan"], [], []))
    printed = done.stdout.splitlines()
    tables = ("live", "nameplates", "mailboxes", "client_versions")
    assert printed[:4] == [f"mailbox: {table}: 1 row read: 1 clean" for table in tables]
    assert "outcomes: 1 day built (2023-11-14 to 2023-11-14), 2 rows" in printed
    assert {"mailbox: nameplates: nothing new", "files: archived: 1 row read: 1 clean"} <= {*with_files}
    assert any(line.startswith("coverage: 1 day built") for line in with_files)
    assert "run: mailbox: nameplates: 1 row, " in done.stderr
    assert done.stderr.count("Spark: ready") == 1
    assert {"mailbox: nameplates: nothing new", "outcomes: 0 days built, 0 rows"} <= {*again}
    assert sorted(line for line in printed if line.endswith(" written")) == [
        f"reports: {page} written" for page in pages
    ]
    assert len(pages) == 3
    assert f"reports: {pages[0].stem} to write" in plan
    assert [line for line in again if line.endswith(" written")] == [f"reports: {pages[0]} written"]
    assert unchanged[-1] == "reports: nothing new"

    line, _, file = sql.partition(" > ")
    Path(file).write_text(guided(line))
    for program in ("query", "delta", "polars", "files"):
        exec((FIRST.blocks | READING.blocks)[program], {})
        output = capsys.readouterr()
        assert output.err == ""
        assert all(kind in output.out for kind in ("claimed", "nameplate")), program
    [select] = FIRST.lines("select")
    rows = re.findall(r" (\w+) +(\d+) +(\d+)$", guided(select), re.MULTILINE)
    assert sorted(rows) == [("claimed", "0", "1"), ("nameplate", "1", "1")]
    *describe, summarize = READING.lines("describe")
    described, of_one, shares = map(guided, describe)
    assert re.search(r"^outcomes +2 +one row per server, day", described, re.MULTILINE)
    assert re.search(r"^kind +VARCHAR +no +nameplate: a nameplate;", of_one, re.MULTILINE)
    assert re.fullmatch(r"app_id,share\r?\n[^,]+,0\.5\r?\n", shares)
    echo, _, line = summarize.partition(" | ")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(shlex.split(echo)[1].encode())))
    assert {column["column_name"] for column in json.loads(guided(line))} >= {"app_id", "kind", "happy"}
    [compact], [vacuum] = (GUIDE.lines(name) for name in ("compact", "vacuum"))
    assert set(guided(compact).splitlines()) == {f"{name}: nothing to merge" for name in TABLES}
    assert guided(vacuum) == "0 files removed, 0 bytes\n"


def guided(line: str) -> str:
    return command(*shlex.split(line.removeprefix("./run pipeline "))).stdout


def test_the_lineage_has_each_table_with_all_of_its_inputs() -> None:
    listed, drawn = (guided(line).splitlines() for line in READING.lines("lineage"))
    assert [line.partition(":")[0] for line in listed] == [*TABLES]

    [*lines, empty, _] = drawn
    assert empty == ""
    assert max(map(len, drawn)) <= 80
    path: list[str] = []
    drawn_inputs: dict[str, set[str]] = {}
    read = set[str]()
    for line in re.sub(r",\n[│ ]+(?=\w)", ", ", "\n".join(lines)).splitlines():
        branch, text = re.fullmatch(r"([│├└─ ]*)(.+)", line).groups()  # type: ignore[union-attr]
        made, _, report = text.partition(" → ")
        name, _, others = made.partition(" + ")
        path[len(branch) // 4 :] = [name]
        drawn_inputs[name] = {*path[-2:-1], *filter(None, others.split(", "))}
        read |= {name} if report else set()
    inputs = {name: {SOURCES.get(name, "any source")} for name in CLEAN_TABLES}
    inputs |= {name: {*build.inputs} for name, build in {**BUILDS, "sources": SOURCES_BUILD}.items()}
    assert {name: drawn_inputs[name] for name in TABLES} == inputs
    assert read == {*TABLES_READ}


TRACE = '{"connection": 1}\n'


class Sources:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = folder / "lake"

    def write(self, path: str, content: str | bytes = "") -> Path:
        file = self.folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def ingest(
        self, paths: Mapping[str, str], *, ends: int = 0, line: str = "ingest --plan"
    ) -> tuple[list[str], list[str]]:
        options = [f"--source={name}={self.folder / path}" for name, path in paths.items()]
        done = command(*line.split(), "--lake", self.lake, *options, ends=ends)
        return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    with ours(tmp_path / "a", nameplate(1)):
        return Sources(tmp_path)


def test_a_run_without_a_source_goes_on_with_the_others_and_exits_with_1(sources: Sources, lake: LakeWorld) -> None:
    planned, errors = sources.ingest({"gone": "gone", "mailbox": "a"}, line="run --plan", ends=1)
    assert {"mailbox: nameplates: nothing new", "outcomes: 1 day to build (2023-11-14 to 2023-11-14)"} <= {*planned}
    assert errors == [f"restante: source gone: cannot read {lake.folder / 'gone'}: No such file or directory"]


def test_a_source_that_cannot_be_read_fails_alone_in_one_sentence(sources: Sources, tmp_path: Path) -> None:
    sources.write("text", "hello")
    sources.write("torn", b"SQLite format 3\0" + bytes(100))
    sources.write("traces/trace", TRACE)
    sources.write("files/a.rlp", letter(1).raw)
    for link in ("traces/b", "files/b.rlp"):
        (tmp_path / link).symlink_to("missing")
    (tmp_path / "data").mkdir()
    for pipe in ("pipe", "data/restante.sqlite"):
        os.mkfifo(tmp_path / pipe)  # to open it would wait for a writer
    Their(tmp_path).stop()
    nothing = "is not a source of usage records, timing logs or envelopes: name a server's database"
    missing = "No such file or directory"
    wrong = {
        ("gone", "gone"): f"source gone: cannot read {tmp_path}/gone: {missing}",
        ("none", "no*"): f"source none: {tmp_path}/no* {nothing}",
        ("pipe", "pipe"): f"source pipe: {tmp_path}/pipe is a named pipe, a device or a socket: name a file",
        ("device", "/dev/zero"): "source device: /dev/zero is a named pipe, a device or a socket: name a file",
        ("data", "data"): f"source data: {tmp_path}/data/restante.sqlite is a named pipe, a device or a socket",
        ("text", "text"): f"source text: {tmp_path}/text {nothing}",
        ("post", "relay.sqlite"): f"source post: {tmp_path}/relay.sqlite is the reference server's channel database",
        (
            "log@mailbox",
            "a",
        ): f"source log: @mailbox is for timing logs, and {tmp_path}/a/restante.sqlite is a mailbox",
        ("torn", "torn"): f"source torn: {tmp_path}/torn is damaged",
        ("traces", "traces"): f"source traces: cannot read {tmp_path}/traces/b: {missing}",
        ("globbed", "traces/*"): f"source globbed: cannot read {tmp_path}/traces/b: {missing}",
        ("files", "files"): f"source files: cannot read {tmp_path}/files/b.rlp: {missing}",
    }
    planned, errors = sources.ingest({**dict(wrong.keys()), "mailbox": "a"}, ends=1)
    assert not sources.lake.exists()
    assert planned[1] == "mailbox: nameplates: 1 row to read"
    assert {line.partition(":")[0] for line in planned} == {"mailbox"}
    for line, message in zip(errors, wrong.values(), strict=True):
        assert line.startswith(f"restante: {message}")


def test_errors_in_the_command_line_are_refused_before_anything_is_done(sources: Sources) -> None:
    mailbox = f"--source=mailbox={sources.folder / 'a'}"
    done = command("ingest", "--lake", sources.lake, mailbox, mailbox, ends=2)
    assert done.stderr == "restante: --source: two sources have the name mailbox; rename one of them\n"
    command("ingest", "--lake", sources.lake, mailbox, "--source=west@=x", ends=2)
    for wrong in ("5x", "1", "", "511m", "-1g", "1 g"):
        done = command("run", "--lake", sources.lake, mailbox, f"--memory={wrong}", ends=2)
        assert done.stderr.startswith(f"restante: --memory: '{wrong}' is ")
    assert not sources.lake.exists()


def test_empty_files_are_named_and_stop_no_run(sources: Sources, tmp_path: Path) -> None:
    sources.write("traces/trace", TRACE)
    sources.write("files/a.rlp", letter(1).raw)
    for empty in ("traces/b", "traces/c", "files/e.rlp", "trace", "usage.sqlite"):
        sources.write(empty)
    paths = {"traces": "traces", "files": "files", "trace": "trace", "theirs": "usage.sqlite", "mailbox": "a"}
    planned, errors = sources.ingest(paths)
    empty = "is empty: nothing was written to it yet"
    assert errors == [
        f"ingest: source traces: {tmp_path}/traces/b and 1 other file are empty: nothing was written to them yet",
        f"ingest: source files: {tmp_path}/files/e.rlp {empty}",
        f"ingest: source trace: {tmp_path}/trace {empty}",
        f"ingest: source theirs: {tmp_path}/usage.sqlite {empty}",
    ]
    assert {"files: archived: 1 row to read", "mailbox: nameplates: 1 row to read"} <= {*planned}


def test_another_kind_of_source_of_a_known_name_is_refused(sources: Sources, lake: LakeWorld, tmp_path: Path) -> None:
    sources.write("trace", TRACE)
    sources.write("x.rlp", b"\xc0")
    archive_of(tmp_path / "data")
    for name, mark in (("archive", ""), ("files", "0" * 64)):
        lake.add("archived", [], source=name, ledger=Ledger(), marks={mark: Mark(0, "", 0, "")})
    paths = {"mailbox": "trace", "archive": "x.rlp", "files": "data/archive.sqlite"}
    _, errors = sources.ingest(paths, ends=1)
    assert errors == sources.ingest(paths, line="ingest", ends=1)[1]
    assert errors == [
        f"restante: source {name}: {tmp_path / path} is of another kind ({kind}) than the rows that the lake has in"
        f" {table}: put back what was there, or give this one a name of its own"
        for name, path, kind, table in (
            ("mailbox", "trace", "timing logs or traces", "nameplates"),
            ("archive", "x.rlp", "envelope files", "archived"),
            ("files", "data/archive.sqlite", "Waku archive", "archived"),
        )
    ]
    assert len(lake.rows("nameplates")) == 1


def test_a_file_that_two_sources_name_is_read_as_neither(sources: Sources, tmp_path: Path) -> None:
    log = sources.write("logs/trace", TRACE)
    sources.write("logs/new")  # has no row to be counted twice
    (tmp_path / "hard").hardlink_to(log)
    (tmp_path / "link").symlink_to("b")
    archive_of(tmp_path / "waku")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    pairs = {"b": "b/restante.sqlite", "link": "link", "all": "logs", "hard": "hard", "w1": "waku"}
    planned, errors = sources.ingest({"a": "a", **pairs, "w2": "waku/archive.sqlite", "new": "logs/n*"}, ends=1)
    assert {line.partition(":")[0] for line in planned} == {"a", "new"}
    twice = [("b", "link"), ("link", "b"), ("all", "hard"), ("hard", "all"), ("w1", "w2"), ("w2", "w1")]
    refused = [line for line in errors if line.startswith("restante: ")]
    for line, (name, other) in zip(refused, twice, strict=True):
        assert line.startswith(f"restante: source {name}: ")
        assert line.endswith(f" is read as source {other}, too, and would be counted twice: leave one of them out")


def test_a_source_that_had_rows_and_is_empty_now_fails(sources: Sources, tmp_path: Path) -> None:
    """A trace that was just rotated does not."""
    world = LakeWorld(None, tmp_path)
    tables = dict.fromkeys(("mailbox", "west"), "nameplates") | dict.fromkeys(("waku", "files"), "archived")
    tables["log"] = "client_events"
    for name, table in (*tables.items(), ("trace", "server_commands")):
        mark = "0" * 64 if name == "trace" else ""
        world.add(table, [], source=name, ledger=Ledger(), marks={mark: Mark(0, "", 0, "")})
    for path in ("data/lock", "data/restante.sqlite", "empty"):
        sources.write(path)
    for name, table in tables.items():
        path = "data" if name == "mailbox" else "empty"
        sentence = f"{tmp_path / path} is empty, and the lake has {table} of it: put back what was there, or leave"
        printed, errors = sources.ingest({name: path}, line="ingest", ends=1)
        assert (printed, errors) == ([], [f"restante: source {name}: {sentence} this source out"])
    printed, _ = sources.ingest({"trace": "empty"}, line="ingest")
    assert printed[0] == "trace: server_commands: nothing new"


def test_a_run_keeps_clean_and_built_tables_for_as_long_as_it_is_told(sources: Sources, lake: LakeWorld) -> None:
    known = {"app_id": "x", "kind": "nameplate", "measure": "total", "day": date(2023, 11, 14), "source": "mailbox"}
    lake.add("durations", [dict.fromkeys((column.name for column in TABLES["durations"].columns), 0) | known])
    _, steps = sources.ingest({"mailbox": "a"}, line="run --keep 1")
    assert (lake.rows("nameplates"), lake.rows("durations")) == ([], [])
    assert any(re.search(r"durations: 1 row from before [\d-]+ dropped", line) for line in steps)


def test_a_build_without_its_inputs_names_them_and_what_to_ingest(lake: LakeWorld) -> None:
    until = "nothing to build until you ingest"
    waku = "envelopes, traffic, coverage, hourly_coverage, gaps, lateness"
    of_nameplates = ("outcomes", "durations", "pressure", "busy_hours", "failures", "guesses")
    for plan, built in (((), "0 days built, 0 rows"), (("--plan",), "0 days to build")):
        done = command("build", "--lake", lake.path, "--from", "1999-01-01", "--to", "1999-01-01", *plan)
        assert done.stdout.splitlines() == [
            *(f"{table}: {built}" for table in of_nameplates),
            f"mailbox_pressure, versions, addresses: {until} a mailbox server's data directory",
            f"relay_hours, relay_durations: {until} a transit relay's data directory",
            f"timing, times, deliveries, transfers: {until} a client's timing log or a server's trace",
            f"{waku}: {until} a Waku archive or envelope files",
        ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("ingest", "there is nothing to read: name a source with --source NAME=PATH"),
        ("ingest --source mailbox", "--source mailbox: write a name and a path, --source NAME=PATH"),
        ("ingest --source A=.", "--source A=.: A cannot be a name: at most 63 of a-z"),
        *((command, "there is no lake in") for command in ("build", "sql", "vacuum", "compact", "query x")),
        (
            "run --date 2026-11-21",
            "--date 2026-11-21 chooses reports: name their folder (--reports), or leave it out",
        ),
        (
            "run --date soon --reports r",
            "'soon' is no period: write 2026-11-21, 2026-W47, 2026-11, day, week or month",
        ),
        ("build --from yesterday", "--from 'yesterday': this is not a day; write it like 2026-11-21"),
        ("build --from 2026-02-02 --to 2026-02-01", "--from 2026-02-02 is after --to 2026-02-01"),
        ("build --keep 0", "--keep 0: '0' is not a number of days from 1 to 36525"),
        ("build --keep nameplates=3", "--keep nameplates=3: this command writes no table nameplates; it writes"),
        ("vacuum --grace -1", "--grace: -1 is not a number of hours from 0 to 720"),
        ("vacuum --grace 720.1", "--grace: 720.1 is not a number of hours from 0 to 720"),
        (
            "vacuum --grace 1 --lake s3://canary/lake",
            "--grace 1: at a URL, where no lock shows whether a run is",
        ),
    ],
)
def test_misuse_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*line.split(), ends=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"restante: {sentence}")
    assert done.stderr.count("\n") == 1


def test_spark_is_given_packages_and_memory(lake: LakeWorld) -> None:
    start = Mock(side_effect=SparkError("no Spark here"))
    options = ("--packages", "org.example:a:1,org.example:b:2", "--memory", "2g")
    command("build", "--lake", lake.path, "--from", "2020-01-01", *options, ends=1, session=start)
    settings = {"spark.driver.memory": "2g", "spark.jars.packages": "org.example:a:1,org.example:b:2"}
    assert start.call_args.kwargs["settings"] == settings


def test_vacuum_and_compact_do_what_their_plans_count(lake: LakeWorld) -> None:
    def lines(name: str, *words: str) -> set[str]:
        return {*command(name, "--lake", lake.path, *words).stdout.splitlines()}

    left = lake.path / "nameplates" / f"run-{'0' * 32}-{'1' * 32}" / "part.parquet"
    left.parent.mkdir()
    left.write_bytes(b"12345")
    assert lines("vacuum", "--plan") == {"1 file to remove, 5 bytes"}
    assert left.exists()
    assert lines("vacuum") == {"1 file removed, 5 bytes"}
    assert not left.exists()
    [row] = lake.rows("nameplates")
    for number in (2, 3):
        lake.add("nameplates", [row | {"id": number}])
    assert {"nameplates: 3 files to merge into 1", "outcomes: nothing to merge"} <= lines("compact", "--plan")
    assert lake.version("nameplates") == 2
    assert "nameplates: 3 files merged into 1" in lines("compact")
    assert sorted(row["id"] for row in lake.rows("nameplates")) == [1, 2, 3]
    assert "nameplates: nothing to merge" in lines("compact")


def test_without_a_terminal_a_step_is_one_line_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps("build", itertools.count().__next__)
    with steps.step("outcomes") as step:
        assert capsys.readouterr().err == ""
        step.so_far("31 of 365 days")
        step.done("365 days")
    assert capsys.readouterr() == ("", "build: outcomes: 31 of 365 days, 1.0 s\nbuild: outcomes: 365 days, 2.0 s\n")
    with pytest.raises(KeyError), Steps("build").step("outcomes"):
        raise KeyError
    assert capsys.readouterr().err == "", "a step that fails is not done"


STEPS = """
import threading
from restante.pipeline.steps import Steps
steps = Steps("build")
shown = threading.Event()
def work(name):
    with steps.step(name) as step:
        if name == "outcomes":
            input()
            step.so_far("31 of 365 days")
            input()
            shown.set()
        shown.wait()
        step.done("a day")
other = threading.Thread(target=work, args=("durations",))
other.start()
work("outcomes")
other.join()
"""


def test_a_terminal_shows_the_running_steps() -> None:
    first = ("outcomes", "durations")
    second = ("outcomes \u00b7 31 of 365 days",)
    shown = on_a_terminal(sys.executable, "-c", STEPS, streams=["stderr"], steps=(first, second))
    for line in ("build: outcomes: a day, ", "build: durations: a day, "):
        assert shown.count(line) == 1
