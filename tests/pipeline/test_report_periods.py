"""The periods of reports: their days, names and neighbours, and what the lake lacks of them."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.pipeline.report.periods import (
    LakeDays,
    Period,
    PeriodKind,
    chosen,
    containing,
    extent,
    parse,
    remarks,
)

DAYS = st.dates(date(1970, 2, 1), date(9998, 12, 1))
KINDS = st.sampled_from(PeriodKind)
PERIODS = st.builds(containing, KINDS, DAYS)
HELD = st.one_of(st.none(), st.tuples(DAYS, DAYS).map(lambda days: LakeDays(*sorted(days))))

NOVEMBER = parse("2026-11")


@given(KINDS, DAYS)
def test_each_day_is_in_one_period_of_each_kind(kind: PeriodKind, day: date) -> None:
    period = containing(kind, day)
    assert day in period.days
    assert all(containing(kind, each) == period for each in period.days)


def test_a_kind_stands_for_the_last_period_that_is_over() -> None:
    today = date(2026, 12, 1)
    names = ("day", "week", "month", "2026-W01")
    assert [chosen(name, today).name for name in names] == ["2026-11-30", "2026-W48", "2026-11", "2026-W01"]


@pytest.mark.parametrize(
    ("name", "first", "last", "title"),
    [
        ("2026-11-21", date(2026, 11, 21), date(2026, 11, 21), "Saturday, 21 November 2026"),
        (
            "2026-W53",
            date(2026, 12, 28),
            date(2027, 1, 3),
            "Week 53 of 2026, 28 December 2026 to 3 January 2027",
        ),
        ("2024-02", date(2024, 2, 1), date(2024, 2, 29), "February 2024"),
    ],
)
def test_a_period_has_the_days_of_the_calendar(name: str, first: date, last: date, title: str) -> None:
    period = parse(name)
    assert (period.first, period.last, period.title) == (first, last, title)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "2026",
            "2026-13",
            "2026-00",
            "2026-W54",
            "2025-W53",
            "2026-W00",
            "2026-02-29",
            "2026-11-21 ",
            "9999-01",
        ),
        *("1969-12", "26-11", "2026-11-21T00", "٢٠٢٦-11", "2026-1", "2026-w47", "\x1b[31m", "-026-11"),
    ],
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(Misuse):
        parse(text)


def is_whole(period: Period, held: LakeDays | None, today: date) -> bool:
    """Return whether every day of a period is over and one of the lake's days."""
    return all(day < today and held is not None and held.first <= day <= held.last for day in period.days)


@given(PERIODS, HELD, DAYS)
def test_nothing_is_missing_of_a_period_if_every_day_of_it_is_over_and_within_the_lake_s_days(
    period: Period, held: LakeDays | None, today: date
) -> None:
    found = extent(period, held, today)
    assert (found == (0, False, 0, 0)) == is_whole(period, held, today)
    assert 0 <= found.future <= len(period.days)
    assert found.future == sum(day > today for day in period.days)


@pytest.mark.parametrize(
    ("held", "today", "said"),
    [
        (None, date(2026, 12, 1), ["The lake has no records yet. Run `restante pipeline run`."]),
        (
            LakeDays(date(2026, 9, 1), date(2026, 10, 20)),
            date(2026, 10, 21),
            ["The period begins on 1 November 2026, which is in the future. There are no records of it."],
        ),
        (
            LakeDays(date(2026, 9, 1), date(2026, 11, 20)),
            date(2026, 11, 20),
            ["The period is not over. Its last day is 30 November 2026."],
        ),
        (
            LakeDays(date(2026, 9, 1), date(2026, 11, 20)),
            date(2026, 12, 2),
            ["The lake has no records after 20 November 2026."],
        ),
        (
            LakeDays(date(2026, 11, 3), date(2026, 12, 1)),
            date(2026, 12, 2),
            [
                "The lake has no records before 3 November 2026.",
                "The lake has no records of the period before. Nothing is compared with it.",
            ],
        ),
        (
            LakeDays(date(2026, 10, 30), date(2026, 12, 1)),
            date(2026, 12, 2),
            ["The lake has records of the period before only from 30 October 2026 on."],
        ),
        (
            LakeDays(date(2026, 9, 1), date(2026, 10, 20)),
            date(2026, 12, 2),
            ["The lake has no records of this period. It has records of 1 September 2026 to 20 October 2026."],
        ),
        (
            LakeDays(date(2026, 12, 3), date(2026, 12, 5)),
            date(2026, 12, 6),
            [
                "The lake has no records of this period. It has records of 3 December 2026 to 5 December 2026.",
                "The lake has no records of the period before. Nothing is compared with it.",
            ],
        ),
    ],
)
def test_what_the_lake_lacks_of_a_period_is_said(held: LakeDays | None, today: date, said: list[str]) -> None:
    assert remarks(NOVEMBER, held, today) == said
