"""The changes of all measures, of which some are one incident. Pure: who runs the queries is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from restante.common.texts import counted
from restante.pipeline.report.changes import activity, counts, failures
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
    failures.SERVERS_MEASURE,
    failures.VERSIONS_MEASURE,
    activity.SILENT_HOURS_MEASURE,
    activity.STOPPED_MEASURE,
    counts.MISSING_MEASURE,
    counts.SUSPECTS_MEASURE,
    counts.CLAIMS_MEASURE,
)

INCIDENT_KINDS: Final = (
    ((Compared.GUESSES, Compared.ONE_SIDE), (Compared.FAILURES_OF_SERVER, Compared.FAILURES_OF_VERSION)),
    ((Compared.SILENT_HOURS,), (Compared.FAILURES_OF_SERVER,)),
    ((Compared.FAILURES_OF_VERSION,), (Compared.FAILURES_OF_SERVER,)),
)
"""The measures that show an incident of a kind, the most telling one first, and those that show what it can cause."""

MIN_AT_SERVER: Final = 0.5
"""Share of the size of a version's failures that must be at a server, for them to be parts of an incident there."""

MIN_OF_VERSION: Final = 0.4
"""Share of the size of a server's failures that must be of a version, for them to be parts of its failures. It is
less than half, because the version of some mailboxes is not known: in the demos of seeds 900 and 901, 48 to 83 % of
the failures that the bad release caused at a server, on a day, in a week or in a month, were known to be of it."""

INCIDENT_RULE: Final = (
    "Incidents: results of guesses and nameplates of one side are one incident if they are of the same server and"
    " have a day in common. Failures of this server, and failures of versions, are listed below it if they are on no"
    f" other days. At least {MIN_AT_SERVER:.0%} of the failures that such a version has more than before were at this"
    " server. Failures of a server are listed below its hours without connections in the same way. They are listed"
    f" below the failures of a version if at least {MIN_OF_VERSION:.0%} of those that the server has more than before"
    " were of this version."
)


def changes_of(fetch: Callable[[str, Mapping[str, Any]], Rows], scope: Scope) -> ReportChanges | None:
    """Return what changed, the largest changes first. None: the lake has no days to compare."""
    days = days_of(scope)
    if not days.now or not days.before:
        return None
    changes = [change for measure in MEASURES for change in _find_changes(fetch, measure, scope, days)]
    silent = {change.source for change in changes if change.measure == Compared.SILENT_HOURS}
    changes = [change for change in changes if change.measure != Compared.NO_ROWS or change.source not in silent]
    listed = list_changes(changes)
    omitted = Counter(change.measure for change in changes)
    omitted -= Counter(change.measure for incident in listed for change in (incident, *incident.parts))
    return ReportChanges(_rule(scope, days), listed, omitted, days.before)


def list_changes(changes: Iterable[ReportChange]) -> tuple[ReportChange, ...]:
    """Return the incidents and changes to list, the largest first.

    Parts of incidents that are not listed have places of their own. So invented versions cannot hide what failed.
    """
    rows = incidents(sorted(changes, key=_by_size))
    listed = _largest(rows)
    listed_ids = set(map(id, listed))
    parts = [part for row in rows if id(row) not in listed_ids for part in row.parts]
    return tuple(replace(row, parts=_largest(row.parts)) for row in _largest([*listed, *parts]))


def _by_size(change: ReportChange) -> tuple[int, str, str]:
    return -change.size, change.measure, change.text


def _largest(changes: Iterable[ReportChange]) -> tuple[ReportChange, ...]:
    """Return as many changes of each measure as are listed, the largest ones, in order of size."""
    limits = {measure.compared.value: measure.max_listed for measure in MEASURES}
    seen, listed = Counter[str](), list[ReportChange]()
    for change in sorted(changes, key=_by_size):
        seen[change.measure] += 1
        if seen[change.measure] <= limits[change.measure]:
            listed.append(change)
    return tuple(listed)


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
        " servers or other sources. An incident has at most as many parts of a measure."
    )
    return (
        days_sentence,
        *(f"{measure.compared.capitalize()}: {measure.rule}" for measure in MEASURES),
        INCIDENT_RULE,
    )


def incidents(changes: Iterable[ReportChange]) -> list[ReportChange]:
    """Return the changes in their order, with those of the same incident as parts of the one that tells most.

    An attack shows in several measures, and is one incident.
    """
    remaining = list(changes)
    for signs, effects in INCIDENT_KINDS:
        leads = [change for change in remaining if change.measure in signs]
        caused = [change for change in remaining if change.measure in effects]
        parts: dict[int, list[ReportChange]] = {}  # by id, because there may be thousands, which are slow to compare
        taken = set[int]()
        for lead in sorted(leads, key=lambda change: signs.index(change.measure)):
            if id(lead) not in taken:
                at_server = [change for change in leads if change.source == lead.source is not None]
                parts[id(lead)] = _parts(lead, at_server, [change for change in caused if id(change) not in taken])
                taken.update(map(id, parts[id(lead)]))
        remaining = [
            replace(change, parts=tuple(parts.get(id(change), change.parts)))
            for change in remaining
            if id(change) not in taken
        ]
    return remaining


def _parts(lead: ReportChange, at_server: list[ReportChange], caused: list[ReportChange]) -> list[ReportChange]:
    """Return those of the signs at the lead's server, and of the failures, that are of the same incident."""
    days = {*lead.days}
    while more := {day for sign in at_server if not days.isdisjoint(sign.days) for day in sign.days} - days:
        days |= more
    return [sign for sign in at_server if sign is not lead and not days.isdisjoint(sign.days)] + [
        change for change in caused if days.issuperset(change.days) and _can_cause(lead, change)
    ]


def _can_cause(lead: ReportChange, failures: ReportChange) -> bool:
    """Return whether what happened at a server, or a version, can be the reason for failures on its days."""
    if lead.version is not None:
        return _size_at(lead, failures.source, failures.days) >= MIN_OF_VERSION * failures.size
    if failures.version is not None:
        return _size_at(failures, lead.source, failures.days) >= MIN_AT_SERVER * failures.size
    return failures.source == lead.source


def _size_at(of_version: ReportChange, server: str | None, days: Iterable[date]) -> float:
    return sum(of_version.size_at.get((day, server), 0.0) for day in days)
