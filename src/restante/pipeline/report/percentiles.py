"""Percentiles of histograms whose buckets grow by 2 % (restante.pipeline.tables.buckets). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

MIDDLE: Final = Fraction(101, 100)
"""The middle of a bucket over its shortest duration. It differs from any duration in the bucket by 1 % at most."""

PERCENTILES: Final = (50, 90, 99)

Bucket = tuple[int | None, int]
"""The shortest duration of a bucket in microseconds, and a count. None: durations that are not known."""


def percentiles(buckets: Iterable[Bucket], percents: Sequence[int] = PERCENTILES) -> list[float | None]:
    """Return the percentiles in microseconds, to within 1 %; None for each if no duration is known.

    The percentile p of n durations is the least one that is at least as long as p % of them (nearest rank). Buckets
    may come several times: those of days, applications and servers are added up.
    """
    counts: Counter[int] = Counter()
    for shortest, count in buckets:
        if shortest is not None and count > 0:
            counts[shortest] += count
    total, below = counts.total(), 0
    if not total:
        return [None for _ in percents]
    values: dict[int, float] = {}
    for shortest in sorted(counts):
        below += counts[shortest]
        for percent in percents:
            if percent not in values and 100 * below >= percent * total:
                values[percent] = float(shortest * MIDDLE)  # exact: whole hundredths
    return [values[percent] for percent in percents]


def count_known(buckets: Iterable[Bucket]) -> tuple[int, int]:
    """Return how many durations are known, and how many are not."""
    sums = [0, 0]
    for shortest, count in buckets:
        sums[shortest is None] += count
    return sums[0], sums[1]
