"""Whether two groups of numbers differ: the Mann-Whitney test, and Hodges and Lehmann's estimate of the difference.

The test is a permutation test of ranks: it assumes nothing about the distribution, and takes ties into account.
Permutations are drawn for large groups only.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from statistics import NormalDist, median
from typing import Final

import msgspec

MAX_EXACT: Final = 2_500
"""Product of the sizes of two groups up to which all permutations are counted: 50 each take 50 ms."""

DRAWS: Final = 10_000
"""Permutations that are drawn for larger groups."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float


class Draws:
    """Drawn permutations: subsets of the indices of two groups. Measures of groups of one size share them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._drawn: dict[tuple[int, int], list[list[int]]] = {}

    def subsets(self, total: int, size: int) -> list[list[int]]:
        """Return DRAWS subsets of `size` of the numbers below `total`."""
        if (total, size) not in self._drawn:
            self._drawn[total, size] = [self._dice.sample(range(total), size) for _ in range(DRAWS)]
        return self._drawn[total, size]


def p_value(old: Sequence[float], new: Sequence[float], draws: Draws) -> float:
    """Return the probability that equal distributions differ at least as much as these groups, in either direction.

    It is exact for small groups. For larger ones, with 10,000 draws, a group's own order counts as one of them, so
    that the test flags equal distributions no more often than it says.
    """
    ranks = _doubled_ranks([*old, *new])
    extreme = abs(sum(ranks[len(old) :]) - len(new) * (len(ranks) + 1))
    size = min(len(old), len(new))  # the other group is as far from its mean
    mean = size * (len(ranks) + 1)
    if len(old) * len(new) <= MAX_EXACT:
        counts = _rank_sum_counts(tuple(sorted(ranks)), size)
        extreme_subsets = sum(count for rank_sum, count in enumerate(counts) if abs(rank_sum - mean) >= extreme)
        return extreme_subsets / math.comb(len(ranks), size)
    subsets = draws.subsets(len(ranks), size)
    extreme_subsets = sum(abs(sum(map(ranks.__getitem__, subset)) - mean) >= extreme for subset in subsets)
    return (extreme_subsets + 1) / (len(subsets) + 1)


def superiority(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the probability that a new value is larger than an old one, less that it is smaller: from -1 to 1."""
    ranks = _doubled_ranks([*old, *new])
    return (sum(ranks[len(old) :]) - len(new) * (len(ranks) + 1)) / (len(old) * len(new))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value; equal values have the mean of their ranks."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + bisect_right(ordered, value) + 1 for value in values]


@functools.lru_cache(maxsize=64)
def _rank_sum_counts(ranks: tuple[int, ...], size: int) -> list[int]:
    """Return how many subsets of a size have each sum of ranks.

    A polynomial whose coefficients are the counts is one large integer, with room for each coefficient.
    """
    width = (math.comb(len(ranks), size).bit_length() + 7) // 8
    rows = [1, *[0] * size]
    for number, rank in enumerate(ranks):
        for count in range(min(number + 1, size), 0, -1):
            rows[count] += rows[count - 1] << (8 * width * rank)
    raw = rows[size].to_bytes(width * (sum(sorted(ranks)[-size:]) + 1), "little")
    return [int.from_bytes(raw[start : start + width], "little") for start in range(0, len(raw), width)]


def smallest_p(old: int, new: int) -> float:
    """Return the smallest p-value that groups of these sizes can have: all of one are above all of the other."""
    return min(2 / math.comb(old + new, new), 1.0) if old and new else 1.0


def required_runs(alpha: float) -> int:
    """Return the smallest size of two equal groups that can have a p-value of alpha or less."""
    size = 1
    while smallest_p(size, size) > alpha:
        size += 1
    return size


def shift_interval(old: Sequence[float], new: Sequence[float], alpha: float) -> Interval | None:
    """Return Hodges and Lehmann's estimate of how much larger `new` is, with the interval of confidence 1 - alpha.

    The estimate is the median of all differences between a new and an old value; the ends of the interval are two of
    these differences. It is true if the distributions differ by a shift only. With ties it is wider than necessary.
    None: the groups are too small for this confidence.
    """
    rank = _interval_rank(len(old), len(new), alpha)
    if rank is None:
        return None
    differences = sorted(after - before for after in new for before in old)
    return Interval(median(differences), differences[rank], differences[-1 - rank])


@functools.lru_cache(maxsize=64)
def _interval_rank(old: int, new: int, alpha: float) -> int | None:
    """Return which difference, counted from either end, is the end of the interval."""
    if smallest_p(old, new) > alpha:
        return None
    if old * new > MAX_EXACT:
        # The tails of the exact distribution are lighter than those of the normal one.
        deviation = math.sqrt(old * new * (old + new + 1) / 12)
        return max(math.floor(old * new / 2 - NormalDist().inv_cdf(1 - alpha / 2) * deviation - 0.5), 0)
    size = min(old, new)
    sums = _rank_sum_counts(tuple(range(2, 2 * (old + new) + 1, 2)), size)
    limit = alpha / 2 * math.comb(old + new, size)
    tail, rank = 0, -1
    for rank_sum in range(size * (size + 1), len(sums), 2):
        tail += sums[rank_sum]
        if tail > limit:
            return rank
        rank += 1
    raise AssertionError("all sums together are more than any alpha allows")
