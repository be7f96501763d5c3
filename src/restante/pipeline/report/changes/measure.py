"""What a measure is made of, and which days it compares. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from restante.common.texts import counted, in_one_line
from restante.pipeline.report.model import Name, ReportChange
from restante.pipeline.report.periods import PeriodKind, day_in_words
from restante.pipeline.report.sections.subject import Rows, Scope

MAX_DAYS_BEFORE: Final = 28
"""Days with which a day is compared: each day of the week four times."""

MIN_DAYS_BEFORE: Final = 4
"""Days before, with records of what is compared. With fewer, one unusual day decides. The table `guesses` asks for as
many."""

MAX_NAME_CHARACTERS: Final = 60
"""Characters of a name in a sentence. Clients choose names of up to 128."""

MAX_OF_SOURCES: Final = 10
"""Changes of one measure that a report lists, of sources. Most fleets have fewer sources. If more have changed,
something has happened to all."""

MAX_OF_VERSIONS: Final = 5
"""Changes that a report lists, of client versions. They are fewer than those of sources, because anyone can invent
versions. Each measure has a limit of its own, so that these cannot displace other changes."""

MAX_LISTED_DAYS: Final = 7
"""Days with gaps that a sentence lists."""

COMPARED: Final = "day BETWEEN $start AND $last"
"""The condition of rows of the period and of the days before."""


class Compared(StrEnum):
    """What is compared: the names in CSV and JSON, which stay the same in later versions."""

    FAILURES_OF_SERVER = "failed mailboxes of a server"
    FAILURES_OF_VERSION = "failed mailboxes of a version"
    SILENT_HOURS = "hours without connections"
    NO_ROWS = "source without rows"
    MISSING = "missing envelopes"
    GUESSES = "results of guesses"
    ONE_SIDE = "nameplates of one side"


class Days(NamedTuple):
    """The days of a period, and the days before with which they are compared."""

    now: tuple[date, ...]
    before: tuple[date, ...]


def days_of(scope: Scope) -> Days:
    """Return the days to compare, as far as the lake has records of them."""
    period = scope.period
    if period.kind is PeriodKind.DAY:
        before = tuple(period.first - timedelta(back) for back in range(MAX_DAYS_BEFORE, 0, -1))
    else:
        before = period.before.days
    return Days(*(tuple(filter(scope.has, days)) for days in (period.days, before)))


class Measure(NamedTuple):
    """Something that is compared."""

    tables: tuple[str, ...]
    """The built tables that its queries read."""
    queries: Mapping[str, str]
    """SQL by name."""
    find_changes: Callable[[Mapping[str, Rows], Days], list[ReportChange]]
    """Returns what changed, from the rows of each query."""
    compared: Compared
    rule: str
    """Sentences: what counts as a change."""
    max_listed: int = MAX_OF_SOURCES
    """Changes that a report lists, the largest ones. An incident has at most as many parts of the measure."""


def runs_of_days(days: Iterable[date], recorded: Iterable[date]) -> list[tuple[date, ...]]:
    """Return days in runs without a gap. `recorded` has all days with records, so a day without any is no gap."""
    flagged, runs, goes_on = {*days}, list[tuple[date, ...]](), False
    for day in sorted(flagged | {*recorded}):
        if day in flagged:
            runs = [*runs[:-1], (*runs[-1], day)] if goes_on else [*runs, (day,)]
        goes_on = day in flagged
    return runs


def days_text(days: Iterable[date]) -> str:
    """Return days in words. Days with gaps between them are listed, if they are few."""
    in_order = sorted(days)
    first_day, last_day = in_order[0], in_order[-1]
    if first_day == last_day:
        return f"on {day_in_words(first_day)}"
    if (last_day - first_day).days >= len(in_order) and len(in_order) <= MAX_LISTED_DAYS:
        return f"on {', '.join(map(day_in_words, in_order[:-1]))} and {day_in_words(last_day)}"
    return f"on {counted(len(in_order), 'day')} from {day_in_words(first_day)} to {day_in_words(last_day)}"


def before_words(number: int) -> str:
    """Return the days before in words."""
    return f"On {'the day' if number == 1 else f'the {number} days'} before"


def quoted_name(name: str) -> Name:
    """Return a name that a client chose as a sentence may contain it, so that it cannot seem to be part of it."""
    return Name('"{}"'.format(printable_name(name).text.replace('"', "'")))


def printable_name(name: str) -> Name:
    """Return a name as a sentence may contain it."""
    return Name(in_one_line(name, MAX_NAME_CHARACTERS) or "(empty)")
