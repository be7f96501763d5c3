"""A report as data: what it refuses, percentiles of histograms, rows that stand for many names, and its period."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.pipeline.report.model import (
    Changes,
    Figure,
    Report,
    ReportChange,
    ReportColumn,
    ReportTable,
    Section,
    StackedBars,
    ValueKind,
)
from restante.pipeline.report.percentiles import PERCENTILES, known, percentiles
from restante.pipeline.report.periods import (
    LakeDays,
    Period,
    PeriodKind,
    chosen,
    containing,
    extent,
    last_over,
    parse,
    remarks,
)
from restante.pipeline.report.top_rows import top_rows
from restante.pipeline.tables.buckets import edges

EDGES = edges()
NAME = ReportColumn("name", "Name", ValueKind.TEXT)
COUNT = ReportColumn("count", "Count", ValueKind.COUNT)
TABLE = ReportTable((NAME, COUNT), (("a", 1), (None, None)))

GOOD: dict[ValueKind, list[Any]] = {
    ValueKind.TEXT: ["", "a"],
    ValueKind.COUNT: [0, 1],
    ValueKind.AVERAGE: [0, 0.5],
    ValueKind.SHARE: [0, 0.5],
    ValueKind.DURATION: [0, 0.5],
    ValueKind.BYTES: [0, 1],
    ValueKind.DAY: [date(2026, 11, 1)],
    ValueKind.MOMENT: [datetime(2026, 11, 1, tzinfo=UTC)],
    ValueKind.FLAG: [True, False],
}
BAD: list[Any] = [b"", 1j, math.nan, math.inf, datetime(2026, 11, 1), [], ...]  # noqa: DTZ001 - it has no zone


@pytest.mark.parametrize("kind", ValueKind)
def test_a_column_accepts_the_values_of_its_kind_only(kind: ValueKind) -> None:
    column = ReportColumn("a", "A", kind)
    for other, values in GOOD.items():
        for value in values:
            shares_type = any(isinstance(value, type(own)) and type(value) is type(own) for own in GOOD[kind])
            assert column.accepts(value) == shares_type, (kind, other, value)
    assert column.accepts(None)
    assert not any(map(column.accepts, BAD))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ReportTable((NAME, NAME), ()),
        lambda: ReportTable((ReportColumn("A b", "A", ValueKind.TEXT),), ()),
        lambda: ReportTable((NAME, COUNT), (("a",),)),
        lambda: ReportTable((NAME, COUNT), (("a", "1"),)),
        lambda: Figure("A", "A", "A.", TABLE),
        lambda: Figure("a", "A", "A.", TABLE, StackedBars("name", ("nothing",))),
        lambda: Figure("a", "A", "A.", TABLE, StackedBars("name", ("name",))),
        lambda: report(Section("a", "A"), Section("a", "A")),
        lambda: report(*(Section(name, name, (Figure("b", "B", "B.", TABLE),)) for name in "cd")),
        lambda: Report(parse("2026-11"), datetime(2026, 12, 1), ()),  # noqa: DTZ001
        lambda: Report(
            *(parse("2026-11"), datetime(2026, 12, 1, tzinfo=UTC), (), ()),
            Changes(("Rule.",), (ReportChange("nothing", ("It grew.",), 1, 2, ValueKind.COUNT),)),
        ),
    ],
)
def test_what_is_not_consistent_is_a_bug(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        wrong()


def report(*sections: Section) -> Report:
    return Report(parse("2026-11"), datetime(2026, 12, 1, tzinfo=UTC), sections)


DURATIONS = st.lists(st.integers(-10, 10**9) | st.integers(1, 200), min_size=1, max_size=60)


def bucket_of(us: int) -> int:
    return 0 if us <= 0 else max(edge for edge in EDGES if edge <= us)


@given(DURATIONS, st.data())
def test_a_percentile_is_within_one_percent_of_that_of_the_durations(durations: list[int], data: Any) -> None:
    parts: list[tuple[int | None, int]] = [(bucket_of(us), 1) for us in durations]
    parts.insert(data.draw(st.integers(0, len(parts))), (None, 7))
    for percent, found in zip(PERCENTILES, percentiles(parts), strict=True):
        exact = sorted(durations)[max(math.ceil(percent * len(durations) / 100), 1) - 1]
        assert found is not None
        assert found == pytest.approx(max(exact, 0), rel=0.01 + 1e-9)


@given(DURATIONS)
def test_percentiles_do_not_fall_and_do_not_depend_on_the_order_of_the_buckets(durations: list[int]) -> None:
    parts = [(bucket_of(us), 1) for us in durations]
    found = percentiles(parts)
    assert all(one is not None and other is not None and one <= other for one, other in pairwise(found))
    assert percentiles(reversed(parts)) == found
    assert percentiles([*parts, *parts]) == found
    assert known([*parts, (None, 3)]) == (len(parts), 3)


@pytest.mark.parametrize("nothing", [[], [(None, 5)], [(10, 0)]])
def test_there_is_no_percentile_of_nothing(nothing: list[tuple[int | None, int]]) -> None:
    assert percentiles(nothing) == [None, None, None]


NAMES = st.lists(
    st.tuples(st.none() | st.text(max_size=2), st.none() | st.text(max_size=2)), unique=True, max_size=12
)


@given(NAMES, st.data())
def test_the_rows_of_names_add_up_to_all_of_them(names: list[tuple[str | None, ...]], data: Any) -> None:
    counts = st.tuples(st.integers(0, 5), st.integers(0, 5))
    rows = [(name, data.draw(counts)) for name in names]
    most = data.draw(st.integers(2, 6))
    found = top_rows(rows, 1, most)
    assert len(found) == min(len(rows), most)
    assert sum(each.names for each in found) == len(rows)
    for place in (0, 1):
        assert sum(each.counts[place] for each in found) == sum(counts[place] for _, counts in rows)
    named = [each for each in found if each.name is not None]
    assert all(one.counts[1] >= other.counts[1] for one, other in pairwise(named))
    assert top_rows(data.draw(st.permutations(rows)), 1, most) == found
    left_out = set(names) - {each.name for each in named}
    assert all(dict(rows)[name][1] <= named[-1].counts[1] for name in left_out)


# ── periods ───────────────────────────────────────────────────────────────────────────────────────

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


NO_PERIODS = "2026 2026-13 2026-00 2026-W54 2025-W53 2026-W00 2026-02-29 9999-01 1969-12 26-11 2026-11-21T00 2026-1"


@pytest.mark.parametrize(
    "text", [*NO_PERIODS.split(), "", "2026-11-21 ", "2026-w47", "٢٠٢٦-11", "\x1b[31m", "-026-11"]
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
