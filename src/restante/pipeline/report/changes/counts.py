"""Envelopes that a Mailserver lacks, and what guesses of codes leave behind. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Final

from restante.common.plural import counted
from restante.pipeline.report.changes.measure import (
    COMPARED,
    MIN_DAYS_BEFORE,
    Compared,
    Days,
    Measure,
    before_words,
    shown,
    when,
)
from restante.pipeline.report.changes.statistics import DEVIATIONS, Portion, added, excess, median, threshold
from restante.pipeline.report.model import ReportChange, ValueKind
from restante.pipeline.report.sections.subject import DAYS, Rows
from restante.pipeline.report.values import share

MIN_MISSING_SHARE: Final = 0.005
"""By how much the share of missing envelopes must exceed the median: seven minutes of a day."""

MIN_MISSING: Final = 3
"""Missing envelopes of a day: one or two may be on their way when an archive is read."""

MIN_CLAIMS: Final = 50
"""By how many nameplates of one side a day must exceed the median: four guesses an hour for half a day."""

MIN_CLAIMS_SHARE: Final = 1.0
"""And by which share of the median: twice as many users, too, claim twice as many nameplates in vain."""

MAX_ROWS: Final = 1_000
"""Servers and applications whose suspects are read, of those that stand out."""


def missing(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the Mailservers that lack more envelopes than on the days before."""
    of: dict[str, dict[date, Portion]] = defaultdict(dict)
    for source, day, lacks, envelopes in rows["missing"]:
        of[source][day] = Portion(lacks, lacks + envelopes)
    found = []
    for source, parts in of.items():
        before = [parts[day].share for day in days.before if day in parts]
        if not before:
            continue
        most, usual = threshold(before, MIN_MISSING_SHARE), median(before)
        flagged = {
            day: parts[day]
            for day in days.now
            if day in parts and parts[day].share > most and excess(parts[day], _share(usual)) >= MIN_MISSING
        }
        if flagged:
            now = added(flagged.values())
            words = (
                f"{shown(source)} lacks {now.part:,} of {counted(now.whole, 'envelope')} that were sent"
                f" {when(flagged)} ({share(now.share)}). {before_words(len(before))}, the median is {share(usual)}."
            )
            found.append(
                ReportChange(
                    *("coverage", words, usual, now.share, ValueKind.SHARE, Compared.MISSING),
                    source=source,
                    days=tuple(sorted(flagged)),
                    size=excess(now, _share(usual)),
                )
            )
    return found


def _share(of: float) -> Portion:
    return Portion(round(of * 1_000_000), 1_000_000)


def suspects(rows: Mapping[str, Rows], _days: Days) -> list[ReportChange]:
    """Return the servers with days that stand out by the rule of the table `guesses`."""
    of: dict[str, list[tuple[date, int, int, int]]] = defaultdict(list)
    for source, day, number, most, usual in rows["suspects"]:
        of[source].append((day, number, most, usual))
    found = []
    for source, flagged in of.items():
        on = sorted({day for day, *_ in flagged})
        now, most, usual = map(sum, zip(*(numbers for _, *numbers in flagged), strict=True))
        words = (
            f"At {shown(source)}, {counted(now, 'result')} {when(on)} look like guesses of codes."
            f" More than {most:,} stand out, and the median of the 7 days before is {usual:,}."
        )
        found.append(
            ReportChange(
                *("guesses", words, usual, now, ValueKind.COUNT, Compared.GUESSES),
                source=source,
                days=tuple(on),
                size=now - usual,
            )
        )
    return found


def claims(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the servers with more nameplates that only one side claimed than on the days before."""
    of: dict[str, dict[date, int]] = defaultdict(dict)
    for source, day, number in rows["claims"]:
        of[source][day] = number
    found = []
    for source, counts in of.items():
        before = [counts[day] for day in days.before if day in counts]
        if len(before) < MIN_DAYS_BEFORE:
            continue
        most, usual = threshold(before, MIN_CLAIMS, MIN_CLAIMS_SHARE), int(median(before))
        flagged = {day: counts[day] for day in days.now if counts.get(day, 0) > most}
        if flagged:
            now = max(flagged.values())
            many = counted(now, "nameplate") if len(flagged) == 1 else f"up to {counted(now, 'nameplate')} a day"
            words = (
                f"At {shown(source)}, {many} had one side only {when(flagged)}."
                f" Somebody may try nameplates. {before_words(len(before))}, the median is {usual:,}."
            )
            found.append(
                ReportChange(
                    *("guesses", words, usual, now, ValueKind.COUNT, Compared.ONE_SIDE),
                    source=source,
                    days=tuple(sorted(flagged)),
                    size=sum(flagged.values()) - usual * len(flagged),
                )
            )
    return found


MISSING_MEASURE: Final = Measure(
    ("coverage",),
    {
        "missing": "SELECT source, day, sum(missing), sum(envelopes) FROM coverage"  # noqa: S608 - constants
        f" WHERE {COMPARED} GROUP BY ALL ORDER BY ALL"
    },
    missing,
    "A Mailserver lacks a share of envelopes that exceeds the median of the days before by half a percent of all, and"
    f" by {DEVIATIONS} median absolute deviations, and at least {MIN_MISSING} envelopes of a day.",
)
SUSPECTS_MEASURE: Final = Measure(
    ("guesses",),
    {
        "suspects": "SELECT source, day, suspects, threshold, median FROM guesses"  # noqa: S608
        f" WHERE {DAYS} AND stands_out ORDER BY suspects - threshold DESC, day, source, app_id LIMIT {MAX_ROWS}"
    },
    suspects,
    "A day stands out by the rule of the table guesses.",
)
CLAIMS_MEASURE: Final = Measure(
    ("guesses",),
    {
        "claims": "SELECT source, day, sum(lonely) FROM guesses"  # noqa: S608
        f" WHERE {COMPARED} GROUP BY ALL ORDER BY ALL"
    },
    claims,
    "At a server, nameplates that only one side claimed are more than twice the median of the days before, and exceed"
    f" it by {MIN_CLAIMS} and by {DEVIATIONS} median absolute deviations.",
)
