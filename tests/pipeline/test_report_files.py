"""The page, the CSV files, the JSON file and the summary of a report: the same numbers, and nobody's markup."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
from datetime import date
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from pipeline import reports
from restante.cli import report_output
from restante.cli.report_output import write_report
from restante.common.errors import StoreError
from restante.pipeline.report.changes.measure import quoted
from restante.pipeline.report.files import report_files
from restante.pipeline.report.json_file import as_json
from restante.pipeline.report.model import Section, ValueKind, figures
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import parse
from restante.pipeline.report.summary import ISOLATE, POP, summary
from restante.pipeline.report.values import csv_text, spoken_value
from support.markup import Tags, plain
from support.timing.pages import closed

WHOLE, HOSTILE = reports.whole(), reports.hostile()
REPORTS = {"whole": WHOLE, "hostile": HOSTILE}
every_report = pytest.mark.parametrize("name", REPORTS)


@every_report
def test_a_page_is_well_formed_names_nothing_outside_of_it_and_has_no_script(name: str) -> None:
    content = page(REPORTS[name]).decode()
    tags = closed(content, "style")
    hrefs = tags.values("href")
    links = {link.removeprefix("#") for link in hrefs if link != "data:,"}
    assert links | {*tags.values("aria-labelledby"), *tags.values("aria-describedby")} <= {*tags.values("id")}
    assert all(href.startswith(("#", "data:,")) for href in hrefs)
    assert "script" not in tags.texts
    scopes = [value for tag, attribute, value in tags.attributes if (tag, attribute) == ("th", "scope")]
    assert len(scopes) == len(tags.texts["th"]), "each header says what it heads"
    assert scopes.count("row") == sum(len(figure.table.rows) for _, figure in figures(REPORTS[name]))
    assert len(tags.texts["caption"]) == len(list(figures(REPORTS[name])))


def test_no_text_of_a_client_steers_the_page_or_a_terminal() -> None:
    content = page(HOSTILE).decode()
    assert "<script" not in content
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]", content), "no marks of direction"
    lines = "\n".join(summary(HOSTILE))
    for text in (content, lines.replace(ISOLATE, "").replace(POP, "")):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert "&lt;script&gt;alert(1)" in content
    assert "$policy ${style} $$" in plain(content.encode())
    assert "(empty)" in content
    for name in reports.HOSTILE:
        assert f"<bdi>{escape(quoted(name).text)}</bdi> is new." in content, "isolated from the page's direction"


@every_report
def test_each_figure_has_a_sentence_and_a_table_with_its_rows(name: str) -> None:
    content = page(REPORTS[name]).decode()
    for _, figure in figures(REPORTS[name]):
        _, _, after = content.partition(f'<div id="{figure.id}"')
        before, table, rest = after.partition("<table>")
        assert escape(figure.reading) in before
        rows = ET.fromstring(table + rest.partition("</table>")[0] + "</table>").iter("tr")
        columns = figure.table.columns
        with_values = [
            (at, column)
            for at, column in enumerate(columns)
            if column.usual is None or {row[at] for row in figure.table.rows} - {column.usual}
        ]
        assert [["".join(cell.itertext()) for cell in row] for row in rows] == [
            [column.head for _, column in with_values],
            *([spoken_value(row[at], of.kind, of.absent) for at, of in with_values] for row in figure.table.rows),
        ]


def test_the_page_and_the_summary_have_facts_changes_and_what_is_missing() -> None:
    first, *others = WHOLE.sections
    first = replace(first, terms="A <word> is one.")
    report = replace(WHOLE, sections=(first, *others, Section("nothing", "Nothing")))
    content = page(report).decode()
    assert content.index("A &lt;word&gt; is one.") < content.index('class="figure"')
    assert json.loads(as_json(report))["sections"][0]["terms"] == "A <word> is one."
    text = plain(page(report))
    for sentence in (
        "Made at 2026-12-01 06:30 UTC",
        "The lake has no records before 3 November 2026.",
        "27.0 % , before 10.0 % 2026-11-01 to 2026-11-03, 3 days Failures grew. See Success .",
        "What counts as a change A rule.",
        "Nothing The lake has no records of this in the period.",
        "Missing envelopes ! 171",
    ):
        assert sentence in text
    lines = [" ".join(line.split()) for line in summary(report, 80)]
    changed = lines.index("What changed since the month before")
    assert lines[:2] == ["November 2026", "The lake has no records before 3 November 2026."]
    assert lines[changed + 1] == "! Failures grew."
    assert {"Happy 16.2 %", "! Missing envelopes 171"} <= {*lines}


def test_csv_and_json_have_the_same_values_and_the_page_is_written_last() -> None:
    files = {str(path): content for path, content in report_files(WHOLE)}
    names = {figure.id: f"2026-11/{figure.id}.csv" for _, figure in figures(WHOLE)}
    assert [*files][-2:] == ["2026-11.json", "2026-11.html"]
    assert {*files} == {"2026-11/changes.csv", *names.values(), "2026-11.json", "2026-11.html"}
    written = json.loads(files["2026-11.json"])
    in_json = {figure["id"]: figure for section in written["sections"] for figure in section["figures"]}
    for _, figure in figures(WHOLE):
        head, *rows = csv.reader(io.StringIO(files[names[figure.id]].decode(), newline=""))
        assert head == [column.name for column in figure.table.columns]
        assert rows == [[csv_text(value) or "" for value in cells] for cells in figure.table.rows]
        for row, json_row in zip(rows, in_json[figure.id]["rows"], strict=True):
            assert [
                json.dumps(value, ensure_ascii=False).strip('"').replace("null", "") for value in json_row.values()
            ] == row
    assert (written["format"], written["version"]) == ("restante report", 1)
    assert written["period"] == {"kind": "month", "name": "2026-11", "first": "2026-11-01", "last": "2026-11-30"}
    assert (written["period_before"]["name"], written["made"]) == ("2026-10", "2026-12-01T06:30:00Z")
    assert written["changes"]["found"][0]["section"] == "results"
    units = [column["unit"] for column in in_json["waiting-by-kind"]["columns"]]
    assert units == [*[None] * 3, *["microseconds"] * 3]
    assert as_json(HOSTILE).isascii()


@every_report
@pytest.mark.parametrize(("width", "limit"), [(1, 40), (40, 40), (80, 80), (200, 80)])
def test_the_lines_of_a_summary_fit_the_terminal(name: str, width: int, limit: int) -> None:
    assert max(cell_len(line) for line in summary(REPORTS[name], width)) <= limit


@pytest.mark.parametrize("width", [40, 300])
def test_a_summary_isolates_names_that_are_not_ascii_and_no_others(width: int) -> None:
    for line in summary(HOSTILE, width):
        assert re.fullmatch(f"[^{ISOLATE}{POP}]*({ISOLATE}[^{ISOLATE}{POP}]*{POP}[^{ISOLATE}{POP}]*)*", line)
    text = "\n".join(summary(HOSTILE, 300))
    assert f'! {ISOLATE}"\u05d0\u05d1\u05d2 \u0627\u0644\u0639"{POP} is new.' in text
    assert "! \"a,b;'c'\" is new." in text
    assert text.count(ISOLATE) >= sum(not quoted(name).text.isascii() for name in reports.HOSTILE), "once a line"


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (ValueKind.COUNT, [None, 1_234_567], ["?", "1,234,567"]),
        (ValueKind.FLAG, [True], ["yes"]),
        (ValueKind.SHARE, [0, 1, 0.00001, 0.99999, 0.1234], ["0 %", "100 %", "<0.1 %", ">99.9 %", "12.3 %"]),
        (ValueKind.AVERAGE, [1234.56, 0, 0.0, 0.04], ["1,234.6", "0", "0", "<0.1"]),
        (ValueKind.BYTES, [999, 1_250_000, 999_999_999], ["999 bytes", "1.2 MB", "1.0 GB"]),
        (ValueKind.DURATION, [61_000_000], ["1 min 1 s"]),
        (ValueKind.DAY, [date(2026, 11, 1)], ["2026-11-01"]),
        (ValueKind.TEXT, ["x" * 1000, "a\x00\nb\u202e"], ["x" * 159 + "…", "a\\x00\\nb\\u202e"]),
        (ValueKind.TEXT, ["", " \u200c "], ["(empty)", "(blank)"]),
    ],
)
def test_values_are_written_for_people(kind: ValueKind, values: list[Any], texts: list[str]) -> None:
    assert [spoken_value(value, kind) for value in values] == texts


def test_pages_link_to_those_around_them_and_a_list_has_all(tmp_path: Path) -> None:
    def hrefs(name: str) -> list[str]:
        return [link for link in Tags((tmp_path / name).read_text()).values("href") if link.endswith(".html")]

    for name in ("2026-11-19", "2026-11-20", "2026-11", "2026-W47"):
        write_report(replace(WHOLE, period=parse(name), changes=None), tmp_path)
    assert hrefs("2026-11-19.html") == ["2026-11-20.html", "2026-W47.html", "2026-11.html", "index.html"]
    assert hrefs("2026-11-20.html") == ["2026-11-19.html", "2026-W47.html", "2026-11.html", "index.html"]
    assert hrefs("2026-W47.html") == ["2026-11.html", "index.html"]
    assert hrefs("2026-11.html") == ["index.html"]
    (tmp_path / "2026-13.html").touch()
    write_report(replace(WHOLE, period=parse("2026-12")), tmp_path)
    assert hrefs("2026-11.html") == ["2026-12.html", "index.html"]
    listed = ["2026-12.html", "2026-11.html", "2026-W47.html", "2026-11-20.html", "2026-11-19.html"]
    assert hrefs("index.html") == listed
    (tmp_path / "index.html").write_text("mine")
    write_report(WHOLE, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_the_umask_decides_who_reads_new_reports(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_report(WHOLE, tmp_path / "reports")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "reports").rglob("*") if path.is_file()}
    assert modes == {0o640}


def test_a_new_report_removes_only_files_that_earlier_ones_had(tmp_path: Path) -> None:
    report = replace(WHOLE, sections=WHOLE.sections[:1])
    folder = tmp_path / WHOLE.period.name
    folder.mkdir()
    (folder / "mine.csv").touch()
    (folder / "gaps.csv").symlink_to("mine.csv")
    (folder / "envelopes-by-day.csv").touch()
    full = patch.object(report_output, "write_output", side_effect=OSError(errno.ENOSPC, ""))
    with full, pytest.raises(StoreError, match="cannot write"):
        write_report(report, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"mine.csv", "gaps.csv", "envelopes-by-day.csv"}
    write_report(report, tmp_path)
    left = {path.name for path in folder.iterdir()} - {name.name for name, _ in report_files(report)}
    assert left == {"mine.csv", "gaps.csv"}
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to("elsewhere")
    (folder / "envelopes-by-day.csv").touch()
    write_report(report, tmp_path)
    assert (folder / "envelopes-by-day.csv").exists(), "nothing is removed through a link"
