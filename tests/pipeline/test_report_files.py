"""The page, the charts, the CSV and JSON files and the summary of a report: the same numbers, nobody's markup."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
from datetime import date
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from pipeline import reports
from restante.common.errors import StoreError
from restante.common.texts import FORMULA
from restante.pipeline.report import files
from restante.pipeline.report.changes.measure import quoted_name
from restante.pipeline.report.charts import axes
from restante.pipeline.report.charts.elements import CHARACTER_WIDTH, WIDTH
from restante.pipeline.report.charts.hatching import HATCHINGS, MIN_HATCHED, hatch
from restante.pipeline.report.charts.maps import missing_height
from restante.pipeline.report.charts.picture import legend, picture
from restante.pipeline.report.charts.strips import SHAPES
from restante.pipeline.report.csv_json import as_csv, as_json
from restante.pipeline.report.files import report_files, write_report
from restante.pipeline.report.model import (
    MAX_PARTS,
    MAX_PERCENTILES,
    Figure,
    ReportColumn,
    ReportTable,
    Section,
    ValueKind,
    figures,
    value_columns,
)
from restante.pipeline.report.page import page
from restante.pipeline.report.periods import parse_period
from restante.pipeline.report.summary import ISOLATE, POP, summary_lines
from restante.pipeline.report.values import csv_text, json_value, value_text
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
    lines = "\n".join(summary_lines(HOSTILE))
    for text in (content, lines.replace(ISOLATE, "").replace(POP, "")):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert "&lt;script&gt;alert(1)" in content
    assert "$policy ${style} $$" in plain(content.encode())
    assert "(empty)" in content
    for name in reports.HOSTILE:
        assert f"<bdi>{escape(quoted_name(name).text)}</bdi> is new." in content, "isolated from the page's direction"


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
            *([value_text(row[at], of.kind, of.absent) for at, of in with_values] for row in figure.table.rows),
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
    lines = [" ".join(line.split()) for line in summary_lines(report, 80)]
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


def test_no_text_in_csv_begins_like_a_formula() -> None:
    table = ReportTable((ReportColumn("a", "A", ValueKind.TEXT),), tuple((name,) for name in reports.HOSTILE))
    rows = [row for [row] in list(csv.reader(io.StringIO(as_csv(table).decode(), newline="")))[1:]]
    assert rows == ["'" * text.startswith(FORMULA) + text for text in reports.HOSTILE]


@every_report
@pytest.mark.parametrize(("width", "limit"), [(1, 40), (40, 40), (80, 80), (200, 80)])
def test_the_lines_of_a_summary_fit_the_terminal(name: str, width: int, limit: int) -> None:
    assert max(cell_len(line) for line in summary_lines(REPORTS[name], width)) <= limit


@pytest.mark.parametrize("width", [40, 300])
def test_a_summary_isolates_names_that_are_not_ascii_and_no_others(width: int) -> None:
    for line in summary_lines(HOSTILE, width):
        assert re.fullmatch(f"[^{ISOLATE}{POP}]*({ISOLATE}[^{ISOLATE}{POP}]*{POP}[^{ISOLATE}{POP}]*)*", line)
    text = "\n".join(summary_lines(HOSTILE, 300))
    assert f'! {ISOLATE}"\u05d0\u05d1\u05d2 \u0627\u0644\u0639"{POP} is new.' in text
    assert "! \"a,b;'c'\" is new." in text
    assert text.count(ISOLATE) >= sum(not quoted_name(name).text.isascii() for name in reports.HOSTILE), "once a line"


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
    assert [value_text(value, kind) for value in values] == texts


def test_pages_link_to_those_around_them_and_a_list_has_all(tmp_path: Path) -> None:
    def hrefs(name: str) -> list[str]:
        return [link for link in Tags((tmp_path / name).read_text()).values("href") if link.endswith(".html")]

    for name in ("2026-11-19", "2026-11-20", "2026-11", "2026-W47"):
        write_report(replace(WHOLE, period=parse_period(name), changes=None), tmp_path)
    assert hrefs("2026-11-19.html") == ["2026-11-20.html", "2026-W47.html", "2026-11.html", "index.html"]
    assert hrefs("2026-11-20.html") == ["2026-11-19.html", "2026-W47.html", "2026-11.html", "index.html"]
    assert hrefs("2026-W47.html") == ["2026-11.html", "index.html"]
    assert hrefs("2026-11.html") == ["index.html"]
    (tmp_path / "2026-13.html").touch()
    write_report(replace(WHOLE, period=parse_period("2026-12")), tmp_path)
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
    full = patch.object(files, "write_output", side_effect=OSError(errno.ENOSPC, ""))
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


CHARTS = {figure.id: figure for _, figure in figures(reports.of_lake("2026-11")) if figure.chart}
OF_A_DAY = {f"day {figure.id}": figure for _, figure in figures(reports.of_lake("2026-11-20")) if figure.chart}


def marks(figure: Figure) -> list[tuple[int, str, str, ET.Element]]:
    return [
        (int(mark.attrib["data-row"]), mark.attrib["data-column"], mark.attrib["data-value"], mark)
        for mark in ET.fromstring(picture(figure)).iter("g")
    ]


def rects(figure: Figure) -> list[tuple[float, ET.Element]]:
    return [(float(value), mark.findall("rect")[-1]) for _, _, value, mark in marks(figure)]


@pytest.mark.parametrize("figure", [*CHARTS.values(), *OF_A_DAY.values()], ids=[*CHARTS, *OF_A_DAY])
def test_every_number_of_the_table_has_a_mark_within_the_chart(figure: Figure) -> None:
    svg, drawn_marks, columns = ET.fromstring(picture(figure)), marks(figure), value_columns(figure.chart)
    assert drawn_marks
    for row, column, value, _ in drawn_marks:
        assert str(json_value(figure.table.rows[row][figure.table.column_index(column)])) == value
    cells = {(row, column) for row, column, _, _ in drawn_marks}
    assert len(cells) == len(drawn_marks)
    for column in columns:
        for row, number in enumerate(figure.table.numbers(column)):
            assert ((row, column) in cells) or not number
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    assert width == WIDTH
    for rect in svg.iter("rect"):
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert -0.01 <= x <= x + w <= width + 0.5, ET.tostring(rect)
        assert -0.01 <= y <= y + h <= height + 0.01, ET.tostring(rect)
    for text in svg.iter("text"):
        room = cell_len(text.text or "") * CHARACTER_WIDTH
        at = float(text.attrib["x"]) - {"middle": room / 2, "end": room}.get(text.attrib.get("class", ""), 0)
        assert -0.5 <= at <= at + room <= width + 0.5, ET.tostring(text)
        assert 0 < float(text.attrib["y"]) <= height

    # It is an image with a title and a description, and says what is not known.
    assert svg.attrib["role"] == "img"
    title, description, *_ = list(svg)
    assert (title.tag, title.attrib["id"], title.text) == ("title", svg.attrib["aria-labelledby"], figure.title)
    assert (description.tag, description.attrib["id"]) == ("desc", svg.attrib["aria-describedby"])
    assert str(description.text).startswith(figure.reading)
    unknown = {row for column in columns for row, n in enumerate(figure.table.numbers(column)) if n is None}
    assert [text.text for text in svg.iter("text")].count("?") == len(unknown)

    empty = replace(figure, table=replace(figure.table, rows=()))
    assert picture(empty) == legend(empty) == ""
    at_columns = [figure.table.column_index(column) for column in columns]
    for all_ in (0, None):
        rows = tuple(tuple(all_ if at in at_columns else v for at, v in enumerate(row)) for row in figure.table.rows)
        ET.fromstring(picture(replace(figure, table=replace(figure.table, rows=rows))))


def test_stacked_bars_are_as_high_as_their_numbers_and_touch() -> None:
    figure = CHARTS["results-by-day"]
    ratios = [float(rect.attrib["height"]) / value for value, rect in rects(figure)]
    assert max(ratios) - min(ratios) < 0.01
    for (row, *_, one), (other_row, *_, other) in pairwise(marks(figure)):
        if row == other_row:
            below, above = one.findall("rect")[0].attrib, other.findall("rect")[0].attrib
            assert float(above["y"]) + float(above["height"]) == pytest.approx(float(below["y"]), abs=0.02)


def test_lying_bars_and_the_areas_of_squares_are_as_large_as_their_numbers() -> None:
    ratios = [float(rect.attrib["width"]) / value for value, rect in rects(CHARTS["results-by-server"])]
    assert max(ratios) - min(ratios) < 0.001
    ratios = [
        math.sqrt(float(value)) / float(mark.findall("rect")[0].attrib["width"])
        for _, _, value, mark in marks(CHARTS["busy-hours"])
        if value != "0"
    ]
    assert max(ratios) / min(ratios) < 1.02


def test_a_step_is_as_high_as_its_number_in_every_lane() -> None:
    heights = {}
    for _, _, value, mark in marks(CHARTS["live-nameplates"]):
        area = mark.findall("path")[0].attrib["d"]
        bottom = float(area.partition("V")[0].split()[1])
        heights[float(value)] = bottom - float(area.partition("V")[2].partition("h")[0])
    assert all(height == pytest.approx(value * heights[40.0] / 40, abs=0.02) for value, height in heights.items())


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_is_missing_is_visible_and_so_is_what_is_there(there: int, missing: int) -> None:
    if there + missing:
        height = missing_height(there, missing)
        assert (height >= 3) == (missing > 0)
        assert (height <= 15) == (there > 0)


def test_percentiles_are_in_order_along_the_axis() -> None:
    svg = ET.fromstring(picture(CHARTS["waiting-by-kind"]))
    rules = [path.attrib["d"] for path in svg.iter("path") if path.attrib["class"] == "rule"]
    xs = [float(path.partition(" ")[0][1:]) for path in rules]
    assert len(xs) > 2
    assert xs == sorted(xs)


@given(st.one_of(st.integers(0, 10**15), st.floats(0, 1e12)))
def test_ticks_are_few_round_numbers_that_reach_the_largest_value(largest: float) -> None:
    ticks = axes.ticks(largest)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= axes.MAX_TICKS
    assert ticks[-2] < max(largest, 1)
    assert ticks[-1] >= largest
    assert len({high - low for low, high in pairwise(ticks)}) == 1


def test_hatchings_and_shapes_suffice_and_differ() -> None:
    assert len({hatch(kind, 0, 0, 16, 16) for kind in HATCHINGS}) == MAX_PARTS
    assert len({shape(0, 0) for shape in SHAPES}) == MAX_PERCENTILES


@pytest.mark.parametrize(
    ("name", "items"), [("results-by-day", 6), ("results-by-server", 2), ("coverage", 2), ("waiting-by-kind", 3)]
)
def test_parts_of_a_chart_differ_without_colour_and_a_legend_says_what_they_mean(name: str, items: int) -> None:
    figure = CHARTS[name]
    assert legend(figure).count("<li>") == items
    assert "url(" not in picture(figure)
    if name == "waiting-by-kind":  # its parts have shapes
        return
    hatched: dict[str, set[bool]] = {}
    for _, column, _, mark in marks(figure):
        rect = mark.findall("rect")[-1].attrib
        if min(float(rect["width"]), float(rect["height"])) >= MIN_HATCHED:
            hatched.setdefault(column, set()).add(mark.find("path") is not None)
    first, *others = hatched.values()
    assert (first, *others) == ({False}, *[{True}] * len(others))
