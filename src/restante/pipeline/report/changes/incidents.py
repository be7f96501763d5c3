"""Changes that belong together: an attack shows in several measures, and is one incident. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from restante.pipeline.report.changes.measure import Compared
from restante.pipeline.report.model import ReportChange

KINDS: Final = (
    ((Compared.GUESSES, Compared.ONE_SIDE), (Compared.FAILURES_OF_SERVER, Compared.FAILURES_OF_VERSION)),
    ((Compared.SILENT_HOURS,), (Compared.FAILURES_OF_SERVER,)),
    ((Compared.FAILURES_OF_VERSION,), (Compared.FAILURES_OF_SERVER,)),
)
"""The measures that show an incident of a kind, the most telling one first, and those that show what it can cause."""

INCIDENT_RULE: Final = (
    "Incidents: results of guesses and nameplates of one side are one incident if they are of the same server and"
    " have a day in common. Failures of this server, and failures of versions, are listed below it if they are on no"
    " other days. Failures of a server are listed below its hours without connections in the same way, and below the"
    " failures of a version that has more of them."
)


def incidents(changes: Iterable[ReportChange]) -> list[ReportChange]:
    """Return the changes in their order, with those of the same incident as parts of the one that tells most."""
    remaining = list(changes)
    for signs, effects in KINDS:
        leads = [change for change in remaining if change.measure in signs]
        for lead in sorted(leads, key=lambda change: signs.index(change.measure)):
            if lead in remaining:
                parts = _parts(lead, remaining, signs, effects)
                remaining[remaining.index(lead)] = replace(lead, parts=tuple(parts))
                remaining = [change for change in remaining if change not in parts]
    return remaining


def _parts(
    lead: ReportChange, changes: list[ReportChange], signs: tuple[Compared, ...], effects: tuple[Compared, ...]
) -> list[ReportChange]:
    days, parts = {*lead.days}, list[ReportChange]()
    others = [
        change
        for change in changes
        if change.measure in signs and change.source == lead.source is not None and change != lead
    ]
    while joined := [change for change in others if change not in parts and not days.isdisjoint(change.days)]:
        parts += joined
        days.update(day for change in joined for day in change.days)
    caused = (change for change in changes if change.measure in effects and days.issuperset(change.days))
    return parts + [
        change for change in caused if change.source in {None, lead.source} or _is_of_version(lead, change)
    ]


def _is_of_version(lead: ReportChange, failures: ReportChange) -> bool:
    """Return whether a version can be the reason why mailboxes of a server failed: more of its own did."""
    return lead.version is not None and failures.size <= lead.size
