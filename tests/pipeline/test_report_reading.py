"""A report of a lake on disk: it is that of its rows, says what is missing, and is written again if these change."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from html import escape
from pathlib import Path
from random import Random

import pytest

from pipeline.reports import LakeTables, lake
from restante.pipeline.cli.report import write_reports
from restante.pipeline.lake.lake import Lake
from restante.pipeline.report.csv_json import as_json
from restante.pipeline.report.files import report_files
from restante.pipeline.report.lacking import BEING_WRITTEN
from restante.pipeline.report.making import make_report
from restante.pipeline.report.model import Report
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import parse_period
from restante.pipeline.report.reading import lake_state, outdated_periods, read_report
from restante.pipeline.report.summary import summary_lines
from restante.pipeline.tables import TABLES
from support.documents import Document
from support.pipeline.runs import LakeWorld, Row, command

MADE = datetime(2026, 11, 25, 6, tzinfo=UTC)
WEEK = parse_period("2026-W47")
ROWS = lake(Random(1), [date(2026, 11, 14) + timedelta(number) for number in range(9)])
READ = ("outcomes", "versions", "coverage", "sources", "quarantine", "gaps")
COLUMNS = {name: [column.name for column in table.columns] for name, table in TABLES.items()}
PERIOD_REMARKS = ("The lake has records of the period before only from 14 November 2026 on.",)
NAMEPLATE = {"started": "2026-11-17T01:00:00", "source": "north"}


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    made = LakeWorld(None, tmp_path)
    for name in READ:
        made.add(name, [{column: row.get(column, 0) for column in COLUMNS[name]} for row in ROWS[name]])
    return made


def read(world: LakeWorld, tmp_path: Path) -> Report:
    with Lake.open(world.path, write=False) as opened:
        return read_report(opened, WEEK, MADE, tmp_path)


def test_a_lake_gives_the_report_of_its_rows(world: LakeWorld, tmp_path: Path) -> None:
    with Lake.open(world.path, write=False) as opened:
        state = lake_state(opened)
    tables = LakeTables({name: ROWS[name] for name in READ})
    expected = make_report(tables.fetch, WEEK, MADE.date(), MADE, state)
    report = read(world, tmp_path)
    assert list(report_files(report)) == list(report_files(expected))
    sections = {section.id for section in report.sections if section.figures}
    assert sections == {"results", "versions", "coverage", "sources", "quarantine"}


def text_of(report: Report, name: str) -> str:
    [section] = [section for section in report.sections if section.id == name]
    assert (section.figures, section.facts) == ((), ())
    assert section.nothing in " ".join(" ".join(summary_lines(report)).split())
    assert escape(section.nothing) in page(report).decode()
    return section.nothing


def test_tables_that_are_not_built_are_named_on_top_and_in_their_sections(world: LakeWorld, tmp_path: Path) -> None:
    report = read(world, tmp_path)
    assert report.remarks == PERIOD_REMARKS
    # An operator without a Mailserver has no use for its tables.
    assert text_of(report, "traffic") == (
        "The lake has no tables traffic and hourly_coverage, because it has no rows of a Waku archive or envelope"
        " files."
    )
    assert text_of(report, "timing").endswith("it has no rows of a client's timing log or a server's trace.")
    world.add("nameplates", [])
    assert read(world, tmp_path).remarks == PERIOD_REMARKS, "nameplates has no rows"
    world.write("nameplates", NAMEPLATE)
    world.add("busy_hours", [*ROWS["busy_hours"]])
    for name in ("durations", "pressure", "mailbox_pressure", "guesses", "failures"):
        world.add(name, [])
    assert read(world, tmp_path).remarks == PERIOD_REMARKS
    shutil.rmtree(world.path / "outcomes")
    assert read(world, tmp_path).remarks == (
        "The lake has no table outcomes. Run `restante pipeline build`, which makes it from the rows of the lake.",
        "Without it, the report cannot say whether these changed: failed mailboxes of a server.",
        *PERIOD_REMARKS,
    )
    for name in ("sources", "guesses", "pressure"):
        shutil.rmtree(world.path / name)
    report = read(world, tmp_path)
    lacks, left_out, *_ = report.remarks
    assert lacks.startswith("The lake has no tables outcomes, guesses, pressure and sources. Run `restante ")
    assert left_out == (
        "Without them, the report cannot say whether these changed: failed mailboxes of a server, hours without"
        " connections, results of guesses and nameplates of one side."
    )
    assert json.loads(as_json(report))["remarks"] == [*report.remarks]
    assert text_of(report, "results").startswith("The lake has no tables outcomes and guesses. ")
    assert text_of(report, "waiting") == "The lake has no records of this in the period."


def test_a_lake_that_was_only_ingested_says_what_to_build(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    world.write("nameplates", NAMEPLATE)
    [remark] = read(world, tmp_path).remarks
    assert remark.startswith("The lake has no tables outcomes, busy_hours, failures, guesses, durations, ")
    assert "traffic" not in remark


def test_while_another_run_writes_a_report_says_so(world: LakeWorld, tmp_path: Path) -> None:
    with world.run() as run:
        assert read(world, tmp_path).remarks[0] == BEING_WRITTEN
        assert not run.lake.is_written_by_another()
        write_reports(run, [WEEK], tmp_path / "reports")
    assert BEING_WRITTEN not in (tmp_path / "reports" / "2026-W47.html").read_text(), "it is the run's own"
    assert BEING_WRITTEN not in read(world, tmp_path).remarks


def test_the_command_writes_all_files_and_prints_the_summary(world: LakeWorld, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "reports"
    done = command("report", "2026-W47", "2026-11-21", "2026-W47", "9998-12", "--lake", world.path, "-o", folder)
    assert done.stderr == ""
    assert done.stdout.startswith("Week 47 of 2026, 16 November 2026 to 22 November 2026\n")
    assert done.stdout.count("The page is ") == 3
    assert "The period begins on 1 December 9998, which is in the future." in " ".join(done.stdout.split())
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        *(f"{period}{end}" for period in ("2026-11-21", "2026-W47", "9998-12") for end in ("", ".html", ".json")),
    }
    assert "What changed since the days before" in done.stdout
    assert (folder / "2026-W47" / "changes.csv").read_bytes().startswith(b"measure,source,")
    assert (folder / "2026-W47" / "results-by-day.csv").read_bytes().startswith(b"day,ended,happy,")


def test_outdated_csv_files_are_removed(world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "restante-lake").symlink_to(world.path)
    for line in Document("docs/pipeline/reading.md").lines("reports"):
        command(*line.removeprefix("./run pipeline ").split())
    of_week, of_day = (tmp_path / "reports" / name for name in ("2026-W47", "2026-11-21"))
    (of_week / "notes.txt").write_text("mine")
    before = {path.name for path in of_week.iterdir()}
    of_another = {path: path.read_bytes() for path in of_day.iterdir()}
    for name in ("outcomes", "coverage"):
        shutil.rmtree(world.path / name)
    Path("reports/index.html").write_text("mine")
    stays = "reports/index.html is not a list of reports that this program wrote: it stays as it is"
    assert command("report", "2026-W47", "-o", "reports").stderr == f"restante: {stays}\n"
    after = {path.name for path in of_week.iterdir()}
    sections = json.loads(of_week.with_suffix(".json").read_bytes())["sections"]
    assert after == {"notes.txt", *(f"{figure['id']}.csv" for section in sections for figure in section["figures"])}
    assert {"results-by-day.csv", "results-by-server.csv", "changes.csv"} <= before - after
    assert {path: path.read_bytes() for path in of_day.iterdir()} == of_another


ODD = {"a": "a/index.html", "b": "b/2026-11.json", "c": "c/2026-11/gaps.csv"}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["2026-13"], 2, "there is no month 2026-13"),
        (["tomorrow\x1b[31m"], 2, "is no period: write 2026-11-21, 2026-W47, 2026-11, day, week or month"),
        (["2026-11", "--lake", "nothing"], 2, "nothing"),
        (["2026-11", "-o", "file"], 2, "cannot be made, because a file has its name"),
        (["2026-11", "--lake", "torn"], 1, "the lake is damaged: "),
        (["2026-11", "-o", "/proc/none"], 1, "cannot make the folder /proc/none/2026-11: No such file or directory"),
        *((["2026-11", "-o", name, "--lake", "nothing"], 2, f"{path} is not a file") for name, path in ODD.items()),
    ],
)
def test_what_is_wrong_is_one_sentence(
    world: LakeWorld, tmp_path: Path, words: list[str], code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for number, path in enumerate(map(Path, ODD.values())):
        path.parent.mkdir(parents=True)
        path.mkdir() if number % 2 else os.mkfifo(path)
    shutil.copytree(world.path, "torn")
    Path("torn", "outcomes", "_delta_log", f"{0:020}.json").write_bytes(b"\0")
    done = command(*([] if words[0] == "run" else ["report", "--lake", str(world.path)]), *words, ends=code)
    assert re.fullmatch(r"restante: [^\n\x1b]+\n", done.stderr)
    assert sentence in done.stderr
    assert done.stdout == ""


def test_a_run_writes_reports_again_that_are_damaged_or_older_than_their_days(tmp_path: Path) -> None:
    periods = [parse_period("2026-11-21"), parse_period("2026-11")]
    counts = dict.fromkeys(("connections", "nameplates", "mailboxes"), 1)
    hour: Row = {"hour": 12, **counts, "day": date(2026, 11, 21), "source": "relay"}
    world, reports = LakeWorld(None, tmp_path), tmp_path / "reports"
    world.now = datetime(2026, 12, 1, tzinfo=UTC).timestamp()

    def due() -> list[str]:
        with world.run(write=False) as run:
            return [period.name for period in outdated_periods(run.lake, periods, reports, date(2026, 12, 1))]

    world.add("busy_hours", [hour])
    world.now += 1
    with world.run(write=False) as run:
        write_reports(run, periods, reports)
    assert due() == []
    good = (reports / "2026-11.json").read_bytes()
    for damaged in (b"", b"{}", b'{"made": 1}', b'{"made": "2026-12-01T00:00:00Z"', b"\xff"):
        (reports / "2026-11.json").write_bytes(damaged)
        assert due() == ["2026-11"], damaged
    (reports / "2026-11.json").write_bytes(good)
    world.now += 1
    world.add("busy_hours", [hour | {"hour": 13}])
    assert due() == ["2026-11-21", "2026-11"], "a killed run left them"
    with world.run(write=False) as run:
        write_reports(run, periods, reports)
    (reports / "2026-11.html").unlink()
    assert due() == ["2026-11"]
    (reports / "2026-11-21.json").unlink()
    assert due() == ["2026-11-21", "2026-11"]
    with world.run(write=False) as run:
        december = [parse_period("2026-12")]
        write_reports(run, december, reports)
        assert outdated_periods(run.lake, december, reports, date(2026, 12, 31)) == []
        assert outdated_periods(run.lake, december, reports, date(2027, 1, 1)) == december
