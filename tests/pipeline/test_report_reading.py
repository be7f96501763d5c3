"""A report of a lake on disk: the same as of the rows in it, and one sentence if the lake is damaged."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from restante.common.errors import StoreError
from restante.pipeline.lake.lake import Lake
from restante.pipeline.report.files import report_files
from restante.pipeline.report.making import made_report
from restante.pipeline.report.model import Report
from restante.pipeline.report.periods import parse
from restante.pipeline.report.reading import read_report
from restante.pipeline.tables import TABLES
from support.effort import dice
from support.pipeline.report_lakes import LakeTables, lake
from support.pipeline.runs import LakeWorld, command

MADE = datetime(2026, 11, 25, 6, tzinfo=UTC)
WEEK = parse("2026-W47")
ROWS = lake(dice("reading"), [date(2026, 11, 14) + timedelta(number) for number in range(9)])
READ = ("outcomes", "versions", "coverage", "sources", "quarantine", "gaps")


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    made = LakeWorld(None, tmp_path)
    for name in READ:
        names = [column.name for column in TABLES[name].columns]
        made.add(name, [{column: row.get(column, 0) for column in names} for row in ROWS[name]])
    return made


def read(world: LakeWorld, tmp_path: Path) -> Report:
    with Lake.open(world.path, write=False) as opened:
        return read_report(opened, WEEK, MADE, tmp_path)


def test_a_lake_gives_the_report_of_its_rows(world: LakeWorld, tmp_path: Path) -> None:
    rows = LakeTables({name: ROWS[name] for name in READ})
    expected = made_report(rows.fetch, WEEK, MADE.date(), MADE)
    found = read(world, tmp_path)
    assert list(report_files(found)) == list(report_files(expected))
    assert sum(bool(section.figures) for section in found.sections) >= 5


def test_a_lake_without_tables_is_a_report_that_says_so(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    with Lake.open(world.path, write=True, make=True):
        pass
    found = read(world, tmp_path)
    assert found.remarks == ("The lake has no records yet. Run `restante pipeline run`.",)
    assert not any(section.figures for section in found.sections)


def test_a_damaged_file_is_one_sentence_that_names_it(world: LakeWorld, tmp_path: Path) -> None:
    for file in (world.path / "outcomes").rglob("*.parquet"):
        file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 8) + b"PAR1")
    with pytest.raises(StoreError) as raised:
        read(world, tmp_path)
    assert re.search(r"outcomes.*\.parquet", str(raised.value))
    assert "\n" not in str(raised.value)


def test_the_command_writes_all_files_and_prints_the_summary(world: LakeWorld, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "reports"
    done = command("report", "2026-W47", "2026-11-21", "2026-W47", "--lake", world.path, "-o", folder)
    assert done.stderr == ""
    assert done.stdout.startswith("Week 47 of 2026, 16 November 2026 to 22 November 2026\n")
    assert done.stdout.count("The page is ") == 2
    assert sorted(path.name for path in folder.iterdir()) == [
        *("2026-11-21", "2026-11-21.html", "2026-11-21.json"),
        *("2026-W47", "2026-W47.html", "2026-W47.json"),
    ]
    assert "What changed since the period before" in done.stdout
    assert (folder / "2026-W47" / "changes.csv").read_bytes().startswith(b"measure,source,")
    assert (folder / "2026-W47" / "results-by-day.csv").read_bytes().startswith(b"day,ended,happy,")


def test_csv_files_that_a_report_no_longer_has_are_removed(world: LakeWorld, tmp_path: Path) -> None:
    of_period = tmp_path / "reports" / "2026-W47"
    command("report", "2026-W47", "2026-W46", "--lake", world.path, "-o", tmp_path / "reports")
    (of_period / "notes.txt").write_text("mine")
    before = {path.name for path in of_period.iterdir()}
    of_another = contents(tmp_path / "reports" / "2026-W46")
    shutil.rmtree(world.path / "outcomes")
    shutil.rmtree(world.path / "coverage")
    command("report", "2026-W47", "--lake", world.path, "-o", tmp_path / "reports")
    after = {path.name for path in of_period.iterdir()}
    listed = json.loads((tmp_path / "reports" / "2026-W47.json").read_bytes())["sections"]
    figures = {f"{figure['id']}.csv" for section in listed for figure in section["figures"]}
    assert after == figures | {"notes.txt"}
    assert {"results-by-day.csv", "results-by-server.csv", "changes.csv"} <= before - after
    assert contents(tmp_path / "reports" / "2026-W46") == of_another


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_that_cannot_be_made_is_named_and_no_file_in_it(world: LakeWorld) -> None:
    done = command("report", "2026-W47", "--lake", world.path, "-o", "/proc/none", ends=1)
    assert done.stderr == "restante: cannot make the folder /proc/none/2026-W47: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["2026-13"], "there is no month 2026-13"),
        (["tomorrow\x1b[31m"], "is no period: write 2026-11-21, 2026-W47, 2026-11, day, week or month"),
        (["2026-11", "--lake", "nothing"], "nothing"),
        (["2026-11", "-o", "file"], "cannot be made, because a file has its name"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    world: LakeWorld, tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = command("report", "--lake", world.path, *words, ends=2)
    assert re.fullmatch(r"restante: [^\n\x1b]+\n", done.stderr)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_period_in_the_future_is_a_page_that_says_so(world: LakeWorld, tmp_path: Path) -> None:
    done = command("report", "9998-12", "--lake", world.path, "-o", tmp_path / "reports")
    assert "The period begins on 1 December 9998, which is in the future." in " ".join(done.stdout.split())
    assert (tmp_path / "reports" / "9998-12.html").exists()
