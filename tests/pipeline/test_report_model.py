"""A report as data: what it refuses, percentiles of histograms, and the rows that stand for a hundred thousand."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.report.model import (
    Changes,
    CoverageMap,
    Figure,
    PunchCard,
    RankedBars,
    Report,
    ReportChange,
    ReportColumn,
    ReportTable,
    Section,
    StackedBars,
    StepLines,
    ValueKind,
)
from restante.pipeline.report.percentiles import PERCENTILES, known, percentiles
from restante.pipeline.report.periods import parse
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
        lambda: ReportTable((), ()),
        lambda: ReportTable((NAME, NAME), ()),
        lambda: ReportTable((ReportColumn("A b", "A", ValueKind.TEXT),), ()),
        lambda: ReportTable((NAME, COUNT), (("a",),)),
        lambda: ReportTable((NAME, COUNT), (("a", "1"),)),
        lambda: Figure("A", "A", "A.", TABLE),
        lambda: Figure("a", "A", "A.", TABLE, StackedBars("name", ("nothing",))),
        lambda: Figure("a", "A", "A.", TABLE, StackedBars("name", ("name",))),
        lambda: Figure("a", "A", "A.", TABLE, StackedBars("name", ())),
        lambda: Figure("a", "A", "A.", TABLE, StepLines("name", "name", "name")),
        lambda: Figure("a", "A", "A.", TABLE, RankedBars(("nothing",), "count")),
        lambda: Figure("a", "A", "A.", TABLE, PunchCard("name", "nothing", "count")),
        lambda: Figure("a", "A", "A.", TABLE, CoverageMap("name", "name", "count", "nothing")),
        lambda: Section("a b", "A"),
        lambda: report(Section("a", "A"), Section("a", "A")),
        lambda: report(*(Section(each, each, (Figure("b", "B", "B.", TABLE),)) for each in "cd")),
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
