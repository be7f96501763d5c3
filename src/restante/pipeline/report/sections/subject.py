"""What a section is made of: queries of built tables, and a function of their rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from restante.common.texts import counted
from restante.pipeline.report.model import Fact, ReportColumn, Section, ValueKind
from restante.pipeline.report.periods import LakeDays, Period
from restante.pipeline.report.top_rows import NamedCounts
from restante.pipeline.tables.top_n import MAX_NAMES, OTHER_NAME

Rows: TypeAlias = Sequence[tuple[Any, ...]]
"""The rows of a query, with Python's values."""

HOURS_A_DAY: Final = 24

DAYS: Final = "day BETWEEN $first AND $last"
"""The condition of rows of a period. The parameters are the days of its ends."""


class Scope(NamedTuple):
    """Which days a report covers, and when it is made."""

    period: Period
    lake_days: LakeDays | None
    """The days of the lake. None: it has no records."""
    made: datetime
    lonely_guesses: int = 0
    """Nameplates of one side that are suspected guesses: how many more there are than usual."""

    def has(self, day: date) -> bool:
        """Return whether the lake may have records of a day. If not, its counts are not known, rather than 0."""
        return self.lake_days is not None and self.lake_days.first <= day <= self.lake_days.last


class Subject(NamedTuple):
    """What a section is about."""

    tables: tuple[str, ...]
    """The built tables that its queries read."""
    queries: Mapping[str, str]
    """SQL by name. It reads whole days, and adds up counts."""
    section: Callable[[Mapping[str, Rows], Scope], Section]
    """Makes the section of the rows of each query."""


RESULT_MEANINGS: Final[Mapping[str, str]] = {
    "happy": "Two sides joined.",
    "lonely": "Only one side joined.",
    "errory": "A client reported an error.",
    "scary": "The two sides had different codes.",
    "pruney": "It was deleted, because it was idle for too long.",
    "crowded": "A third side was refused.",
}
"""The results, in the order in which charts stack them, and their meanings."""

DAY_COLUMN: Final = ReportColumn("day", "Day", ValueKind.DAY)
HOUR_COLUMN: Final = ReportColumn("hour", "Hour", ValueKind.COUNT, "Hour of the day (UTC).")
MAILBOX_SERVER_COLUMN: Final = ReportColumn("source", "Server", ValueKind.TEXT)
MAILSERVER_COLUMN: Final = ReportColumn("source", "Mailserver", ValueKind.TEXT)
NAMES_COLUMN: Final = ReportColumn(
    "names",
    "Names",
    ValueKind.COUNT,
    "How many names the row adds up. More than 1: all that are not listed.",
    usual=1,
)
RESULT_COLUMNS: Final = tuple(
    ReportColumn(name, name.capitalize(), ValueKind.COUNT, meaning) for name, meaning in RESULT_MEANINGS.items()
)
RESULT_SUMS: Final = ", ".join(f"sum({name})" for name in RESULT_MEANINGS)
"""The sums of the results in SQL."""

ALL_OTHERS: Final = "all others"
"""The name of a row that adds up all names that are not listed. `names` tells it from a client that has this name."""

OTHER_APPLICATION: Final = (OTHER_NAME,)
OTHER_VERSION: Final = (OTHER_NAME, OTHER_NAME)
"""What built tables have in place of rare names."""


def count_column(name: str, head: str, meaning: str = "") -> ReportColumn:
    """Return a column of counts."""
    return ReportColumn(name, head, ValueKind.COUNT, meaning)


def text_column(name: str, head: str, meaning: str = "", absent: str = "(none)") -> ReportColumn:
    """Return a column of texts."""
    return ReportColumn(name, head, ValueKind.TEXT, meaning, absent)


def name_remarks(rows: Sequence[NamedCounts]) -> tuple[str, ...]:
    """Return a sentence if the number of names of a table's last row is the least that it may be."""
    return tuple(
        f'The row "{ALL_OTHERS}" has {counted(row.names, "name")} or more: the lake has the {MAX_NAMES:,} most'
        " frequent names of each server and day, and adds up the others."
        for row in rows
        if row.has_more
    )


def number_of_names(head: str, rows: Sequence[NamedCounts]) -> Fact:
    """Return how many different names there are, or how many at least."""
    at_least = ", at least" if any(row.has_more for row in rows) else ""
    return Fact(f"{head}{at_least}", sum(row.names for row in rows), ValueKind.COUNT)


def share_of(part: int | None, total: int | None) -> float | None:
    """Return a part of a whole. None: there is no whole, or one is not known."""
    return part / total if total and part is not None else None


def moment(us: int | None) -> datetime | None:
    """Return a time from microseconds since 1970."""
    return None if us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def daily(rows: Rows, scope: Scope, width: int) -> list[tuple[Any, ...]]:
    """Return a row for each day of the period: day, counts. Days without a row have 0, or None if they are not known.

    The rows begin with their day; `width` is how many counts follow.
    """
    by_day = {row[0]: row for row in rows}
    return [by_day.get(day, (day, *(0 if scope.has(day) else None,) * width)) for day in scope.period.days]


def hourly(rows: Rows, scope: Scope, width: int) -> list[tuple[Any, ...]]:
    """Return a row for each hour of a day: hour, counts. Hours that had not begun when the report was made have None.

    The rows begin with their hour, None: it is not known; `width` is how many counts follow.
    """
    by_hour = {row[0]: row for row in rows}
    now = scope.made.astimezone(UTC)
    begun = now.hour + 1 if now.date() == scope.period.first else HOURS_A_DAY
    return [by_hour.get(hour, (hour, *(0 if hour < begun else None,) * width)) for hour in range(HOURS_A_DAY)]


def blurred_remarks(number: int, unit: str) -> tuple[str, ...]:
    """Return a sentence about what has no hour, if there is any."""
    return (f"Left out: {counted(number, unit)}, because the server rounds times to more than an hour.",) * bool(
        number
    )
