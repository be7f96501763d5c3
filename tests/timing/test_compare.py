"""What got slower or faster: the test, its error rates, and how the result is written."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from random import Random

import msgspec
import pytest

from restante.timing.comparison import rank_test
from restante.timing.comparison.compare import (
    ALPHA,
    MARGIN,
    MAX_RUNS,
    NETWORK,
    TOTAL,
    Change,
    Comparison,
    Measure,
    _changes,
    compare,
    holm,
)
from restante.timing.comparison.rank_test import Draws, interval, p_value, runs_needed, smallest_p, superiority
from restante.timing.model.timeline import ROLES, Role, Timeline
from restante.timing.outputs.compare_text import compare_text
from support.effort import rounds
from support.timing.drawn import Path
from support.timing.timelines import drawn_timeline, span

DISTRIBUTIONS: dict[str, Callable[[Random], float]] = {
    "exponential": lambda dice: dice.expovariate(1),
    "heavy tail": lambda dice: dice.paretovariate(0.5),
    "ties": lambda dice: round(dice.expovariate(1), 1),
    "discrete": lambda dice: dice.choice((10, 10, 10, 20)),
    "mostly 0": lambda dice: dice.choice((0, 0, 0, 0, 0, 0, 1, dice.random())),
    "constant": lambda _: 7,
}


def drawn_measure(dice: Random, draw: Callable[[Random], float], size: int, name: str = "crypto") -> Measure:
    """Return a measure whose groups have the same distribution."""
    return measure([draw(dice) for _ in range(size)], [draw(dice) for _ in range(size)], name)


def compared(measures: Sequence[Measure], seed: int = 0) -> list[Change]:
    return _changes(measures, Draws(Random(seed)))[1]


def measure(old: Sequence[float], new: Sequence[float], name: str = "crypto") -> Measure:
    return Measure("sender", "elapsed", name, old, new)


# The test.


def all_permutations(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the p-value as it is defined: the share of all divisions that are at least as far from the mean."""
    values = [*old, *new]

    def distance(chosen: tuple[int, ...]) -> float:
        others = [values[at] for at in range(len(values)) if at not in chosen]
        mine = [values[at] for at in chosen]
        above = sum((a > b) + (a == b) / 2 for a in mine for b in others)
        return abs(above - len(mine) * len(others) / 2)

    extreme = distance(tuple(range(len(old), len(values))))
    divisions = list(itertools.combinations(range(len(values)), len(new)))
    return sum(distance(each) >= extreme - 1e-9 for each in divisions) / len(divisions)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_p_value_is_the_share_of_all_permutations(name: str) -> None:
    dice = Random(3)
    for sizes in [(1, 1), (2, 5), (5, 2), (4, 4), (3, 6)]:
        old, new = ([DISTRIBUTIONS[name](dice) for _ in range(size)] for size in sizes)
        assert p_value(old, new, Draws(dice)) == pytest.approx(all_permutations(old, new))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_drawn_permutations_agree_with_all_of_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(4)
    for shift in (0.0, 0.5, 1.0):
        old = [DISTRIBUTIONS[name](dice) for _ in range(15)]
        new = [DISTRIBUTIONS[name](dice) + shift for _ in range(12)]
        exact = p_value(old, new, Draws(dice))
        with monkeypatch.context() as patched:
            patched.setattr(rank_test, "MAX_EXACT", 0)
            drawn = p_value(old, new, Draws(dice))
        assert abs(drawn - exact) <= 5 * math.sqrt(exact * (1 - exact) / rank_test.DRAWS) + 2 / rank_test.DRAWS


def test_the_smallest_p_value_is_that_of_groups_that_do_not_overlap() -> None:
    for sizes in [(1, 1), (3, 4), (6, 6), (2, 20)]:
        old, new = range(sizes[0]), range(100, 100 + sizes[1])
        assert p_value(old, new, Draws(Random(0))) == pytest.approx(smallest_p(*sizes))
    assert smallest_p(0, 5) == 1.0


