"""All measures, and what they found together. Pure: who runs the queries is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from restante.common.texts import counted
from restante.pipeline.report.changes import activity, counts, failures
from restante.pipeline.report.changes.incidents import INCIDENT_RULE, incidents
from restante.pipeline.report.changes.measure import (
    MAX_DAYS_BEFORE,
    MAX_OF_SOURCES,
    MAX_OF_VERSIONS,
    Compared,
    Days,
    Measure,
    days_of,
)
from restante.pipeline.report.model import ReportChange, ReportChanges
from restante.pipeline.report.periods import PeriodKind
from restante.pipeline.report.sections.subject import Rows, Scope

MEASURES: Final[tuple[Measure, ...]] = (
    *(failures.SERVERS_MEASURE, failures.VERSIONS_MEASURE, activity.SILENT_HOURS_MEASURE, activity.STOPPED_MEASURE),
    *(counts.MISSING_MEASURE, counts.SUSPECTS_MEASURE, counts.CLAIMS_MEASURE),
)


def changes_of(fetch: Callable[[str, Mapping[str, Any]], Rows], scope: Scope) -> ReportChanges | None:
    """Return what changed, the largest changes first. None: the lake has no days to compare."""
    days = days_of(scope)
    if not days.now or not days.before:
        return None
    changes = [change for measure in MEASURES for change in _find_changes(fetch, measure, scope, days)]
    silent = {change.source for change in changes if change.measure == Compared.SILENT_HOURS}
    changes = [change for change in changes if change.measure != Compared.NO_ROWS or change.source not in silent]
    changes.sort(key=lambda change: (-change.size, change.measure, change.words))
    listed, omitted = _largest(changes)
    return ReportChanges(_rule(scope, days), tuple(incidents(listed)), omitted, days.before)


def _largest(changes: Iterable[ReportChange]) -> tuple[list[ReportChange], dict[str, int]]:
    """Return the changes to list, of those in order of size, and how many of each measure are not listed."""
    limits = {measure.compared.value: measure.max_listed for measure in MEASURES}
    seen, listed = Counter[str](), list[ReportChange]()
    for change in changes:
        seen[change.measure] += 1
        if seen[change.measure] <= limits[change.measure]:
            listed.append(change)
    return listed, {name: seen[name] - limit for name, limit in limits.items() if seen[name] > limit}


def _find_changes(
    fetch: Callable[[str, Mapping[str, Any]], Rows], measure: Measure, scope: Scope, days: Days
) -> list[ReportChange]:
    parameters = {"start": days.before[0], "first": scope.period.first, "last": scope.period.last}
    rows = {
        name: fetch(sql, {key: day for key, day in parameters.items() if f"${key}" in sql})
        for name, sql in measure.queries.items()
    }
    return measure.find_changes(rows, days)


def _rule(scope: Scope, days: Days) -> tuple[str, ...]:
    if scope.period.kind is PeriodKind.DAY:
        with_what = f"A day is compared with the {MAX_DAYS_BEFORE} days before it"
    else:
        with_what = f"A {scope.period.kind} is compared with the {scope.period.kind} before"
    days_sentence = (
        f"{with_what}. Of these, the lake has {counted(len(days.before), 'day')}. Only what may need attention is"
        f" listed: of each measure the largest changes, at most {MAX_OF_VERSIONS} of versions and {MAX_OF_SOURCES} of"
        " servers or other sources."
    )
    return (
        days_sentence,
        *(f"{measure.compared.capitalize()}: {measure.rule}" for measure in MEASURES),
        INCIDENT_RULE,
    )
