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
from restante.pipeline.report.model import Changes, ReportChange
from restante.pipeline.report.periods import PeriodKind
from restante.pipeline.report.sections.subject import Rows, Scope

MEASURES: Final[tuple[Measure, ...]] = (
    *(failures.SERVERS_MEASURE, failures.VERSIONS_MEASURE, activity.SILENT_HOURS_MEASURE, activity.STOPPED_MEASURE),
    *(counts.MISSING_MEASURE, counts.SUSPECTS_MEASURE, counts.CLAIMS_MEASURE),
)


def changes_of(fetch: Callable[[str, Mapping[str, Any]], Rows], scope: Scope) -> Changes | None:
    """Return what changed, the largest changes first. None: the lake has no days to compare."""
    days = days_of(scope)
    if not days.now or not days.before:
        return None
    found = [each for measure in MEASURES for each in _found(fetch, measure, scope, days)]
    silent = {each.source for each in found if each.measure == Compared.SILENT_HOURS}
    found = [each for each in found if each.measure != Compared.NO_ROWS or each.source not in silent]
    found.sort(key=lambda each: (-each.size, each.measure, each.words))
    listed, omitted = _largest(found)
    return Changes(_rule(scope, days), tuple(incidents(listed)), omitted, days.before)


def _largest(found: Iterable[ReportChange]) -> tuple[list[ReportChange], dict[str, int]]:
    """Return the changes to list, of those in order of size, and how many of each measure are not listed."""
    limits = {measure.compared.value: measure.max_listed for measure in MEASURES}
    seen, listed = Counter[str](), list[ReportChange]()
    for each in found:
        seen[each.measure] += 1
        if seen[each.measure] <= limits[each.measure]:
            listed.append(each)
    return listed, {name: seen[name] - limit for name, limit in limits.items() if seen[name] > limit}


def _found(
    fetch: Callable[[str, Mapping[str, Any]], Rows], measure: Measure, scope: Scope, days: Days
) -> list[ReportChange]:
    given = {"start": days.before[0], "first": scope.period.first, "last": scope.period.last}
    rows = {
        name: fetch(sql, {key: day for key, day in given.items() if f"${key}" in sql})
        for name, sql in measure.queries.items()
    }
    return measure.found(rows, days)


def _rule(scope: Scope, days: Days) -> tuple[str, ...]:
    if scope.period.kind is PeriodKind.DAY:
        with_what = f"A day is compared with the {MAX_DAYS_BEFORE} days before it"
    else:
        with_what = f"A {scope.period.kind} is compared with the {scope.period.kind} before"
    there = (
        f"{with_what}. Of these, the lake has {counted(len(days.before), 'day')}. Only what may need attention is"
        f" listed: of each measure the largest changes, at most {MAX_OF_VERSIONS} of versions and {MAX_OF_SOURCES} of"
        " servers or other sources."
    )
    return (there, *(f"{measure.compared.capitalize()}: {measure.rule}" for measure in MEASURES), INCIDENT_RULE)
