"""The table of a figure as CSV. Pure."""

from __future__ import annotations

from restante.common.texts import END_OF_LINE, csv_field
from restante.pipeline.report.model import ReportTable, ValueKind
from restante.pipeline.report.values import csv_text


def as_csv(table: ReportTable) -> bytes:
    """Return a table as CSV in UTF-8, the names of its columns first. No text is a formula to a spreadsheet."""
    texts = [column.kind is ValueKind.TEXT for column in table.columns]
    lines = [",".join(csv_field(column.name, is_text=True) for column in table.columns)]
    lines += [
        ",".join(csv_field(csv_text(value), is_text=is_text) for value, is_text in zip(row, texts, strict=True))
        for row in table.rows
    ]
    return "".join(line + END_OF_LINE for line in lines).encode()
