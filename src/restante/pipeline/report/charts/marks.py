"""What charts share: how a row is named, and marks, which say from which cell of the table they are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from restante.pipeline.report.charts.elements import coordinate, element, tooltip
from restante.pipeline.report.charts.hatching import HATCHINGS, hatch
from restante.pipeline.report.model import ReportTable
from restante.pipeline.report.values import json_value, value_text


def row_name(table: ReportTable, row: int, columns: Sequence[str]) -> str:
    """Return the name of a row: its values in these columns."""
    return " ".join(cell_text(table, row, column) for column in columns)


def cell_text(table: ReportTable, row: int, column: str) -> str:
    """Return the value of a cell as people read it."""
    definition = table.column(column)
    return value_text(table.rows[row][table.column_index(column)], definition.kind, definition.absent)


def mark(table: ReportTable, row: int, column: str, shape: str, name_columns: Sequence[str]) -> str:
    """Return a shape with its cell, its value and a tooltip. `name_columns` name the row."""
    value = json_value(table.rows[row][table.column_index(column)])
    hover_text = f"{row_name(table, row, name_columns)}: {table.column(column).head} {cell_text(table, row, column)}"
    return element(
        "g",
        tooltip(hover_text) + shape,
        data_row=str(row),
        data_column=column,
        data_value="" if value is None else str(value),
    )


def filled_rectangle(x: float, y: float, width: float, height: float, part: int) -> str:
    """Return a rectangle with the colour and the hatching of a part, which are counted from 1."""
    hatching = HATCHINGS[part - 1]
    lines = hatch(hatching, x, y, width, height)
    look = f"frame wash of-{part}" if hatching.lines else f"frame wash full of-{part}"
    area = element("rect", class_=look, x=x, y=y, width=width, height=height)
    if not lines:
        return area
    return area + element("path", class_=f"ink of-{part}", d=lines, stroke_width=hatching.thickness)


def path_element(d: str, class_: str) -> str:
    """Return a path."""
    return element("path", class_=class_, d=d)


def point(x: float, y: float) -> str:
    """Return a point of a path."""
    return f"{coordinate(x)} {coordinate(y)}"
