"""What got slower or faster: the test, its error rates, and how the result is written."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from restante.timing import comparison as comparisons
from restante.timing import rank_test
from restante.timing.comparison import (
    ALPHA,
    MARGIN,
    MAX_RUNS,
    NETWORK,
    TOTAL,
    MeasureChange,
    RunMeasure,
    compare_runs,
)
from restante.timing.model.timeline import ROLES, Role, Timeline
from restante.timing.outputs.compare_text import comparison_text
from restante.timing.rank_test import Draws, p_value, required_runs, shift_interval, smallest_p, superiority
from support.timing.drawn import PATHS, SKEWS, Path, draw, drawn_timeline, timeline_of

DISTRIBUTIONS: dict[str, Callable[[Random], float]] = {
    "exponential": lambda dice: dice.expovariate(1),
    "heavy tail": lambda dice: dice.paretovariate(0.5),
    "ties": lambda dice: round(dice.expovariate(1), 1),
    "discrete": lambda dice: dice.choice((10, 10, 10, 20)),
    "mostly 0": lambda dice: dice.choice((0, 0, 0, 0, 0, 0, 1, dice.random())),
    "constant": lambda _: 7,
}


def compared(measures: Sequence[RunMeasure]) -> list[MeasureChange]:
    # Error rates need hundreds of comparisons of numbers, which are drawn faster than runs.
    return comparisons._measure_changes(measures, Draws(Random(0)))[1]


def measure(old: Sequence[float], new: Sequence[float], name: str = "crypto") -> RunMeasure:
    return RunMeasure("sender", "elapsed", name, old, new)


def all_permutations(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the p-value as it is defined: the share of all divisions that are at least as far from the mean."""
    values = [*old, *new]

    def distance(chosen: Sequence[int]) -> float:
        others = [value for at, value in enumerate(values) if at not in chosen]
        above = sum((values[at] > other) + (values[at] == other) / 2 for at in chosen for other in others)
        return abs(above - len(chosen) * len(others) / 2)

    extreme = distance(range(len(old), len(values)))
    divisions = list(itertools.combinations(range(len(values)), len(new)))
    return sum(distance(chosen) >= extreme - 1e-9 for chosen in divisions) / len(divisions)


