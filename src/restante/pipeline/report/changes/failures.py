"""Shares of failed mailboxes, of each server and of each client version. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from restante.pipeline.report.changes.measure import (
    COMPARED,
    MAX_OF_VERSIONS,
    MIN_DAYS_BEFORE,
    Compared,
    Days,
    Measure,
    days_text,
    printable_name,
    quoted_name,
    runs_of_days,
)
from restante.pipeline.report.changes.statistics import (
    LEFT_OUT,
    MIN_EVIDENCE,
    MIN_MORE,
    MIN_RISE,
    Portion,
    excess,
    ordinary,
    rose,
    sum_portions,
)
from restante.pipeline.report.model import ReportChange, ValueKind
from restante.pipeline.report.sections.subject import DAYS, Rows
from restante.pipeline.report.values import share_text
from restante.pipeline.tables.top_n import OTHER_NAME

MIN_MAILBOXES: Final = 20
"""Mailboxes of a version in the period. Of fewer, even the failure of half is not much more than MIN_MORE."""

MAX_VERSIONS: Final = 200
"""Versions that are compared: those with the most failed mailboxes. Clients may send a hundred thousand; what is not
among the first affects few."""

MIN_OWN_DAYS: Final = 7
"""Days before with mailboxes of a version, from which on it is compared with itself. A bad release is used for some
days before it is withdrawn, and these days must not become the usual ones. A version that has failed for a week is no
change."""

MIN_MAILBOXES_BEFORE: Final = 100
"""Mailboxes of the days before, from which a share is known to a few hundredths."""

_COUNTS: Final = "sum(mailboxes - happy), sum(mailboxes)"
_KNOWN: Final = "FROM versions WHERE attribution = 'version'"
_NAMED: Final = (
    f"SELECT implementation, version {_KNOWN} AND {DAYS} AND implementation <> '' AND version IS NOT NULL"
    f" AND NOT (implementation = '{OTHER_NAME}' AND version = '{OTHER_NAME}')"  # rare ones together
    f" GROUP BY ALL HAVING sum(mailboxes) >= {MIN_MAILBOXES}"
    f" ORDER BY sum(mailboxes - happy) DESC, implementation, version LIMIT {MAX_VERSIONS}"
)

ByDay = dict[date, Portion]


def server_failures(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the servers at which a larger share of mailboxes failed."""
    changes = []
    for source, by_day in _by_name(rows["servers"]).items():
        compared = [by_day[day] for day in days.before if day in by_day]
        usual = ordinary(compared)
        before = sum_portions(usual)
        for spell in risen(by_day, before, days) if len(compared) >= MIN_DAYS_BEFORE else ():
            now = sum_portions(by_day[day] for day in spell)
            text = (
                f", {share_text(now.share)} of the mailboxes failed {days_text(spell)}."
                f" {_before(usual, compared)}, {share_text(before.share)} failed."
            )
            sentence = ("At ", printable_name(source), text)
            changes.append(
                ReportChange(
                    "results",
                    sentence,
                    before.share,
                    now.share,
                    ValueKind.SHARE,
                    Compared.FAILURES_OF_SERVER,
                    source=source,
                    days=spell,
                    size=excess(now, before),
                )
            )
    return changes


