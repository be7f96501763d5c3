"""A report as JSON, and the tables of its figures as CSV, for programs. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from restante.common.texts import END_OF_LINE, csv_field
from restante.pipeline.report.model import (
    UNITS,
    Fact,
    Figure,
    Report,
    ReportChange,
    ReportChanges,
    ReportColumn,
    ReportTable,
    Section,
    ValueKind,
)
from restante.pipeline.report.periods import Period
from restante.pipeline.report.values import csv_text, json_value

FORMAT: Final = "restante report"

FORMAT_VERSION: Final = 1
"""The version of the format. Keys may be added within a version; a greater number means that one has changed."""


def as_json(report: Report) -> bytes:
    """Return a report as JSON in ASCII, with an object for each row. The same report gives the same bytes."""
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "period": _period(report.period),
        "period_before": _period(report.period.before),
        "made": json_value(report.made),
        "remarks": list(report.remarks),
        "changes": None if report.changes is None else _changes(report.changes),
        "sections": [_section(section) for section in report.sections],
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _period(period: Period) -> dict[str, Any]:
    return {
        "kind": period.kind.value,
        "name": period.name,
        "first": json_value(period.first),
        "last": json_value(period.last),
    }


def _changes(changes: ReportChanges) -> dict[str, Any]:
    return {
        "days_before": [json_value(day) for day in changes.days_before],
        "rule": list(changes.rule),
        "omitted": dict(changes.omitted),
        "found": [_change(change) for change in changes.listed],
    }


def _change(change: ReportChange) -> dict[str, Any]:
    return {
        "section": change.section,
        "words": change.text,
        "before": json_value(change.before),
        "now": json_value(change.now),
        "kind": change.kind.value,
        "measure": change.measure,
        "source": change.source,
        "implementation": change.implementation,
        "version": change.version,
        "days": [json_value(day) for day in change.days],
        "size": change.size,
        "parts": [_change(part) for part in change.parts],
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "id": section.id,
        "title": section.title,
        "terms": section.terms,
        "facts": [_fact(item) for item in section.facts],
        "figures": [_figure(item) for item in section.figures],
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {"name": fact.name, "value": json_value(fact.value), "kind": fact.kind.value, "warns": fact.warns}


def _figure(figure: Figure) -> dict[str, Any]:
    names = [column.name for column in figure.table.columns]
    return {
        "id": figure.id,
        "title": figure.title,
        "reading": figure.reading,
        "remarks": list(figure.remarks),
        "columns": [_column(column) for column in figure.table.columns],
        "rows": [dict(zip(names, map(json_value, row), strict=True)) for row in figure.table.rows],
    }


def _column(column: ReportColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "head": column.head,
        "kind": column.kind.value,
        "unit": UNITS.get(column.kind),
        "meaning": column.meaning,
    }


def as_csv(table: ReportTable) -> bytes:
    """Return a table as CSV in UTF-8, the names of its columns first. No text is a formula to a spreadsheet."""
    texts = [column.kind is ValueKind.TEXT for column in table.columns]
    lines = [",".join(csv_field(column.name, is_text=True) for column in table.columns)]
    lines += [
        ",".join(csv_field(csv_text(value), is_text=is_text) for value, is_text in zip(row, texts, strict=True))
        for row in table.rows
    ]
    return "".join(line + END_OF_LINE for line in lines).encode()
