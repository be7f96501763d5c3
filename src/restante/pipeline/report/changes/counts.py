"""Envelopes that a Mailserver lacks, and what guesses of codes leave behind. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Final, NamedTuple

from restante.common.texts import counted
from restante.pipeline.report.changes.measure import (
    COMPARED,
    MIN_DAYS_BEFORE,
    Compared,
    Days,
    Measure,
    before_words,
    days_text,
    printable_name,
    quoted_name,
    runs_of_days,
)
from restante.pipeline.report.changes.statistics import DEVIATIONS, Portion, excess, median, sum_portions, threshold
from restante.pipeline.report.model import ReportChange, ValueKind
from restante.pipeline.report.sections.subject import DAYS, Rows
from restante.pipeline.report.values import share_text

MIN_MISSING_SHARE: Final = 0.005
"""By how much the share of missing envelopes must exceed the median: seven minutes of a day."""

MIN_MISSING: Final = 3
"""Missing envelopes of a day: one or two may be on their way when an archive is read."""

MIN_CLAIMS: Final = 50
"""By how many nameplates of one side a day must exceed the median: four guesses an hour for half a day."""

MIN_CLAIMS_SHARE: Final = 1.0
"""And by which share of the median: twice as many users, too, claim twice as many nameplates in vain."""

GUESSES_DAYS: Final = 7
GUESSES_MADS: Final = 6
GUESSES_MIN_EXCESS: Final = 10
GUESSES_MIN_EXCESS_SHARE: Final = 2
"""The numbers of the rule of the table `guesses`, for the text of the rule. The table has judged already."""


class Suspects(NamedTuple):
    """The application of a server and day that stands out most, and how many stand out together."""

    day: date
    app_id: str
    number: int
    threshold: int
    usual: int
    """The median of the days before."""
    applications: int
    excess: int
    """By how much the results of these applications exceed their medians."""


def missing_envelopes(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the Mailservers that lack more envelopes than on the days before."""
    portions_by_source: dict[str, dict[date, Portion]] = defaultdict(dict)
    for source, day, lacks, envelopes in rows["missing"]:
        portions_by_source[source][day] = Portion(lacks, lacks + envelopes)
    changes = []
    for source, portions in portions_by_source.items():
        before = [portions[day].share for day in days.before if day in portions]
        if not before:
            continue
        limit, usual = threshold(before, MIN_MISSING_SHARE), median(before)
        flagged = {
            day: portions[day]
            for day in days.now
            if day in portions and portions[day].share > limit and excess(portions[day], _share(usual)) >= MIN_MISSING
        }
        for spell in runs_of_days(flagged, portions):
            now = sum_portions(flagged[day] for day in spell)
            text = (
                f" lacks {now.part:,} of {counted(now.total, 'envelope')} that were sent"
                f" {days_text(spell)} ({share_text(now.share)}). {before_words(len(before))}, the median is"
                f" {share_text(usual)}."
            )
            sentence = (printable_name(source), text)
            changes.append(
                ReportChange(
                    "coverage",
                    sentence,
                    usual,
                    now.share,
                    ValueKind.SHARE,
                    Compared.MISSING,
                    source=source,
                    days=spell,
                    size=excess(now, _share(usual)),
                )
            )
    return changes


def _share(share: float) -> Portion:
    return Portion(round(share * 1_000_000), 1_000_000)


