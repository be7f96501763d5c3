"""Maps: squares of hours and weekdays, and cells of days and Mailservers. Pure."""

from __future__ import annotations

import math
from typing import Final

from restante.pipeline.report.charts.axes import short_label, spaced
from restante.pipeline.report.charts.elements import WIDTH, element, name_element, text_element
from restante.pipeline.report.charts.marks import filled_rectangle, mark
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
    weekdays, hours = (lanes_of(table, column) for column in (chart.down, chart.across))
    across = {row: index for index, rows in enumerate(hours.values()) for row in rows}
    values = table.numbers(chart.value)
    largest = max((value for value in values if value is not None), default=0) or 1
    side = min((WIDTH - _LEFT) / max(len(hours), 1), _MAX_CELL)
    labels = [short_label(hour) for hour in hours]
    parts = [
        text_element(_LEFT + side * (index + 0.5), 11, labels[index], "middle")
        for index, is_written in enumerate(spaced(labels, side))
        if is_written
    ]
    for down, (weekday, rows) in enumerate(weekdays.items()):
        middle = _TOP + side * (down + 0.5)
        parts.append(text_element(0, middle + 4, weekday[:3]))
        for row in rows:
            value, x = values[row], _LEFT + side * (across[row] + 0.5)
            if value is None:
                parts.append(text_element(x, middle + 4, "?", "middle"))
                continue
            half = (side - 1) * math.sqrt(value / largest) / 2
            shape = element("rect", class_="solid", x=x - half, y=middle - half, width=2 * half, height=2 * half)
            dot = element("circle", class_="dot", cx=x, cy=middle, r=0.7)
            parts.append(mark(table, row, chart.value, shape if value else dot, (chart.down, chart.across)))
    return "".join(parts), _TOP + side * max(len(weekdays), 1) + 2


def coverage_map(chart: CoverageMap, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of cells, one lane for each name: what is missing hangs from the top. Return their height."""
    lanes, times = (lanes_of(table, column) for column in (chart.down, chart.across))
    present, missing = table.numbers(chart.present), table.numbers(chart.missing)
    slot = WIDTH / max(len(times), 1)
    at_time = {row: index for index, rows in enumerate(times.values()) for row in rows}
    parts = []
    for lane, (lane_name, rows) in enumerate(lanes.items()):
        y = _LANE_HEIGHT * lane
        parts.append(name_element(0, y + 12, lane_name, "strong"))
        for row in rows:
            x, of = slot * at_time[row] + 0.5, (chart.down, chart.across)
            parts.extend(_cell(table, chart, row, (x, y + 17, slot - 1.5), (present[row], missing[row]), of))
    labels = [short_label(time) for time in times]
    bottom = _LANE_HEIGHT * len(lanes)
    for index, is_written in enumerate(spaced(labels, slot)):
        if is_written:
            parts.append(text_element(slot * (index + 0.5), bottom + 9, labels[index], "middle"))
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
    present, missing = counts
    if present is None or missing is None:
        return [text_element(x + width / 2, y + 13, "?", "middle")]
    if present + missing == 0:
        return [element("path", class_="line", d=f"M{x:.2f} {y + _CELL_HEIGHT:.2f}h{width:.2f}")]
    lacking = missing_height(present, missing)
    marks = []
    if present:
        shape = filled_rectangle(x, y + lacking, width, _CELL_HEIGHT - lacking, 1)
        marks.append(mark(table, row, chart.present, shape, of))
    if missing:
        marks.append(mark(table, row, chart.missing, filled_rectangle(x, y, width, lacking, 2), of))
    return marks


def missing_height(present: float, missing: float) -> float:
    """Return the height of what is missing. Something that is there or missing is visible beside the other."""
    if not missing:
        return 0
    height = max(_CELL_HEIGHT * missing / (present + missing), MIN_MISSING_HEIGHT)
    return min(height, _CELL_HEIGHT - MIN_MISSING_HEIGHT) if present else _CELL_HEIGHT
