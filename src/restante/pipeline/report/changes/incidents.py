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
    left = list(changes)
    for signs, effects in KINDS:
        for lead in sorted((one for one in left if one.measure in signs), key=lambda one: signs.index(one.measure)):
            if lead in left:
                parts = _parts(lead, left, signs, effects)
                left = [replace(lead, parts=tuple(parts)) if one == lead else one for one in left if one not in parts]
    return left


def _parts(
    lead: ReportChange, changes: list[ReportChange], signs: tuple[Compared, ...], effects: tuple[Compared, ...]
) -> list[ReportChange]:
    days, parts = {*lead.days}, list[ReportChange]()
    others = [
        one for one in changes if one.measure in signs and one.source == lead.source is not None and one != lead
    ]
    while joined := [one for one in others if one not in parts and not days.isdisjoint(one.days)]:
        parts += joined
        days.update(day for one in joined for day in one.days)
    caused = (one for one in changes if one.measure in effects and days.issuperset(one.days))
    return parts + [one for one in caused if one.source in {None, lead.source} or _is_of_version(lead, one)]


def _is_of_version(lead: ReportChange, failures: ReportChange) -> bool:
    """Return whether a version can be the reason why mailboxes of a server failed: more of its own did."""
    return lead.version is not None and failures.size <= lead.size
