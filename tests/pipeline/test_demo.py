"""`restante pipeline demo`: one command from nothing to tables, and what it refuses."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest
from pyspark.sql import SparkSession

from restante.demo.events import GroundTruth, decode_truth, draw_events
from restante.demo.fleet import MAILBOX_SERVERS, MAILSERVERS, MIN_DAYS, RELAY, Fleet
from restante.demo.generate import SOURCES, TRUTH, source_specs
from restante.pipeline.cli.demo import closing_lines, story_entries
from restante.pipeline.lake.lake import Lake
from restante.pipeline.views import all_views
from support import processes
from support.documents import Document
from support.pipeline.runs import command, spark_command


def demo(
    words: Sequence[str], run: Callable[..., subprocess.CompletedProcess[str]], transfers: int
) -> tuple[GroundTruth, list[str]]:
    """Make the guide's demo in this folder. Return its fleet, and the commands in the text that it ends with."""
    done = run(*words, "--days", str(MIN_DAYS), "--transfers", str(transfers), "--last", "2026-11-20")
    folder = Path("restante-demo")
    assert [path.name for path in Path().iterdir()] == ["restante-demo"]
    assert sorted(path.name for path in folder.iterdir()) == ["lake", "reports", SOURCES]
    assert done.stdout.startswith(
        "3 mailbox servers (north, east, south), 2 Mailservers (alpha, beta) and a transit relay (relay), 2026-11-07"
    )
    assert re.search(r"^demo: fleet: north: \d+ conversations, ", done.stderr, re.MULTILINE)
    truth = decode_truth((folder / SOURCES / TRUTH).read_bytes())
    for event in story_entries(truth):
        page = f"restante-demo/reports/{event.first}.html"
        query = f'restante pipeline query --lake restante-demo/lake "{event.query}"'
        assert f"{event.what} The table {event.table} shows it:\n    {query}\n" in done.stdout
        assert f"    {query}\nThe report of the day: {page}\n" in done.stdout
        assert Path(page).exists()
    assert "To see all of it on a page, open restante-demo/reports/2026-11.html\n" in done.stdout
    printed = commands(done.stdout)
    assert len(printed) == len(list(story_entries(truth))) + 4
    again = run(*words)
    assert again.stdout == done.stdout
    assert "demo: the fleet in restante-demo is used as it is" in again.stderr
    return truth, printed


def commands(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    [line] = Document("docs/pipeline/first-lake.md").lines("demo")
    return shlex.split(line.removeprefix("./run pipeline "))


def test_the_guides_demo_makes_a_fleet_once_and_prints_what_to_look_at(words: list[str]) -> None:
    """Its sources are not read here: tests/demo tests them."""
    ingested = patch("restante.pipeline.cli.run.ingest_into", return_value=[])
    with ingested as ingest, patch("restante.pipeline.cli.run.build_into") as build:
        demo(words, command, 10)
    servers = (server.name for server in MAILBOX_SERVERS)
    _, sources, *_ = ingest.call_args.args
    assert {source.name for source in sources} == {*MAILSERVERS, *servers, RELAY, "north-trace", "probes"}
    assert build.called
    shutil.rmtree(Path("restante-demo", SOURCES, RELAY))
    assert RELAY not in {spec.partition("=")[0] for spec in source_specs(Path("restante-demo"))}, (
        "as an older version"
    )
    refused = command(*words, "--seed", "2", ends=2)
    assert refused.stderr == "restante: restante-demo has a fleet with --seed 1: name a new folder for another one\n"


@pytest.mark.thorough
def test_the_guides_demo_has_tables_that_show_what_happened(spark: SparkSession, words: list[str]) -> None:
    truth, printed = demo(words, partial(spark_command, spark), 60)
    with Lake.open(Path("restante-demo/lake"), write=False) as lake, duckdb.connect() as tables:
        for statement in all_views(lake):
            tables.execute(statement)
        assert tables.sql("SELECT * FROM quarantine").fetchall() == []
        counts = tables.sql("SELECT read, clean, in_quarantine FROM sources").fetchall()
        assert len(counts) == len(MAILSERVERS) + len(MAILBOX_SERVERS) + 3
        assert all(read == clean > 0 == quarantined for read, clean, quarantined in counts)
        for event in story_entries(truth):
            if event.table != "guesses":  # a small fleet has too few guesses to stand out
                assert tables.sql(event.query).fetchall()
        [attack] = truth.events.attacks
        suspects = "SELECT day FROM guesses WHERE source = ? GROUP BY day ORDER BY sum(lonely) DESC LIMIT 1"
        assert tables.execute(suspects, [attack.server]).fetchall() == [(attack.days[0],)]
        assert tables.sql("SELECT count(*) FROM transfers").fetchall() > [(0,)]
        relayed, transfers = (
            "sum(bytes), sum(ended) FROM relay_hours",
            "sum(total_bytes), count(*) FROM relay_transfers",
        )
        assert tables.sql(f"SELECT {relayed}").fetchall() == tables.sql(f"SELECT {transfers}").fetchall()
    for line in printed:
        assert command(*shlex.split(line)[2:]).stdout.count("\n") > 2, line
    assert list(Path("restante-demo/reports").glob("2026-W*.html")), "of a week"


@pytest.mark.parametrize(
    ("name", "program"), [("demo", ""), ('it\'s a "demo" for $HOME `id` \\ !!', "/opt/my programs/run")]
)
def test_every_command_that_is_printed_runs_in_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, program: str
) -> None:
    """The test of the guide's demo runs them on a lake."""
    monkeypatch.setenv("_RESTANTE_PROGRAM", program)
    fleet = Fleet(last=date(2026, 11, 20))
    printed = commands("\n".join(closing_lines(GroundTruth(fleet=fleet, events=draw_events(fleet)), Path(name))))
    assert len(printed) == 10
    words = [shlex.split(line) for line in printed]
    assert {(word[0], word[4]) for word in words} == {(program or "restante", f"{name}/lake")}
    echoed = processes.run("sh", "-c", "\n".join(f"printf '%s\\n' {line}" for line in printed), cwd=tmp_path)
    assert echoed.stdout.splitlines() == [word for line in words for word in line]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--days 13", "--days: '13' is not a whole number from 14 to 366"),
        ("--seed -1", "--seed: '-1' is not a whole number from 0 to 9223372036854775807"),
        ("--last tomorrow", "--last 'tomorrow': this is not a day; write it like 2026-11-21"),
        ("--last 9999-12-31", "--last 9999-12-31: this day is not over yet; yesterday was "),
        ("--last 2015-01-10", "--last 2015-01-10: the fleet would begin before 2015-01-01, the first day"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_made(tmp_path: Path, option: str, sentence: str) -> None:
    done = command("demo", tmp_path / "new", *option.split(), ends=2)
    assert done.stderr.startswith(f"restante: {sentence}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("folder", "there", "sentence"),
    [
        ("", "letter.txt", "has other files: name a new folder for the demo, or an empty one"),
        ("", "sources/north/data", "has no fleet of this version's demo (No such file or directory): name a "),
        ("", "sources/fleet.json", "has no fleet of this version's demo (Input data was truncated): name a "),
        ("file", "file", "has no fleet of this version's demo (Not a directory)"),
    ],
)
def test_a_folder_of_other_files_is_refused_and_stays(tmp_path: Path, folder: str, there: str, sentence: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert command("demo", tmp_path / folder, ends=2).stderr.startswith(f"restante: {tmp_path / folder} {sentence}")
    assert sorted(tmp_path.rglob("*")) == before
