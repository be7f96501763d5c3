"""The days, weeks and months of a demo's reports, by docs/pipeline/operating.md ("Reports", "What changed")."""

from __future__ import annotations

from datetime import date, timedelta
from typing import NamedTuple


class Period(NamedTuple):
    """A day, a week or a month with a report."""

    days: tuple[date, ...]
    before: tuple[date, ...]
    """The days with which it is compared: the week or month before, or the 28 days before a day."""

    @property
    def is_day(self) -> bool:
        return len(self.days) == 1

    @property
    def ends(self) -> dict[str, date]:
        return {"first": self.days[0], "last": self.days[-1]}


def period_of(name: str) -> Period:
    """Return the period whose report has this name: 2026-11, 2026-W47 or 2026-11-21."""
    if "W" in name:
        monday = date.fromisoformat(f"{name}-1")
        week, before = ([monday + timedelta(at) for at in range(start, start + 7)] for start in (0, -7))
        return Period(tuple(week), tuple(before))
    if len(name) == len("2026-11-21"):
        day = date.fromisoformat(name)
        return Period((day,), tuple(day - timedelta(back) for back in range(28, 0, -1)))
    first = date.fromisoformat(f"{name}-01")
    return Period(_month(first), _month(first - timedelta(1)))


def _month(day: date) -> tuple[date, ...]:
    first = day.replace(day=1)
    return tuple(each for each in (first + timedelta(n) for n in range(31)) if each.month == first.month)
