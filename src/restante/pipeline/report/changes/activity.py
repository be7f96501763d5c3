"""Servers without connections for hours, and sources without rows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Final

from restante.pipeline.report.changes.measure import (
    COMPARED,
    MIN_DAYS_BEFORE,
    Compared,
    Days,
    Measure,
    before_words,
    days_text,
    printable_name,
    runs_of_days,
)
from restante.pipeline.report.changes.statistics import MIN_EXPECTED, Silence, silence
from restante.pipeline.report.model import ReportChange, ValueKind
from restante.pipeline.report.sections.subject import HOURS_A_DAY, Rows, moment

MIN_DAYS_WITH_ROWS: Final = 7
"""Days before, on each of which a source must have rows: a source that has none on Sundays is then not named."""

_NEVER: Final = -1

_COUNTS: Final = (
    ("busy_hours", "connections + mailboxes + nameplates"),
    ("relay_hours", "ended"),
    ("coverage", "envelopes"),
    ("times", '"count"'),
)
"""The tables with a row for each source of a kind and day on which it has something, and what they count."""

_DELIVERED: Final = " UNION ALL ".join(
    f"SELECT source, day, sum({counts}) FROM {table} WHERE {COMPARED} GROUP BY ALL"  # noqa: S608 - constants
    for table, counts in _COUNTS
)


def silent_hours(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the servers that had no connections in hours in which they had some on the days before."""
    changes = []
    for source, of in _hours(rows).items():
        before = [of[day] for day in days.before if day in of and _NEVER not in of[day]]
        silent: dict[date, Silence] = {}
        for day in days.now:
            now = of.get(day, {})
            if len(before) >= MIN_DAYS_BEFORE and _NEVER not in now:
                longest = silence([hour for hour in now if now[hour]], _known_hours(day, rows["fed"]), before)
                silent |= {day: longest} if longest else {}
        for spell in runs_of_days(silent, of):
            day, largest = max(((day, silent[day]) for day in spell), key=lambda item: item[1].expected)
            more = "" if len(spell) == 1 else f" It is one of {len(spell)} such days in a row."
            text = (
                f" {days_text([day])} from {largest.first_hour:02}:00 to {largest.last_hour + 1:02}:00 UTC: the"
                f" server had none, or it was not read.{more} On three quarters of the days before, it had at least"
                f" {largest.expected} in these hours."
            )
            sentence = ("The lake has no connections of ", printable_name(source), text)
            changes.append(
                ReportChange(
                    "busy-hours",
                    sentence,
                    largest.expected,
                    0,
                    ValueKind.COUNT,
                    Compared.SILENT_HOURS,
                    source=source,
                    days=spell,
                    size=sum(silent[day].expected for day in spell),
                )
            )
    return changes


def _hours(rows: Mapping[str, Rows]) -> dict[str, dict[date, dict[int, int]]]:
    """Return the connections of each server, day and hour. The hour is _NEVER if it is not known."""
    connections_by_source: dict[str, dict[date, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for source, day, hour, connections in rows["hours"]:
        connections_by_source[source][day][_NEVER if hour is None else hour] = connections
    return connections_by_source


def _known_hours(day: date, fed: Rows) -> int:
    """Return how many hours of a day were over when rows were last read."""
    last_ingest = moment(fed[0][0]) if fed else None
    if last_ingest is None or last_ingest.date() > day:
        return HOURS_A_DAY if last_ingest else 0
    return last_ingest.hour if last_ingest.date() == day else 0


def stopped_sources(rows: Mapping[str, Rows], days: Days) -> list[ReportChange]:
    """Return the sources that have no rows in the period, and had some on each day before."""
    counts_by_source: dict[str, dict[date, int]] = defaultdict(dict)
    for source, day, number in rows["delivered"]:
        counts_by_source[source][day] = counts_by_source[source].get(day, 0) + number
    changes = []
    for source, counts in counts_by_source.items():
        days_with_rows = [day for day in days.before if counts.get(day)]
        if len(days_with_rows) == len(days.before) >= MIN_DAYS_WITH_ROWS and not any(map(counts.get, days.now)):
            usual = sum(counts[day] for day in days_with_rows) // len(days_with_rows)
            text = f" {days_text(days.now)}. {before_words(len(days_with_rows))}, it had {usual:,} a day."
            sentence = ("The lake has no rows of ", printable_name(source), text)
            changes.append(
                ReportChange(
                    "sources",
                    sentence,
                    usual,
                    0,
                    ValueKind.COUNT,
                    Compared.NO_ROWS,
                    source=source,
                    days=days.now,
                    size=usual * len(days.now),
                )
            )
    return changes


SILENT_HOURS_MEASURE: Final = Measure(
    ("busy_hours", "sources"),
    {
        "hours": "SELECT source, day, hour, sum(connections) FROM busy_hours"  # noqa: S608 - constants
        f" WHERE {COMPARED} GROUP BY ALL ORDER BY ALL",
        "fed": "SELECT epoch_us(max(last_ingest)) FROM sources",
    },
    silent_hours,
    Compared.SILENT_HOURS,
    "The lake has no connections of a server for one or more hours in a row, in which it had at least"
    f" {MIN_EXPECTED} on three quarters of the days before. It must have connections on {MIN_DAYS_BEFORE} days"
    " before. Hours after the last ingest of any source are not judged. A server that was not read looks like one"
    " without connections.",
)
STOPPED_MEASURE: Final = Measure(
    tuple(table for table, _ in _COUNTS),
    {"delivered": f"{_DELIVERED} ORDER BY ALL"},
    stopped_sources,
    Compared.NO_ROWS,
    f"A source has no rows in the period, and it has rows of each day before, {MIN_DAYS_WITH_ROWS} days or more. A"
    f" server that is listed under {Compared.SILENT_HOURS} is not listed again.",
)
