"""Bars: stacked upright ones in the order of time, and lying ones in the order of their length. Pure."""

from __future__ import annotations

from typing import Final

from restante.pipeline.report.charts.axes import LEFT, short_label, spaced, ticks, upright_axis
from restante.pipeline.report.charts.elements import CHARACTER_WIDTH, WIDTH, element, name_element, text_element
from restante.pipeline.report.charts.marks import cell_text, filled_rectangle, mark, row_name
from restante.pipeline.report.model import RankedBars, ReportTable, StackedBars

PLOT_HEIGHT: Final = 160
_TOP: Final = 8
_BOTTOM: Final = 18
"""Room for the labels below the bars."""

MAX_BAR_WIDTH: Final = 34
"""Wider bars, of a week, would look like areas."""

_BAR_SHARE: Final = 0.78
"""Share of its place that a bar takes."""

_ROW_HEIGHT: Final = 32
"""Height of a lying bar with its name above it."""


def stacked_bars(chart: StackedBars, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of stacked bars, and their height."""
    columns = [table.numbers(part) for part in chart.parts]
    sums = [
        None if None in values else sum(value for value in values if value is not None)
        for values in zip(*columns, strict=True)
    ]
    scale = ticks(max((value for value in sums if value is not None), default=0))
    bottom = _TOP + PLOT_HEIGHT
    parts = [upright_axis(scale, _TOP, bottom, table.column(chart.parts[0]).kind)]
    slot = (WIDTH - LEFT) / max(len(sums), 1)
    width = min(slot * _BAR_SHARE, MAX_BAR_WIDTH)
    labels = [short_label(cell_text(table, row, chart.across)) for row in range(len(sums))]
    written = spaced(labels, slot)
    for row, total in enumerate(sums):
        middle = LEFT + slot * (row + 0.5)
        if written[row]:
            parts.append(text_element(middle, bottom + 14, labels[row], "middle"))
        if total is None:
            parts.append(text_element(middle, bottom - 4, "?", "middle"))
            continue
        y = float(bottom)
        for number, (column, values) in enumerate(zip(chart.parts, columns, strict=True), 1):
            value = values[row] or 0
            height = PLOT_HEIGHT * value / scale[-1]
            y -= height
            if value:
                shape = filled_rectangle(middle - width / 2, y, width, height, number)
                parts.append(mark(table, row, column, shape, (chart.across,)))
    return "".join(parts), bottom + _BOTTOM


def ranked_bars(chart: RankedBars, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of lying bars, each below its name, and their height."""
    values = table.numbers(chart.value)
    parts_of = table.numbers(chart.part) if chart.part else [None] * len(values)
    largest = max((value for value in values if value is not None), default=0) or 1
    room = max((len(_figures(chart, table, row)) for row in range(len(values))), default=0) * CHARACTER_WIDTH + 8
    parts = []
    for row, (value, part) in enumerate(zip(values, parts_of, strict=True)):
        y = _ROW_HEIGHT * row
        parts.append(name_element(0, y + 12, row_name(table, row, chart.labels)))
        length = (WIDTH - room) * (value or 0) / largest
        if value:
            shape = filled_rectangle(0.5, y + 17, length, 10, 1)
            parts.append(mark(table, row, chart.value, shape, chart.labels))
        if chart.part and value and part:
            width = length * min(part / value, 1)
            under = element("rect", class_="under", x=0.5, y=y + 17, width=width, height=10)
            shape = under + filled_rectangle(0.5, y + 17, width, 10, 2)
            parts.append(mark(table, row, chart.part, shape, chart.labels))
        parts.append(text_element(length + 6, y + 26, _figures(chart, table, row)))
    return "".join(parts), max(_ROW_HEIGHT * len(values), _ROW_HEIGHT)


def _figures(chart: RankedBars, table: ReportTable, row: int) -> str:
    value = cell_text(table, row, chart.value)
    if not chart.part:
        return value
    return f"{value}, {cell_text(table, row, chart.part)} {table.column(chart.part).head.lower()}"