def version_failures(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the client versions of whose mailboxes a larger share failed."""
    versions: dict[tuple[str, str], dict[date, dict[str, Portion]]] = defaultdict(lambda: defaultdict(dict))
    for day, client, version, source, *counts in rows["versions"]:
        versions[client, version][day][source] = Portion(*counts)
    clients = _by_name(rows["clients"])
    everyone = {day: Portion(*counts) for day, *counts in rows["everyone"]}
    changes = []
    for (client, version), at_servers in versions.items():
        by_day = {day: sum_portions(portions.values()) for day, portions in at_servers.items()}
        whose, compared = _compared(by_day, clients[client], everyone, days)
        usual = ordinary(compared)
        before = sum_portions(usual)
        for spell in risen(by_day, before, days) if len(compared) >= MIN_DAYS_BEFORE else ():
            now = sum_portions(by_day[day] for day in spell)
            text = (
                f", {share_text(now.share)} failed"
                f" {days_text(spell)}. {_before(usual, compared)}, {share_text(before.share)} of {whose} failed."
                " Any client can claim any version."
            )
            sentence = ("Of the mailboxes of ", quoted_name(client), " ", quoted_name(version), text)
            changes.append(
                ReportChange(
                    "versions",
                    sentence,
                    before.share,
                    now.share,
                    ValueKind.SHARE,
                    Compared.FAILURES_OF_VERSION,
                    implementation=client,
                    version=version,
                    days=spell,
                    size=excess(now, before),
                    size_at={
                        (day, source): portion.part - before.share * portion.total
                        for day in spell
                        for source, portion in at_servers[day].items()
                    },
                )
            )
    return changes


def _before(usual: list[Portion], compared: list[Portion]) -> str:
    return f"On {len(usual)} of the {len(compared)} days before"


def _compared(own: ByDay, client: ByDay, everyone: ByDay, days: Days) -> tuple[str, list[Portion]]:
    """Return with what a version is compared: with itself, all versions of the client, or all clients."""
    choices = (("those of this version", own), ("those of the client", client))
    for (whose, by_day), min_days in zip(choices, (MIN_OWN_DAYS, MIN_DAYS_BEFORE), strict=True):
        compared = [by_day[day] for day in days.before if day in by_day and by_day[day].total]
        if len(compared) >= min_days and sum_portions(compared).total >= MIN_MAILBOXES_BEFORE:
            return whose, compared
    return "those of all clients", [everyone[day] for day in days.before if day in everyone]


def _by_name(rows: Rows) -> dict[Any, ByDay]:
    portions: dict[Any, ByDay] = defaultdict(dict)
    for day, name, failed, mailboxes in rows:
        portions[name][day] = Portion(failed, mailboxes)
    return portions


def risen(by_day: ByDay, before: Portion, days: Days) -> list[tuple[date, ...]]:
    """Return the runs of days of the period on which a larger share failed than before.

    Each day is judged. The others are judged together, so that few mailboxes a day are enough. Of these, the
    days with a larger share are returned, also if there are gaps between them: only together they are evidence.
    """
    judged = {day: by_day[day] for day in days.now if day in by_day and by_day[day].total}
    alone = {day for day, part in judged.items() if rose(part, before)}
    rest = {day: part for day, part in judged.items() if day not in alone}
    higher = {day: part for day, part in rest.items() if part.share - before.share >= MIN_RISE}
    together = all(rose(sum_portions(parts.values()), before) for parts in (rest, higher))
    return runs_of_days(alone, judged) + [tuple(higher)] * together


SERVERS_MEASURE: Final = Measure(
    ("outcomes",),
    {
        "servers": "SELECT day, source, sum(ended - happy), sum(ended) FROM outcomes"  # noqa: S608 - constants
        f" WHERE {COMPARED} AND kind <> 'nameplate' GROUP BY ALL ORDER BY ALL"
    },
    server_failures,
    Compared.FAILURES_OF_SERVER,
    f"On a day, the share of a server's mailboxes that did not end happy is larger than before by {100 * MIN_RISE:g}"
    f" percentage points, by {MIN_MORE} mailboxes, and not by chance: the logarithm of the likelihood ratio of two"
    f" shares to one is at least {MIN_EVIDENCE:g}. Of the days before, the {LEFT_OUT:.0%} with the highest shares are"
    f" left out. Days that are no change alone are judged together. The server must have mailboxes on"
    f" {MIN_DAYS_BEFORE} days before.",
)
VERSIONS_MEASURE: Final = Measure(
    ("versions",),
    {
        "versions": f"SELECT day, implementation, version, source, {_COUNTS} {_KNOWN} AND {COMPARED}"
        f" AND (implementation, version) IN ({_NAMED}) GROUP BY ALL ORDER BY ALL",
        "clients": f"SELECT day, implementation, {_COUNTS} {_KNOWN} AND {COMPARED}"  # noqa: S608 - constants
        f" AND implementation IN (SELECT implementation FROM ({_NAMED})) GROUP BY ALL ORDER BY ALL",
        "everyone": f"SELECT day, {_COUNTS} {_KNOWN} AND {COMPARED} GROUP BY day ORDER BY day",
    },
    version_failures,
    Compared.FAILURES_OF_VERSION,
    f"The same, of a version with at least {MIN_MAILBOXES} mailboxes. Of more than {MAX_VERSIONS} versions, those"
    " with the most failed mailboxes are judged. A version is compared with itself if it has mailboxes on"
    f" {MIN_OWN_DAYS} days before and {MIN_MAILBOXES_BEFORE} together; otherwise with all versions of the client, if"
    f" these have mailboxes on {MIN_DAYS_BEFORE} days before and {MIN_MAILBOXES_BEFORE} together; otherwise with all"
    " clients."
    " Any client can claim any version.",
    MAX_OF_VERSIONS,
)
