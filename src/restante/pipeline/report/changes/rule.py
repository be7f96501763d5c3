"""All measures, and what they found together. Pure: who runs the queries is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from restante.pipeline.report.changes import activity, counts, failures
from restante.pipeline.report.changes.measure import MAX_DAYS_BEFORE, Compared, Days, Measure, days_of
from restante.pipeline.report.model import Changes, ReportChange
from restante.pipeline.report.periods import PeriodKind
from restante.pipeline.report.sections.subject import Rows, Scope

MEASURES: Final[tuple[Measure, ...]] = (
    *(failures.SERVERS_MEASURE, failures.VERSIONS_MEASURE, activity.SILENT_HOURS_MEASURE, activity.STOPPED_MEASURE),
    *(counts.MISSING_MEASURE, counts.SUSPECTS_MEASURE, counts.CLAIMS_MEASURE),
)

MAX_CHANGES: Final = 20
"""Changes that a report lists: what fits a page of paper. If there are more, something has happened to all."""


def changes_of(fetch: Callable[[str, Mapping[str, Any]], Rows], scope: Scope) -> Changes | None:
    """Return what changed, the largest changes first. None: the lake has no days to compare."""
    days = days_of(scope)
    if not days.now or not days.before:
        return None
    found = [each for measure in MEASURES for each in _found(fetch, measure, scope, days)]
    silent = {each.source for each in found if each.measure == Compared.SILENT_HOURS}
    found = [each for each in found if each.measure != Compared.NO_ROWS or each.source not in silent]
    found.sort(key=lambda each: (-each.size, each.measure, each.words))
    return Changes(_rule(scope, days), tuple(found[:MAX_CHANGES]), max(0, len(found) - MAX_CHANGES))


def _found(
    fetch: Callable[[str, Mapping[str, Any]], Rows], measure: Measure, scope: Scope, days: Days
) -> list[ReportChange]:
    given = {"start": days.before[0], "first": scope.period.first, "last": scope.period.last}
    rows = {
        name: fetch(sql, {key: day for key, day in given.items() if f"${key}" in sql})
        for name, sql in measure.queries.items()
    }
    return measure.found(rows, days)


def _rule(scope: Scope, days: Days) -> str:
    if scope.period.kind is PeriodKind.DAY:
        with_what = f"A day is compared with the {MAX_DAYS_BEFORE} days before"
    else:
        with_what = f"A {scope.period.kind} is compared with the {scope.period.kind} before"
    there = f"{with_what}, of which the lake has {len(days.before)}. Only what may need attention is listed."
    return " ".join([there, *(measure.rule for measure in MEASURES)])
