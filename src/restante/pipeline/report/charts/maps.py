"""Maps: squares of hours and weekdays, and cells of days and Mailservers. Pure."""

from __future__ import annotations

import math
from typing import Final

from restante.pipeline.report.charts.axes import short_label, spaced
from restante.pipeline.report.charts.elements import WIDTH, element, name, text
from restante.pipeline.report.charts.marks import filled, mark
from restante.pipeline.report.charts.step_lines import lanes_of
from restante.pipeline.report.model import CoverageMap, PunchCard, ReportTable

_LEFT: Final = 30
"""Room for the names of weekdays, of which three letters are written."""

_TOP: Final = 16
_MAX_CELL: Final = 20
_LANE_HEIGHT: Final = 40
_CELL_HEIGHT: Final = 18

MIN_MISSING_HEIGHT: Final = 3
"""Height of what is missing in a cell, if anything is: a thousandth of a day's envelopes must be visible."""


def punch_card(chart: PunchCard, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of squares whose areas are the values, and their height."""
    rows, columns = (lanes_of(table, each) for each in (chart.down, chart.across))
    across = {each: at for at, each in enumerate(columns)}
    values = table.numbers(chart.value)
    largest = max((value for value in values if value is not None), default=0) or 1
    side = min((WIDTH - _LEFT) / max(len(columns), 1), _MAX_CELL)
    labels = [short_label(each) for each in columns]
    parts = [
        text(_LEFT + side * (at + 0.5), 11, labels[at], "middle")
        for at, is_written in enumerate(spaced(labels, side))
        if is_written
    ]
    of_row = {row: each for each, found in columns.items() for row in found}
    for down, (weekday, found) in enumerate(rows.items()):
        middle = _TOP + side * (down + 0.5)
        parts.append(text(0, middle + 4, weekday[:3]))
        for row in found:
            value, x = values[row], _LEFT + side * (across[of_row[row]] + 0.5)
            if value is None:
                parts.append(text(x, middle + 4, "?", "middle"))
                continue
            half = (side - 1) * math.sqrt(value / largest) / 2
            shape = element("rect", class_="solid", x=x - half, y=middle - half, width=2 * half, height=2 * half)
            dot = element("circle", class_="dot", cx=x, cy=middle, r=0.7)
            parts.append(mark(table, row, chart.value, shape if value else dot, (chart.down, chart.across)))
    return "".join(parts), _TOP + side * max(len(rows), 1) + 2


def coverage_map(chart: CoverageMap, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of cells, one lane for each name: what is missing hangs from the top. Return their height."""
    lanes, times = (lanes_of(table, each) for each in (chart.down, chart.across))
    there, missing = table.numbers(chart.there), table.numbers(chart.missing)
    place = WIDTH / max(len(times), 1)
    at_time = {row: at for at, found in enumerate(times.values()) for row in found}
    parts = []
    for lane, (of_lane, found) in enumerate(lanes.items()):
        y = _LANE_HEIGHT * lane
        parts.append(name(0, y + 12, of_lane, "strong"))
        for row in found:
            x, of = place * at_time[row] + 0.5, (chart.down, chart.across)
            parts.extend(_cell(table, chart, row, (x, y + 17, place - 1.5), (there[row], missing[row]), of))
    labels = [short_label(each) for each in times]
    bottom = _LANE_HEIGHT * len(lanes)
    for at, is_written in enumerate(spaced(labels, place)):
        if is_written:
            parts.append(text(place * (at + 0.5), bottom + 9, labels[at], "middle"))
    return "".join(parts), bottom + 14


def _cell(
    table: ReportTable,
    chart: CoverageMap,
    row: int,
    box: tuple[float, float, float],
    counts: tuple[float | None, float | None],
    of: tuple[str, str],
) -> list[str]:
    """Return the marks of a cell. A day without any envelope is a line at the bottom."""
    x, y, width = box
    there, missing = counts
    if there is None or missing is None:
        return [text(x + width / 2, y + 13, "?", "middle")]
    if there + missing == 0:
        return [element("path", class_="line", d=f"M{x:.2f} {y + _CELL_HEIGHT:.2f}h{width:.2f}")]
    lacking = missing_height(there, missing)
    marks = []
    if there:
        shape = filled(x, y + lacking, width, _CELL_HEIGHT - lacking, 1)
        marks.append(mark(table, row, chart.there, shape, of))
    if missing:
        marks.append(mark(table, row, chart.missing, filled(x, y, width, lacking, 2), of))
    return marks


def missing_height(there: float, missing: float) -> float:
    """Return the height of what is missing. Something that is there or missing is visible beside the other."""
    if not missing:
        return 0
    height = max(_CELL_HEIGHT * missing / (there + missing), MIN_MISSING_HEIGHT)
    return min(height, _CELL_HEIGHT - MIN_MISSING_HEIGHT) if there else _CELL_HEIGHT
