"""Parts of a report: percentiles of histograms, rows that stand for many names, and its period."""

from __future__ import annotations

import math
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.pipeline.report.percentiles import PERCENTILES, known, percentiles
from restante.pipeline.report.periods import (
    LakeDays,
    PeriodKind,
    chosen,
    containing,
    last_over,
    parse,
    remarks,
)
from restante.pipeline.tables.buckets import edges

EDGES = edges()


DURATIONS = st.lists(st.integers(-10, 10**9) | st.integers(1, 200), min_size=1, max_size=60)


@given(DURATIONS, st.data())
def test_a_percentile_is_within_one_percent_of_that_of_the_durations(durations: list[int], data: Any) -> None:
    parts: list[tuple[int | None, int]] = [
        (0 if us <= 0 else max(edge for edge in EDGES if edge <= us), 1) for us in durations
    ]
    parts.insert(data.draw(st.integers(0, len(parts))), (None, 7))
    found = percentiles(parts)
    for percent, us in zip(PERCENTILES, found, strict=True):
        exact = sorted(durations)[max(math.ceil(percent * len(durations) / 100), 1) - 1]
        assert us is not None
        assert us == pytest.approx(max(exact, 0), rel=0.01 + 1e-9)
    assert percentiles(reversed(parts)) == percentiles(parts * 2) == found
    assert known(parts) == (len(durations), 7)


def test_there_is_no_percentile_of_nothing() -> None:
    nothing: list[list[tuple[int | None, int]]] = [[], [(None, 5)], [(10, 0)]]
    assert [percentiles(parts) for parts in nothing] == [[None] * 3] * 3


DAYS = st.dates(date(1970, 2, 1), date(9998, 12, 1))
KINDS = st.sampled_from(PeriodKind)


@given(KINDS, DAYS)
def test_each_day_is_in_one_period_of_each_kind(kind: PeriodKind, day: date) -> None:
    period = containing(kind, day)
    assert day in period.days
    assert all(containing(kind, each) == period for each in period.days)
    assert parse(period.name) == period == period.after.before == period.before.after
    assert period.before.last + timedelta(1) == period.first
    assert last_over(kind, day).after == period


def test_a_kind_stands_for_the_last_period_that_is_over() -> None:
    today = date(2026, 12, 1)
    names = ("day", "week", "month", "2026-W01")
    assert [chosen(name, today).name for name in names] == ["2026-11-30", "2026-W48", "2026-11", "2026-W01"]


@pytest.mark.parametrize(
    ("name", "first", "last", "title"),
    [
        ("2026-11-21", "2026-11-21", "2026-11-21", "Saturday, 21 November 2026"),
        ("2026-W53", "2026-12-28", "2027-01-03", "Week 53 of 2026, 28 December 2026 to 3 January 2027"),
        ("2024-02", "2024-02-01", "2024-02-29", "February 2024"),
    ],
)
def test_a_period_has_the_days_of_the_calendar(name: str, first: str, last: str, title: str) -> None:
    period = parse(name)
    assert (str(period.first), str(period.last), period.title) == (first, last, title)


NO_PERIODS = "2026 2026-13 2026-00 2026-W54 2025-W53 2026-W00 2026-02-29 9999-01 1969-12 26-11 2026-11-21T00 2026-1"


@pytest.mark.parametrize(
    "text", [*NO_PERIODS.split(), "", "2026-11-21 ", "2026-w47", "٢٠٢٦-11", "\x1b[31m", "-026-11"]
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(Misuse):
        parse(text)


NO_PERIOD_BEFORE = "The lake has no records of the period before. Nothing is compared with it."
OF_OTHERS = "The lake has no records of this period. It has records of "
FUTURE = "The period begins on 1 November 2026, which is in the future. There are no records of it."


@pytest.mark.parametrize(
    ("days", "today", "sentences"),
    [
        (None, "2026-12-01", ["The lake has no records yet. Run `restante pipeline run`."]),
        ("2026-09-01 2026-10-20", "2026-10-21", [FUTURE]),
        ("2026-09-01 2026-11-20", "2026-11-20", ["The period is not over. Its last day is 30 November 2026."]),
        ("2026-09-01 2026-11-30", "2026-11-30", ["The period is not over. Its last day is 30 November 2026."]),
        ("2026-10-01 2026-11-30", "2026-12-01", []),
        ("2026-09-01 2026-11-20", "2026-12-02", ["The lake has no records after 20 November 2026."]),
        (
            "2026-11-03 2026-12-01",
            "2026-12-02",
            ["The lake has no records before 3 November 2026.", NO_PERIOD_BEFORE],
        ),
        (
            "2026-10-30 2026-12-01",
            "2026-12-02",
            ["The lake has records of the period before only from 30 October 2026 on."],
        ),
        ("2026-09-01 2026-10-20", "2026-12-02", [f"{OF_OTHERS}1 September 2026 to 20 October 2026."]),
        (
            "2026-12-03 2026-12-05",
            "2026-12-06",
            [f"{OF_OTHERS}3 December 2026 to 5 December 2026.", NO_PERIOD_BEFORE],
        ),
    ],
)
def test_what_the_lake_lacks_of_a_period_is_in_its_remarks(
    days: str | None, today: str, sentences: list[str]
) -> None:
    of_lake = None if days is None else LakeDays(*map(date.fromisoformat, days.split()))
    assert remarks(parse("2026-11"), of_lake, date.fromisoformat(today)) == sentences
