"""What counts grew by in the last hour."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from restante.common.last_hour import HOUR_SECONDS, STEP_SECONDS, LastHour


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_count_is_of_the_last_hour_and_then_of_none() -> None:
    clock = Clock()
    hour = LastHour(clock)
    assert hour.growth({"a": 5, "b": 0}) == {"a": 5, "b": 0}, "all since the start"
    for minute in range(1, 62):
        clock.now = 1000.0 + 60 * minute
        hour.remember({"a": 5 + (minute > 30), "b": 0})
        assert hour.growth({"a": 6, "b": 0})["a"] == (6 if minute < 61 else 1), minute
    for minute in range(62, 93):
        clock.now = 1000.0 + 60 * minute
        hour.remember({"a": 6, "b": 0})
    assert hour.growth({"a": 6, "b": 2}) == {"a": 0, "b": 2}


@given(st.lists(st.tuples(st.floats(1, 600), st.integers(0, 3)), min_size=1, max_size=200))
def test_growth_is_that_of_an_hour_or_little_more_in_bounded_memory(steps: list[tuple[float, int]]) -> None:
    clock, count, times = Clock(), 0, []
    hour = LastHour(clock)
    longest = max(step for step, _ in steps) + STEP_SECONDS
    for step, grown in steps:
        clock.now += step
        count += grown
        times += [clock.now] * grown
        hour.remember({"a": count})
        found = hour.growth({"a": count})["a"]
        at_least = sum(each > clock.now - HOUR_SECONDS for each in times)
        at_most = sum(each > clock.now - HOUR_SECONDS - longest for each in times)
        assert at_least <= found <= at_most
        assert len(hour._states) <= HOUR_SECONDS / STEP_SECONDS + 2