def test_so_many_runs_are_needed() -> None:
    assert runs_needed(0.05) == 4
    assert runs_needed(0.05 / 28) == 7
    for alpha in (0.1, 0.01, 0.001):
        size = runs_needed(alpha)
        assert smallest_p(size, size) <= alpha < smallest_p(size - 1, size - 1)


@pytest.mark.parametrize("name", ["exponential", "heavy tail", "ties", "discrete"])
@pytest.mark.parametrize(("old_size", "new_size"), [(6, 6), (9, 5), (60, 50)])
def test_the_interval_contains_the_shift(name: str, old_size: int, new_size: int) -> None:
    dice = Random(5)
    draws = rounds(200, 1000)
    missed = 0
    for _ in range(draws):
        old = [DISTRIBUTIONS[name](dice) for _ in range(old_size)]
        new = [DISTRIBUTIONS[name](dice) + 3 for _ in range(new_size)]
        found = interval(old, new, 0.05)
        assert found is not None
        assert found.low <= found.estimate <= found.high
        missed += not found.low - 1e-9 <= 3 <= found.high + 1e-9
    assert missed <= 0.05 * draws + 2 * math.sqrt(draws * 0.05 * 0.95)


@pytest.mark.parametrize("seed", range(20))
def test_without_ties_the_interval_excludes_0_exactly_if_the_test_rejects(seed: int) -> None:
    dice = Random(seed)
    old = [dice.random() for _ in range(dice.randrange(5, 12))]
    new = [dice.random() + dice.random() * 1.5 for _ in range(dice.randrange(5, 12))]
    found = interval(old, new, 0.05)
    assert found is not None
    assert (not found.low <= 0 <= found.high) == (p_value(old, new, Draws(dice)) <= 0.05)


