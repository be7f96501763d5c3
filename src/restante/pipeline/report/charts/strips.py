"""Strips: a line for each row with a mark of its own shape at each percentile. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.common.units import duration
from restante.pipeline.report.charts.axes import duration_ticks, log_place, spaced
from restante.pipeline.report.charts.elements import WIDTH, element, name_element, text_element
from restante.pipeline.report.charts.marks import mark, path_element, row_name
from restante.pipeline.report.model import PercentileStrip, ReportTable

_ROW_HEIGHT: Final = 32
_INSET: Final = 22
"""Room at both ends of the axis for half of a label."""


def circle(x: float, y: float) -> str:
    """Return a full circle."""
    return element("circle", class_="solid", cx=x, cy=y, r=4)


def square(x: float, y: float) -> str:
    """Return an empty square."""
    return element("rect", class_="hollow", x=x - 4, y=y - 4, width=8, height=8)


def triangle(x: float, y: float) -> str:
    """Return a full triangle."""
    return path_element(f"M{x:.2f} {y - 5:.2f}l5 9.5h-10z", "solid")


SHAPES: Final[tuple[Callable[[float, float], str], ...]] = (circle, square, triangle)
"""The shapes of the first, second and third percentile."""


def percentile_strip(chart: PercentileStrip, table: ReportTable) -> tuple[str, float]:
    """Return the shapes of a strip, and their height."""
    columns = [table.numbers(column) for column in chart.percentiles]
    positive = [value for values in columns for value in values if value]  # 0 is at the lower end
    scale = duration_ticks(min(positive, default=1), max(positive, default=1))
    bottom = _ROW_HEIGHT * len(table.rows)
    parts = _axis(scale, bottom)
    for row in range(len(table.rows)):
        y = _ROW_HEIGHT * row
        parts.append(name_element(0, y + 12, row_name(table, row, chart.labels)))
        points = [(column, _x(value, scale)) for column, values in zip(chart.percentiles, columns, strict=True)
                  for value in (values[row],) if value is not None]  # fmt: skip
        if not points:
            parts.append(text_element(_INSET, y + 26, "?"))
            continue
        parts.append(path_element(f"M{points[0][1]:.2f} {y + 22}H{points[-1][1]:.2f}", "step"))
        parts.extend(
            mark(table, row, column, SHAPES[chart.percentiles.index(column)](x, y + 22), chart.labels)
            for column, x in points
        )
    return "".join(parts), bottom + 18


def _x(value: float, scale: list[int]) -> float:
    return _INSET + (WIDTH - 2 * _INSET) * log_place(value, scale)


def _axis(scale: list[int], bottom: float) -> list[str]:
    labels = [duration(tick) for tick in scale]
    parts = []
    written = spaced(labels, (WIDTH - 2 * _INSET) / len(labels))
    for tick, label, is_written in zip(scale, labels, written, strict=True):
        x = _x(tick, scale)
        parts.append(path_element(f"M{x:.2f} 0V{bottom}", "rule"))
        if is_written:
            parts.append(text_element(x, bottom + 12, label, "middle"))
    return parts