@pytest.mark.parametrize("draw", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_the_p_value_is_the_share_of_all_permutations_or_of_those_that_are_drawn(
    draw: Callable[[Random], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = Random(3)
    for sizes in [(1, 1), (2, 5), (5, 2), (4, 4), (3, 6)]:
        old, new = ([draw(dice) for _ in range(size)] for size in sizes)
        assert p_value(old, new, Draws(dice)) == pytest.approx(all_permutations(old, new))
    for shift in (0.0, 0.5, 1.0):
        old, new = [draw(dice) for _ in range(15)], [draw(dice) + shift for _ in range(12)]
        exact = p_value(old, new, Draws(dice))
        with monkeypatch.context() as patched:
            patched.setattr(rank_test, "MAX_EXACT", 0)
            drawn = p_value(old, new, Draws(dice))
        assert abs(drawn - exact) <= 5 * math.sqrt(exact * (1 - exact) / rank_test.DRAWS) + 2 / rank_test.DRAWS


def test_superiority_holm_s_correction_and_the_number_of_runs_that_are_needed() -> None:
    assert [superiority(*of) for of in (([1, 2], [3, 4, 5]), ([3, 4, 5], [1, 2]), ([1, 2], [1, 2]))] == [1, -1, 0]
    assert comparisons.holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert comparisons.holm_correction([0.9, 0.8]) == [1.0, 1.0]
    assert (required_runs(0.05), required_runs(0.05 / 28)) == (4, 7)
    for alpha in (0.1, 0.01, 0.001):
        size = required_runs(alpha)
        assert smallest_p(size, size) <= alpha < smallest_p(size - 1, size - 1)
        assert p_value(range(size), range(size, 2 * size), Draws(Random(0))) == pytest.approx(smallest_p(size, size))


@pytest.mark.parametrize(
    ("name", "old_size", "new_size", "draws"),
    [
        ("exponential", 6, 6, 200),
        ("discrete", 9, 5, 200),
        ("ties", 60, 50, 30),
        pytest.param("heavy tail", 9, 5, 1000, marks=pytest.mark.thorough),
    ],
)
def test_the_interval_contains_the_shift(name: str, old_size: int, new_size: int, draws: int) -> None:
    dice = Random(5)
    missed = 0
    for _ in range(draws):
        old = [DISTRIBUTIONS[name](dice) for _ in range(old_size)]
        new = [DISTRIBUTIONS[name](dice) + 3 for _ in range(new_size)]
        result = shift_interval(old, new, 0.05)
        assert result is not None
        assert result.low <= result.estimate <= result.high
        missed += not result.low - 1e-9 <= 3 <= result.high + 1e-9
    assert missed <= 0.05 * draws + 2 * math.sqrt(draws * 0.05 * 0.95)


def test_at_most_5_percent_of_equal_runs_are_flagged_and_of_changes_of_a_fifth_called_the_same() -> None:
    dice = Random(7)
    flagged = 0
    for _ in range(200):
        measures = []
        common = [[dice.expovariate(1) for _ in range(dice.randrange(6, 12))] for _ in range(2)]
        for name, value in DISTRIBUTIONS.items():
            old, new = ([value(dice) + run for run in group] for group in common)
            measures.append(measure(old, new, name))
        flagged += any(change.verdict in {"slower", "faster"} for change in compared(measures))
    assert flagged <= 10
    wrong = 0
    for _ in range(60):
        old = [dice.lognormvariate(0, 0.1) for _ in range(12)]
        new = [dice.lognormvariate(0, 0.1) * 1.11 for _ in range(12)]
        wrong += compared([measure(old, new)])[0].verdict == "same"
    assert wrong <= 3


def test_verdicts() -> None:
    (few,) = compared([measure([1, 2, 3], [100, 200, 300])])
    assert (few.verdict, few.difference_us, few.ratio) == ("cannot tell", None, None)
    assert few.p == pytest.approx(0.1)
    low, high = range(10, 20), range(30, 40)
    slow, fast, from_0 = compared([measure(low, high), measure(high, low), measure([0] * 10, [0] * 2 + [5] * 8)])
    assert (slow.verdict, fast.verdict, from_0.verdict, from_0.ratio) == ("slower", "faster", "slower", None)
    assert slow.difference_us is not None
    assert slow.difference_us.estimate == 20
    assert slow.ratio is not None
    assert fast.ratio is not None
    assert slow.ratio.low > 1 > fast.ratio.high
    assert slow.ratio.estimate == pytest.approx(1 / fast.ratio.estimate)
    dice = Random(11)
    old, new = ([100 + dice.random() for _ in range(10)] for _ in range(2))
    (same,) = compared([measure(old, new)])
    assert same.verdict == "same"
    assert same.ratio is not None
    assert 1 - MARGIN < same.ratio.low < 1 < same.ratio.high < 1 + MARGIN


def test_what_is_shown_to_be_slower_has_no_interval_that_says_faster() -> None:
    """Holm's test of the second measure is less strict than its interval."""
    dice = Random(13)
    seen = 0
    for _ in range(60):
        old = [dice.random() for _ in range(8)]
        new = [dice.random() + 0.5 for _ in range(8)]
        changes = compared([measure(range(8), range(10, 18)), measure(old, new)])
        if changes[1].verdict == "slower":
            assert changes[1].difference_us is not None
            assert changes[1].difference_us.low >= 0
            seen += changes[1].difference_us.low == 0
    assert seen


SLOW: dict[str, Path] = {role: Path(0.060, 0.030, 0.002) for role in ROLES}


def runs(first_seed: int, number: int, role: Role = "sender", paths: dict[str, Path] = PATHS) -> list[Timeline]:
    return [drawn_timeline(first_seed + run, roles=[role], traced=False, paths=paths) for run in range(number)]


def by_name(comparison: comparisons.Comparison) -> dict[tuple[str, str], MeasureChange]:
    return {(change.kind, change.name): change for change in comparison.changes}


def test_a_slower_network_is_found_and_nothing_else() -> None:
    result = by_name(compare_runs(runs(100, 9), runs(200, 9, paths=SLOW), Random(0)))
    assert {name for name, change in result.items() if change.verdict == "slower"} == {
        *(("elapsed", name) for name in (NETWORK, TOTAL, "round trip")),
        *(("median", name) for name in (NETWORK, "round trip")),
    }
    assert not [name for name, change in result.items() if change.verdict == "faster"]
    ratio = result["median", NETWORK].ratio
    assert ratio is not None
    assert ratio.estimate == pytest.approx(94 / 34, rel=0.05)


def test_the_total_leaves_out_human_and_peer() -> None:
    waited = []
    for seed in range(100, 109):
        drawn = draw(Random(seed), SKEWS, PATHS)
        drawn.add("sender", "input code", -5.0, -1.0, "user")
        waited.append(timeline_of(drawn, roles=["sender"], traced=False))
    result = by_name(compare_runs(runs(100, 9), waited, Random(0)))
    assert result["elapsed", "human"].verdict == "slower"
    assert result["elapsed", TOTAL].new_median_us < result["elapsed", TOTAL].old_median_us + 1_100_000


def test_roles_are_compared_separately_and_more_runs_than_the_limit_are_refused() -> None:
    old = [*runs(100, 8), *runs(100, 3, "receiver")]
    comparison = compare_runs(old, [*runs(200, 8), *runs(200, 8, "receiver")], Random(0))
    groups = [(group.role, group.old, group.new) for group in comparison.groups]
    assert groups == [("sender", 8, 8), ("receiver", 3, 8)]
    assert {change.role for change in comparison.changes} == {"sender", "receiver"}
    assert {change.role for change in compare_runs(old, runs(9, 4), Random(0)).changes} == {"sender"}
    with pytest.raises(ValueError, match="the sender's logs only"):
        compare_runs(runs(1, 4), runs(1, 4, "receiver"), Random(0))
    with pytest.raises(ValueError, match=f"more than {MAX_RUNS} runs"):
        compare_runs(runs(1, 1) * (MAX_RUNS + 1), runs(1, 1), Random(0))


def renamed(timeline: Timeline, causes: dict[str, str], **changes: Any) -> Timeline:
    client = timeline.clients[0]
    spent = [replace(spent, cause=causes.get(spent.cause, spent.cause)) for spent in client.spent]
    return replace(timeline, clients=[replace(client, spent=spent, **changes)])


def test_what_only_some_runs_tell_apart_counts_as_one() -> None:
    traced = [drawn_timeline(run, roles=["sender"]) for run in range(8)]
    both = by_name(compare_runs(traced, traced, Random(0)))
    assert {("elapsed", "queue"), ("median", "queue")} <= both.keys()
    mixed = by_name(compare_runs(traced, runs(8, 8), Random(0)))
    assert not {"queue", "commit", "answer", "server", NETWORK} & {name for _, name in mixed}
    assert mixed["elapsed", "round trip"].verdict in {"cannot tell", "same"}
    older = [renamed(run, dict.fromkeys(("queue", "commit"), "queue and commit")) for run in traced]
    result = by_name(compare_runs(traced, older, Random(0)))
    assert ("elapsed", "queue") not in result
    assert result["elapsed", "queue and commit"].old_median_us == result["elapsed", "queue and commit"].new_median_us
    causes = {spent.cause: "round trip" for run in traced for spent in run.clients[0].spent}
    without_clock = [replace(renamed(run, causes, offset_us=None), commands=[]) for run in traced]
    names = {name for _, name in by_name(compare_runs(traced, without_clock, Random(0)))}
    assert "round trip" in names
    assert NETWORK not in names


@cache
def comparison(name: str) -> comparisons.Comparison:
    if name == "the same run":
        return compare_runs(runs(1, 1) * 8, runs(1, 1) * 8, Random(0))
    size = {"slower": 9, "equal": 8, "few": 2}[name]
    return compare_runs(runs(100, size), runs(200, size, paths=PATHS if name == "equal" else SLOW), Random(0))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("slower", r"Slower: total, \S+ (ms|s) to \S+ (ms|s) \(\+\d+%\); network, "),
        ("equal", r"No change is shown\. The table has how large each may be\."),
        ("few", r"Cannot tell: there are too few runs\. Each group needs at least \d+ runs, even if the change is"),
        ("the same run", r"The same: no change is larger than 10%\."),
    ],
)
def test_the_text_begins_with_what_changed_and_fits_the_terminal(name: str, sentence: str) -> None:
    result = comparison(name)
    [group] = result.groups
    first, second = comparison_text(result, 200).splitlines()[:2]
    assert first == f"Sender: {group.old} old runs, {group.new} new."
    assert re.match(sentence, second), second
    assert result.runs_needed == required_runs(ALPHA / len(result.changes))
    for width in range(40, 201, 7):
        for line in comparison_text(result, width).splitlines():
            assert len(line) <= width, (width, line)
            assert line == line.rstrip(), (width, line)
    assert comparison_text(result, 80, unicode=False).isascii()
    assert re.sub(r"\x1b\[\d*m", "", comparison_text(result, 80, colour=True)) == comparison_text(result, 80)


@pytest.mark.parametrize(
    ("old", "new", "size"), [(range(10, 20), range(1_000, 1_010), "x69"), ([0] * 9, [5_000] * 9, "+5 ms")]
)
def test_a_change_is_a_percentage_factor_or_difference(old: Sequence[float], new: Sequence[float], size: str) -> None:
    changes = compared([measure(old, new)])
    written = comparison_text(replace(comparison("equal"), changes=changes), 120)
    row = next(line for line in written.splitlines() if line.startswith("  crypto "))
    assert re.split(" {2,}", row.strip())[3] == size
