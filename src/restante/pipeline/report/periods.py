"""Days, ISO weeks and months (UTC) for which there are reports, and which of their days the lake has. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from restante.common.errors import Misuse

MIN_YEAR: Final = 1970
MAX_YEAR: Final = 9998
"""Years of a report: those of the lake's times. Of a later year the end of the last week is no date of Python's."""

MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
"""Python's own names depend on the locale."""


class PeriodKind(StrEnum):
    """How long a period is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Period(NamedTuple):
    """A day, an ISO week (Monday to Sunday) or a month."""

    kind: PeriodKind
    first: date

    @property
    def last(self) -> date:
        """Return its last day."""
        return self.after.first - timedelta(1)

    @property
    def after(self) -> Period:
        """Return the period of this kind that follows."""
        return period_containing(self.kind, self.first + timedelta(_MAX_DAYS[self.kind]))

    @property
    def before(self) -> Period:
        """Return the period of this kind before it."""
        return period_containing(self.kind, self.first - timedelta(1))

    @property
    def days(self) -> tuple[date, ...]:
        """Return all its days in order."""
        return tuple(self.first + timedelta(number) for number in range((self.last - self.first).days + 1))

    @property
    def name(self) -> str:
        """Return what `parse` reads: 2026-11-21, 2026-W47 or 2026-11."""
        return _NAMES[self.kind](self.first)

    @property
    def title(self) -> str:
        """Return the period in words."""
        match self.kind:
            case PeriodKind.DAY:
                return f"{WEEKDAYS[self.first.weekday()]}, {day_in_words(self.first)}"
            case PeriodKind.WEEK:
                year, week, _ = self.first.isocalendar()
                return f"Week {week} of {year}, {day_in_words(self.first)} to {day_in_words(self.last)}"
            case PeriodKind.MONTH:
                return f"{MONTHS[self.first.month - 1]} {self.first.year}"


_MAX_DAYS: Final[Mapping[PeriodKind, int]] = {PeriodKind.DAY: 1, PeriodKind.WEEK: 7, PeriodKind.MONTH: 31}
"""So many days after its first day, no period is over later than the next one."""


def _week_name(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"


_NAMES: Final[Mapping[PeriodKind, Callable[[date], str]]] = {
    PeriodKind.DAY: date.isoformat,
    PeriodKind.WEEK: _week_name,
    PeriodKind.MONTH: lambda day: day.isoformat()[:7],
}

_FORMS: Final[tuple[tuple[PeriodKind, re.Pattern[str], Callable[..., date]], ...]] = (
    (PeriodKind.DAY, re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})"), date),
    (PeriodKind.WEEK, re.compile(r"([0-9]{4})-W([0-9]{2})"), lambda year, week: date.fromisocalendar(year, week, 1)),
    (PeriodKind.MONTH, re.compile(r"([0-9]{4})-([0-9]{2})"), lambda year, month: date(year, month, 1)),
)


def day_in_words(day: date) -> str:
    """Return a day in words: 21 November 2026."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def period_containing(kind: PeriodKind, day: date) -> Period:
    """Return the period of a kind that contains a day."""
    match kind:
        case PeriodKind.DAY:
            return Period(kind, day)
        case PeriodKind.WEEK:
            return Period(kind, day - timedelta(day.weekday()))
        case PeriodKind.MONTH:
            return Period(kind, day.replace(day=1))


def last_finished(kind: PeriodKind, today: date) -> Period:
    """Return the last period of a kind that was over when today began."""
    return period_containing(kind, today).before


def parse_period(text: str) -> Period:
    """Return the period with this name. Raises Misuse."""
    for kind, form, make_first_day in _FORMS:
        if match := form.fullmatch(text):
            numbers = [int(group) for group in match.groups()]
            if not MIN_YEAR <= numbers[0] <= MAX_YEAR:
                raise Misuse(f"there is no report of {text}: name a year from {MIN_YEAR} to {MAX_YEAR}")
            try:
                return Period(kind, make_first_day(*numbers))
            except ValueError as error:
                raise Misuse(f"there is no {kind} {text}") from error
    raise Misuse(f"{text!r} is no period: write 2026-11-21, 2026-W47, 2026-11, day, week or month")


def choose_period(text: str, today: date) -> Period:
    """Return the period with this name. `day`, `week` and `month` are the last ones that are over. Raises Misuse."""
    return last_finished(PeriodKind(text), today) if text in set(PeriodKind) else parse_period(text)


class LakeDays(NamedTuple):
    """The first and the last day of which the lake has records."""

    first: date
    last: date


def due_periods(today: date, days: LakeDays | None) -> list[Period]:
    """Return the last day, week and month that are over, or the present one if the lake begins after the last one."""
    over = [last_finished(kind, today) for kind in PeriodKind]
    return [period.after if days and period.last < days.first else period for period in over]


class Extent(NamedTuple):
    """How many days of a period are not over, and of how many the lake has no records at either end."""

    future: int
    """Days that have not begun."""
    is_today: bool
    """Whether today is one of its days."""
    early: int
    """Days before the lake's first day."""
    late: int
    """Days that have begun, after the lake's last day."""


def period_extent(period: Period, lake_days: LakeDays | None, today: date) -> Extent:
    """Return what is missing of a period. `lake_days` is None if the lake has no records at all."""
    begun = [day for day in period.days if day <= today]
    early = [day for day in begun if lake_days is None or day < lake_days.first]
    late = [day for day in begun if lake_days is not None and day > lake_days.last]
    return Extent(len(period.days) - len(begun), today in begun, len(early), len(late))


def period_remarks(period: Period, lake_days: LakeDays | None, today: date) -> list[str]:
    """Return sentences that say why figures of the period, or of the one before it, may be too small."""
    if lake_days is None:
        return ["The lake has no records yet. Run `restante pipeline run`."]
    missing = period_extent(period, lake_days, today)
    day_count = len(period.days)
    if missing.future == day_count:
        begin = day_in_words(period.first)
        return [f"The period begins on {begin}, which is in the future. There are no records of it."]
    sentences = []
    if missing.early + missing.late + missing.future >= day_count and (missing.early == 0 or missing.late == 0):
        first_day, last_day = day_in_words(lake_days.first), day_in_words(lake_days.last)
        sentences.append(f"The lake has no records of this period. It has records of {first_day} to {last_day}.")
    else:
        if missing.early:
            sentences.append(f"The lake has no records before {day_in_words(lake_days.first)}.")
        if missing.late:
            sentences.append(f"The lake has no records after {day_in_words(lake_days.last)}.")
    if missing.future or missing.is_today:
        sentences.append(f"The period is not over. Its last day is {day_in_words(period.last)}.")
    before = period_extent(period.before, lake_days, today)
    if before.early == len(period.before.days):
        sentences.append("The lake has no records of the period before. Nothing is compared with it.")
    elif before.early:
        sentences.append(f"The lake has records of the period before only from {day_in_words(lake_days.first)} on.")
    return sentences
