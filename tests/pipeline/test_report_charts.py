"""The charts of a report: each mark is a number of the table, and is as large as it."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from pipeline import reports
from restante.pipeline.report.charts import axes
from restante.pipeline.report.charts.elements import CHARACTER_WIDTH, WIDTH
from restante.pipeline.report.charts.hatching import HATCHINGS, MIN_HATCHED, hatch
from restante.pipeline.report.charts.maps import missing_height
from restante.pipeline.report.charts.picture import legend, picture
from restante.pipeline.report.charts.strips import SHAPES
from restante.pipeline.report.model import MAX_PARTS, MAX_PERCENTILES, Figure, drawn, figures
from restante.pipeline.report.values import json_value

CHARTS = {figure.id: figure for _, figure in figures(reports.of_lake("2026-11")) if figure.chart}
OF_A_DAY = {f"day {figure.id}": figure for _, figure in figures(reports.of_lake("2026-11-20")) if figure.chart}


def marks(figure: Figure) -> list[tuple[int, str, str, ET.Element]]:
    """Return the row, the column, the value and the element of each mark."""
    return [
        (int(mark.attrib["data-row"]), mark.attrib["data-column"], mark.attrib["data-value"], mark)
        for mark in ET.fromstring(picture(figure)).iter("g")
    ]


def rects(figure: Figure) -> list[tuple[float, ET.Element]]:
    return [(float(value), mark.findall("rect")[-1]) for _, _, value, mark in marks(figure)]


@pytest.mark.parametrize("figure", [*CHARTS.values(), *OF_A_DAY.values()], ids=[*CHARTS, *OF_A_DAY])
def test_every_number_of_the_table_has_a_mark_within_the_chart(figure: Figure) -> None:
    svg, drawn_marks, columns = ET.fromstring(picture(figure)), marks(figure), drawn(figure.chart)
    assert drawn_marks
    for row, column, value, _ in drawn_marks:
        assert str(json_value(figure.table.rows[row][figure.table.place(column)])) == value
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
    at_columns = [figure.table.place(column) for column in columns]
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
