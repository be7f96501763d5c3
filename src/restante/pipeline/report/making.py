"""Makes a report of the rows that queries return. Pure: who runs the queries is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final

from restante.pipeline.report.changes.measure import Compared
from restante.pipeline.report.changes.rule import MEASURES, changes_of
from restante.pipeline.report.lacking import EVERYTHING_THERE, LakeState, state_remarks, without_tables
from restante.pipeline.report.model import Report, Section
from restante.pipeline.report.periods import LakeDays, Period, period_remarks
from restante.pipeline.report.sections import SUBJECTS
from restante.pipeline.report.sections.subject import Rows, Scope, Subject

Fetch = Callable[[str, Mapping[str, Any]], Rows]
"""Runs SQL with named parameters and returns its rows."""

DATED: Final = ("outcomes", "busy_hours", "relay_hours", "times", "traffic")
"""Tables whose days are those of the lake: what ended, what bound, transfers, timing logs, envelopes."""

LAKE_DAYS_SQL: Final = "SELECT min(first), max(last) FROM ({})".format(  # noqa: S608 - constants
    " UNION ALL ".join(f"SELECT min(day) AS first, max(day) AS last FROM {name}" for name in DATED)  # noqa: S608
)

_READ: Final = [*(subject.tables for subject in SUBJECTS), *(measure.tables for measure in MEASURES)]

TABLES_READ: Final = tuple(dict.fromkeys([*DATED, *(table for tables in _READ for table in tables)]))
"""All tables that a report reads."""


def lake_days(fetch: Fetch) -> LakeDays | None:
    """Return the days of which the lake has records, or None if it has none."""
    [(first_day, last_day)] = fetch(LAKE_DAYS_SQL, {})
    return None if first_day is None else LakeDays(first_day, last_day)


def make_report(
    fetch: Fetch, period: Period, today: date, made: datetime, state: LakeState = EVERYTHING_THERE
) -> Report:
    """Return the report of a period. Tables that the lake lacks are empty for `fetch`."""
    scope = Scope(period, lake_days(fetch), made)
    changes = changes_of(fetch, scope)
    lonely = (
        change.size for change in (changes.with_parts if changes else ()) if change.measure == Compared.ONE_SIDE
    )
    scope = scope._replace(lonely_guesses=sum(lonely))
    sections = tuple(without_tables(_section(fetch, subject, scope), subject.tables, state) for subject in SUBJECTS)
    sentences = state_remarks(state, has_records=scope.lake_days is not None)
    if scope.lake_days is not None or not state.unbuilt:
        sentences += period_remarks(period, scope.lake_days, today)
    return Report(period, made, sections, tuple(sentences), changes)


def _section(fetch: Fetch, subject: Subject, scope: Scope) -> Section:
    days = {"first": scope.period.first, "last": scope.period.last}
    rows = {
        name: fetch(sql, {key: day for key, day in days.items() if f"${key}" in sql})
        for name, sql in subject.queries.items()
    }
    return subject.section(rows, scope)