@pytest.mark.parametrize(("old", "new"), [(50, 50), (20, 100), (51, 50), (10, 200)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_interval_of_large_groups_is_as_wide_as_the_exact_one_or_wider(
    old: int, new: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for limit in (0, old * new):
        monkeypatch.setattr(rank_test, "MAX_EXACT", limit)
        rank_test._end.cache_clear()
        ends.append(rank_test._end(old, new, alpha))
    rank_test._end.cache_clear()
    normal, exact = ends
    assert normal is not None
    assert exact is not None
    assert exact - 0.02 * old * new <= normal <= exact


def test_groups_that_are_too_small_have_no_interval() -> None:
    assert interval([1, 2, 3], [4, 5, 6], 0.05) is None
    assert interval([1, 2, 3, 4], [5, 6, 7, 8], 0.05) is not None


def test_superiority_is_1_if_each_new_value_is_larger() -> None:
    assert superiority([1, 2], [3, 4, 5]) == 1
    assert superiority([3, 4, 5], [1, 2]) == -1
    assert superiority([1, 2], [1, 2]) == 0


def test_holm_s_correction() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


# Its error rates.


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_equal_distributions_are_flagged_in_at_most_5_percent_of_1_000_draws(name: str) -> None:
    dice = Random(6)
    flagged = 0
    for _ in range(1_000):
        whole = [drawn_measure(dice, DISTRIBUTIONS[name], 7, str(each)) for each in range(5)]
        flagged += any(change.verdict in {"slower", "faster"} for change in compared(whole))
    assert flagged <= 50


def test_equal_runs_that_have_all_kinds_of_measures_are_flagged_in_at_most_5_percent_of_1_000_draws() -> None:
    """Also of groups of different sizes, and of measures that depend on one another."""
    dice = Random(7)
    flagged = 0
    for _ in range(1_000):
        whole = []
        runs = [dice.randrange(6, 12) for _ in range(2)]
        common = [[dice.expovariate(1) for _ in range(size)] for size in runs]
        for name, draw in DISTRIBUTIONS.items():
            old, new = ([draw(dice) + each for each in group] for group in common)
            whole.append(measure(old, new, name))
        flagged += any(change.verdict in {"slower", "faster"} for change in compared(whole))
    assert flagged <= 50


def test_drawn_permutations_flag_equal_distributions_in_at_most_5_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_test, "MAX_EXACT", 0)
    monkeypatch.setattr(rank_test, "DRAWS", 199)
    dice = Random(8)
    ps = []
    for _ in range(1_000):
        old, new = ([dice.choice((1, 2, 3)) for _ in range(8)] for _ in range(2))
        ps.append(p_value(old, new, Draws(dice)))
    assert sum(p <= 0.05 for p in ps) <= 50 + 2 * math.sqrt(1_000 * 0.05 * 0.95)


def test_a_change_of_a_fifth_is_called_the_same_in_at_most_5_percent_of_draws() -> None:
    dice = Random(9)
    wrong = 0
    for _ in range(rounds(300, 1_000)):
        old = [dice.lognormvariate(0, 0.1) for _ in range(12)]
        new = [dice.lognormvariate(0, 0.1) * 1.11 for _ in range(12)]
        wrong += compared([measure(old, new)])[0].verdict == "same"
    assert wrong <= 0.05 * rounds(300, 1_000)


def test_a_difference_in_one_of_many_measures_is_found() -> None:
    dice = Random(10)
    found = 0
    for _ in range(100):
        old, new = ([dice.lognormvariate(0, 0.1) for _ in range(10)] for _ in range(2))
        other = [drawn_measure(dice, DISTRIBUTIONS["exponential"], 10, str(each)) for each in range(15)]
        changes = compared([measure(old, [each * 1.5 for each in new]), *other])
        found += changes[0].verdict == "slower"
    assert found >= 95


# Verdicts.


def test_with_too_few_runs_every_verdict_is_cannot_tell() -> None:
    (change,) = compared([measure([1, 2, 3], [100, 200, 300])])
    assert (change.verdict, change.difference_us, change.ratio) == ("cannot tell", None, None)
    assert change.p == pytest.approx(0.1)


def test_slower_and_faster() -> None:
    slow, fast = compared([measure(range(10, 20), range(30, 40)), measure(range(30, 40), range(10, 20))])
    assert (slow.verdict, fast.verdict) == ("slower", "faster")
    assert slow.difference_us is not None
    assert slow.difference_us.estimate == 20
    assert slow.ratio is not None
    assert fast.ratio is not None
    assert slow.ratio.low > 1 > fast.ratio.high
    assert slow.ratio.estimate == pytest.approx(1 / fast.ratio.estimate)


def test_measures_that_change_by_less_than_the_margin_are_the_same() -> None:
    dice = Random(11)
    old, new = ([100 + dice.random() for _ in range(10)] for _ in range(2))
    (change,) = compared([measure(old, new)])
    assert change.verdict == "same"
    assert change.ratio is not None
    assert 1 - MARGIN < change.ratio.low < 1 < change.ratio.high < 1 + MARGIN


def test_measures_that_vary_much_and_differ_little_cannot_be_told() -> None:
    dice = Random(12)
    (change,) = compared([drawn_measure(dice, DISTRIBUTIONS["exponential"], 10)])
    assert change.verdict == "cannot tell"
    assert change.ratio is not None


def test_values_that_are_0_have_a_difference_and_no_ratio() -> None:
    (change,) = compared([measure([0] * 9, [0] * 2 + [5] * 7)])
    assert change.verdict == "slower"
    assert change.ratio is None
    assert change.difference_us is not None
    assert change.difference_us.low >= 0


def test_what_is_shown_to_be_slower_has_no_interval_that_says_faster() -> None:
    """Holm's test of the second measure is less strict than its interval."""
    dice = Random(13)
    seen = 0
    for _ in range(200):
        old = [dice.random() for _ in range(8)]
        new = [dice.random() + 0.5 for _ in range(8)]
        changes = compared([measure(range(8), range(10, 18)), measure(old, new)])
        if changes[1].verdict == "slower":
            assert changes[1].difference_us is not None
            assert changes[1].difference_us.low >= 0
            seen += changes[1].difference_us.low == 0
    assert seen


# Runs.

SLOW = {role: Path(0.060, 0.030, 0.002) for role in ROLES}


def runs(first: int, number: int, role: Role = "sender", **options: object) -> list[Timeline]:
    return [drawn_timeline(first + each, roles=[role], traced=False, **options) for each in range(number)]  # type: ignore[arg-type]


def by_name(comparison: Comparison) -> dict[tuple[str, str], Change]:
    return {(change.kind, change.name): change for change in comparison.changes}


def test_a_slower_network_is_found_and_nothing_else() -> None:
    found = by_name(compare(runs(100, 9), runs(200, 9, paths=SLOW), Random(0)))
    assert {name for name, change in found.items() if change.verdict == "slower"} == {
        ("elapsed", NETWORK),
        ("elapsed", TOTAL),
        ("elapsed", "round trip"),
        ("median", NETWORK),
        ("median", "round trip"),
    }
    assert not [name for name, change in found.items() if change.verdict == "faster"]
    ratio = found["median", NETWORK].ratio
    assert ratio is not None
    assert ratio.low < 94 / 34 < ratio.high or ratio.estimate == pytest.approx(94 / 34, rel=0.05)


def test_the_total_leaves_out_human_and_peer() -> None:
    waits = [("sender", span("input code", -5.0, -1.0, 5.0, "user"))]
    plain = compare(runs(100, 9), runs(100, 9), Random(0))
    human = by_name(compare(runs(100, 9), runs(100, 9, spans=waits), Random(0)))
    assert human["elapsed", "human"].verdict == "slower"
    assert human["elapsed", TOTAL].new_median_us < by_name(plain)["elapsed", TOTAL].new_median_us + 1_100_000


def test_the_total_is_the_sum_of_the_other_causes() -> None:
    (run,) = runs(100, 1)
    causes = {spent.cause: spent.us for spent in run.clients[0].spent}
    assert causes["peer"]
    found = by_name(compare([run], [run], Random(0)))["elapsed", TOTAL]
    assert found.old_median_us == sum(causes.values()) - causes["peer"]


def test_roles_are_compared_separately() -> None:
    old = [*runs(100, 8), *runs(100, 3, "receiver")]
    comparison = compare(old, [*runs(200, 8), *runs(200, 8, "receiver")], Random(0))
    assert [(group.role, group.old, group.new) for group in comparison.groups] == [
        ("sender", 8, 8),
        ("receiver", 3, 8),
    ]
    assert {change.role for change in comparison.changes} == {"sender", "receiver"}


def test_a_role_of_one_group_only_is_not_compared() -> None:
    comparison = compare([*runs(1, 4), *runs(1, 4, "receiver")], runs(9, 4), Random(0))
    assert {change.role for change in comparison.changes} == {"sender"}
    with pytest.raises(ValueError, match="the sender's logs only"):
        compare(runs(1, 4), runs(1, 4, "receiver"), Random(0))


def test_what_only_some_runs_tell_apart_counts_as_one() -> None:
    traced = [drawn_timeline(each, roles=["sender"]) for each in range(8)]
    both = by_name(compare(traced, [drawn_timeline(each, roles=["sender"]) for each in range(8, 16)], Random(0)))
    assert ("elapsed", "queue") in both
    assert ("median", "queue") in both
    mixed = by_name(compare(traced, runs(8, 8), Random(0)))
    assert not {"queue", "commit", "answer", "server", NETWORK} & {name for _, name in mixed}
    assert mixed["elapsed", "round trip"].verdict in {"cannot tell", "same"}


def test_runs_without_a_clock_have_round_trips_only() -> None:
    def without(timeline: Timeline) -> Timeline:
        client = timeline.clients[0]
        spent = [msgspec.structs.replace(each, cause="round trip") for each in client.spent]
        return msgspec.structs.replace(
            timeline, clients=[msgspec.structs.replace(client, offset_us=None, spent=spent)], commands=[]
        )

    found = by_name(compare(runs(1, 4), [without(each) for each in runs(9, 4)], Random(0)))
    assert {name for _, name in found} >= {"round trip"}
    assert NETWORK not in {name for _, name in found}


def test_an_older_trace_makes_queue_and_commit_one() -> None:
    def older(timeline: Timeline) -> Timeline:
        client = timeline.clients[0]
        spent = [
            msgspec.structs.replace(
                each, cause="queue and commit" if each.cause in {"queue", "commit"} else each.cause
            )
            for each in client.spent
        ]
        return msgspec.structs.replace(timeline, clients=[msgspec.structs.replace(client, spent=spent)])

    traced = [drawn_timeline(each, roles=["sender"]) for each in range(8)]
    found = by_name(compare(traced, [older(each) for each in traced], Random(0)))
    assert ("elapsed", "queue") not in found
    assert found["elapsed", "queue and commit"].old_median_us == found["elapsed", "queue and commit"].new_median_us


def test_more_runs_than_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_RUNS} runs"):
        compare(runs(1, 1) * (MAX_RUNS + 1), runs(1, 1), Random(0))


def test_the_json_has_a_version_and_no_infinite_numbers() -> None:
    comparison = compare(runs(100, 8), runs(200, 8), Random(0))
    read = json.loads(msgspec.json.encode(comparison), parse_constant=pytest.fail)
    assert (read["version"], read["alpha"]) == (1, ALPHA)
    assert read["runs_needed"] == runs_needed(ALPHA / len(read["changes"]))


# The text.

COMPARISONS = {
    "slower": compare(runs(100, 9), runs(200, 9, paths=SLOW), Random(0)),
    "equal": compare(runs(100, 8), runs(200, 8), Random(0)),
    "few": compare(runs(100, 2), runs(200, 2, paths=SLOW), Random(0)),
    "both": compare(
        [*runs(100, 8), *runs(100, 8, "receiver")], [*runs(200, 8), *runs(200, 8, "receiver", paths=SLOW)], Random(0)
    ),
    "the same run": compare(runs(1, 1) * 8, runs(1, 1) * 8, Random(0)),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_no_line_is_wider_than_the_terminal_or_ends_with_a_space(name: str) -> None:
    for width in range(40, 201):
        for line in compare_text(COMPARISONS[name], width).splitlines():
            assert len(line) <= width, (width, line)
            assert line == line.rstrip(), (width, line)
    assert compare_text(COMPARISONS[name], 80, unicode=False).isascii()
    coloured = compare_text(COMPARISONS[name], 80, colour=True)
    assert re.sub(r"\x1b\[\d*m", "", coloured) == compare_text(COMPARISONS[name], 80)


def test_the_text_begins_with_what_changed() -> None:
    first, second = compare_text(COMPARISONS["slower"], 200).splitlines()[:2]
    assert first == "Sender: 9 old runs, 9 new."
    assert re.match(r"Slower: total, \S+ (ms|s) to \S+ (ms|s) \(\+\d+%\); network, ", second), second


def test_the_text_says_how_many_runs_are_needed() -> None:
    needed = COMPARISONS["few"].runs_needed
    expected = (
        f"Cannot tell: there are too few runs. Each group needs at least {needed} runs, even if the change is large."
    )
    assert expected in compare_text(COMPARISONS["few"], 200)


def test_the_text_says_that_nothing_is_shown() -> None:
    assert "No change is shown. The table has how large each may be." in compare_text(COMPARISONS["equal"], 200)


def test_the_text_says_that_there_is_nothing_to_compare() -> None:
    empty = msgspec.structs.replace(COMPARISONS["equal"], changes=[])
    assert compare_text(empty, 80).splitlines()[1] == "There is nothing to compare."


@pytest.mark.parametrize(
    ("old", "new", "size"), [(range(10, 20), range(1_000, 1_010), "x69"), ([0] * 9, [5_000] * 9, "+5 ms")]
)
def test_a_change_is_a_percentage_a_factor_or_a_difference(
    old: Sequence[float], new: Sequence[float], size: str
) -> None:
    changes = compared([measure(old, new)])
    written = compare_text(msgspec.structs.replace(COMPARISONS["equal"], changes=changes), 120)
    row = next(line for line in written.splitlines() if line.startswith("  crypto "))
    assert re.split(" {2,}", row.strip())[3] == size


def test_measures_of_groups_of_one_size_share_the_permutations() -> None:
    draws = Draws(Random(0))
    assert draws.subsets(100, 60) is draws.subsets(100, 60)


def test_the_text_says_that_nothing_changed() -> None:
    assert "The same: no change is larger than 10%." in compare_text(COMPARISONS["the same run"], 200)