def guess_results(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the servers with days on which an application stands out by the rule of the table `guesses`."""
    largest_by_source: dict[str, dict[date, Suspects]] = defaultdict(dict)
    for source, *values in rows["suspects"]:
        largest = Suspects(*values)
        largest_by_source[source][largest.day] = largest
    changes = []
    for source, spell in (
        (source, spell) for source, flagged in largest_by_source.items() for spell in runs_of_days(flagged, days.now)
    ):
        flagged = [largest_by_source[source][day] for day in spell]
        largest = max(flagged, key=lambda day: day.number - day.usual)
        together = sum(day.applications for day in flagged)
        more = ""
        if together > 1:
            unit = "application" if len(spell) == 1 else "application and day"
            more = f" This is the largest of {together:,} such counts {days_text(spell)}, one for each {unit}."
        text = (
            f" {days_text([largest.day])} look like guesses of codes. More than {largest.threshold:,} stand out, and"
            f" the median of the {GUESSES_DAYS} days before is {largest.usual:,}.{more}"
        )
        results = f", {counted(largest.number, 'result')} of the application "
        sentence = ("At ", printable_name(source), results, quoted_name(largest.app_id), text)
        changes.append(
            ReportChange(
                "guesses",
                sentence,
                largest.usual,
                largest.number,
                ValueKind.COUNT,
                Compared.GUESSES,
                source=source,
                days=spell,
                size=sum(day.excess for day in flagged),
            )
        )
    return changes


def one_side_claims(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the servers with more nameplates that only one side claimed than on the days before."""
    counts_by_source: dict[str, dict[date, int]] = defaultdict(dict)
    for source, day, number in rows["claims"]:
        counts_by_source[source][day] = number
    changes = []
    for source, counts in counts_by_source.items():
        before = [counts[day] for day in days.before if day in counts]
        if len(before) < MIN_DAYS_BEFORE:
            continue
        limit, usual = threshold(before, MIN_CLAIMS, MIN_CLAIMS_SHARE), int(median(before))
        flagged = {day: counts[day] for day in days.now if counts.get(day, 0) > limit}
        for spell in runs_of_days(flagged, counts):
            now = max(flagged[day] for day in spell)
            many = counted(now, "nameplate") if len(spell) == 1 else f"up to {counted(now, 'nameplate')} a day"
            text = (
                f", {many} had one side only {days_text(spell)}."
                f" Somebody may try nameplates. {before_words(len(before))}, the median is {usual:,}."
            )
            sentence = ("At ", printable_name(source), text)
            changes.append(
                ReportChange(
                    "guesses",
                    sentence,
                    usual,
                    now,
                    ValueKind.COUNT,
                    Compared.ONE_SIDE,
                    source=source,
                    days=spell,
                    size=sum(flagged[day] for day in spell) - usual * len(spell),
                )
            )
    return changes


MISSING_MEASURE: Final = Measure(
    ("coverage",),
    {
        "missing": "SELECT source, day, sum(missing), sum(envelopes) FROM coverage"  # noqa: S608 - constants
        f" WHERE {COMPARED} GROUP BY ALL ORDER BY ALL"
    },
    missing_envelopes,
    Compared.MISSING,
    "On a day, the share of envelopes that a Mailserver lacks exceeds the median of the days before by"
    f" {100 * MIN_MISSING_SHARE:g} percentage points and by {DEVIATIONS} median absolute deviations, and it lacks"
    f" {MIN_MISSING} envelopes more than the median lets expect. One day before is enough.",
)
SUSPECTS_MEASURE: Final = Measure(
    ("guesses",),
    {
        "suspects": "SELECT source, day, app_id, suspects, threshold, median, count(*) OVER on_day,"  # noqa: S608
        f" CAST(sum(suspects - median) OVER on_day AS BIGINT) FROM guesses WHERE {DAYS} AND stands_out"
        " WINDOW on_day AS (PARTITION BY source, day)"
        " QUALIFY row_number() OVER (PARTITION BY source, day ORDER BY suspects - median DESC, app_id) = 1"
        " ORDER BY source, day"
    },
    guess_results,
    Compared.GUESSES,
    "On a day, results of an application at a server that look like guesses of codes (nameplates with a third side"
    " and mailboxes whose sides had different codes) exceed the median of the"
    f" {GUESSES_DAYS} days before by {GUESSES_MADS} median absolute deviations, by {GUESSES_MIN_EXCESS}, and by the"
    f" median divided by {GUESSES_MIN_EXCESS_SHARE}. The server must have results on {MIN_DAYS_BEFORE} of these days."
    " This is the rule of the table guesses.",
)
CLAIMS_MEASURE: Final = Measure(
    ("guesses",),
    {
        "claims": "SELECT source, day, sum(lonely) FROM guesses"  # noqa: S608
        f" WHERE {COMPARED} GROUP BY ALL ORDER BY ALL"
    },
    one_side_claims,
    Compared.ONE_SIDE,
    "On a day, the nameplates of a server that only one side claimed exceed the median of the days before by"
    f" {MIN_CLAIMS_SHARE:.0%}, by {MIN_CLAIMS}, and by {DEVIATIONS} median absolute deviations. The server must have"
    f" nameplates on {MIN_DAYS_BEFORE} days before. Somebody who guesses codes leaves them.",
)
