"""Ranges of times are sets of seconds, written short."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from restante.waku.client.ranges import FetchState, HistoryQuery, Range, including, without
from support.effort import examples
from support.waku.letters import TOPIC, letter

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def seconds(ranges: list[Range]) -> set[int]:
    return {second for lower, upper in ranges for second in range(lower, upper + 1)}


def united(ranges: list[Range]) -> list[Range]:
    return reduce(including, ranges, [])


def is_short(ranges: list[Range]) -> bool:
    return all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(RANGES)
@examples(200)
def test_adjacent_ranges_are_merged(ranges: list[Range]) -> None:
    found = united(ranges)
    assert seconds(found) == seconds(ranges)
    assert is_short(found)


@given(RANGES, RANGES)
@examples(200)
def test_a_subtracted_range_is_gone(ranges: list[Range], less: list[Range]) -> None:
    found = without(united(ranges), less)
    assert seconds(found) == seconds(ranges) - seconds(less)
    assert is_short(found)


@given(st.dictionaries(st.sampled_from(["01020304", "00000001"]), RANGES.map(united)))
@examples(100)
def test_a_range_that_one_topic_misses_is_requested_for_all_topics_and_then_known(
    known: dict[str, list[Range]],
) -> None:
    query = HistoryQuery(5, 45, frozenset([TOPIC, b"\0\0\0\1"]))
    state = FetchState(known)
    missing = state.missing(query)
    both = seconds(known.get("01020304", [])) & seconds(known.get("00000001", []))
    assert seconds(missing) == set(range(5, 46)) - both
    for part in missing:
        state.learn(query, part)
    assert state.missing(query) == []


def test_a_range_that_counts_as_known_is_no_longer_recent() -> None:
    query = HistoryQuery(1, 1_800_000_000, frozenset([TOPIC]))
    state = FetchState()
    young, old = letter(1), letter(2, age=100)
    state.remember(query, young)
    state.remember(query, old)
    copy = state.copy()
    state.learn(query, (1, old.sent))
    state.forget(query)
    assert state.recent == {TOPIC.hex(): {young.hash.hex(): young.sent}}
    assert copy.recent[TOPIC.hex()].keys() == {young.hash.hex(), old.hash.hex()}
    state.learn(query, (young.sent, young.sent))
    state.forget(query)
    assert state.recent == {}
