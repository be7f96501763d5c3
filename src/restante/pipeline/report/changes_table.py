"""What changed, as a table for CSV, and what is said of it in other outputs. Pure."""

from __future__ import annotations

from typing import Final

from restante.common.texts import counted
from restante.pipeline.report.model import (
    ReportChange,
    ReportChanges,
    ReportColumn,
    ReportRow,
    ReportTable,
    ValueKind,
)
from restante.pipeline.report.periods import Period, PeriodKind

NOTHING_CHANGED: Final = "Nothing changed that the rule counts as a change."

_COLUMNS: Final = tuple(
    ReportColumn(name, name, kind)
    for name, kind in (
        ("measure", ValueKind.TEXT),
        ("source", ValueKind.TEXT),
        ("implementation", ValueKind.TEXT),
        ("version", ValueKind.TEXT),
        ("first_day", ValueKind.DAY),
        ("last_day", ValueKind.DAY),
        ("days", ValueKind.COUNT),
        ("before_count", ValueKind.COUNT),
        ("now_count", ValueKind.COUNT),
        ("before_share", ValueKind.SHARE),
        ("now_share", ValueKind.SHARE),
        ("size", ValueKind.COUNT),
        ("words", ValueKind.TEXT),
        ("incident", ValueKind.COUNT),
    )
)
"""A change has counts or shares, and the others are empty. Rows with the same number are parts of one incident."""


def changes_table(changes: ReportChanges) -> ReportTable:
    """Return a row for each change that is listed, and for each of its parts."""
    rows = (
        (*_row(change), number)
        for number, incident in enumerate(changes.listed, 1)
        for change in (incident, *incident.parts)
    )
    return ReportTable(_COLUMNS, tuple(rows))


def _row(change: ReportChange) -> ReportRow:
    values: ReportRow = (change.before, change.now)
    empty: ReportRow = (None, None)
    numbers = (*empty, *values) if change.kind is ValueKind.SHARE else (*values, *empty)
    ends = (change.days[0], change.days[-1]) if change.days else empty
    return (
        change.measure,
        change.source,
        change.implementation,
        change.version,
        *ends,
        len(change.days),
        *numbers,
        change.size,
        change.text,
    )


def changes_heading(period: Period) -> str:
    """Return the heading of what changed: it names the days with which the period is compared."""
    return f"What changed since the {'days' if period.kind is PeriodKind.DAY else period.kind.value} before"


def omitted_words(changes: ReportChanges) -> str:
    """Return a sentence about changes that are not listed, or nothing if all are."""
    parts = [f"{counted(number, 'change')} of {measure}" for measure, number in changes.omitted.items()]
    return f"Not listed: {', '.join(parts)}." if parts else ""
