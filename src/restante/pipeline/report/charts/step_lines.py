"""StepLines: one lane below the other, each with a line over the same times and on the same scale. Pure."""

from __future__ import annotations

from typing import Final

from restante.pipeline.report.charts.axes import LEFT, short_label, spaced, ticks, upright_axis
from restante.pipeline.report.charts.elements import WIDTH, name_element, text_element
from restante.pipeline.report.charts.marks import cell_text, mark, path_element, point
from restante.pipeline.report.model import ReportTable, StepLines

MAX_LANES: Final = 8
"""Lanes that are drawn, the first of the table. More would be a chart of several screens."""

_LANE_HEIGHT: Final = 64
_NAME_HEIGHT: Final = 18
_BOTTOM: Final = 18


def step_lines(chart: StepLines, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of steps, and their height."""
    values = table.numbers(chart.value)
    lanes = lanes_of(table, chart.down)
    times = lanes_of(table, chart.across)
    at_time = {row: index for index, rows in enumerate(times.values()) for row in rows}
    slot = (WIDTH - LEFT) / max(len(times), 1)
    scale = ticks(max((value for value in values if value is not None), default=0))
    scale = [0, scale[-1]]
    parts, y = [], 0.0
    for lane in list(lanes)[:MAX_LANES]:
        top, bottom = y + _NAME_HEIGHT, y + _NAME_HEIGHT + _LANE_HEIGHT - 8
        parts.append(name_element(LEFT, y + 12, lane, "strong"))
        parts.append(upright_axis(scale, top, bottom, table.column(chart.value).kind))
        for row in lanes[lane]:
            value = values[row]
            x = LEFT + slot * at_time[row]
            if value is None:
                parts.append(text_element(x + slot / 2, bottom - 4, "?", "middle"))
                continue
            value_y = bottom - (bottom - top) * value / scale[-1]
            area = path_element(f"M{point(x, bottom)}V{value_y:.2f}h{slot:.2f}V{bottom:.2f}z", "area")
            shape = area + path_element(f"M{point(x, value_y)}h{slot:.2f}", "step")
            parts.append(mark(table, row, chart.value, shape, (chart.down, chart.across)))
        y = bottom + 8
    labels = [short_label(time) for time in times]
    for index, is_written in enumerate(spaced(labels, slot)):
        if is_written:
            parts.append(text_element(LEFT + slot * (index + 0.5), y + 8, labels[index], "middle"))
    return "".join(parts), y + _BOTTOM


def lanes_of(table: ReportTable, column: str) -> dict[str, list[int]]:
    """Return the rows of each value of a column, in the order of the table."""
    lanes: dict[str, list[int]] = {}
    for row in range(len(table.rows)):
        lanes.setdefault(cell_text(table, row, column), []).append(row)
    return lanes
