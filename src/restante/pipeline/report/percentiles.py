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


def percentiles(buckets: Iterable[Bucket], wanted: Sequence[int] = PERCENTILES) -> list[float | None]:
    """Return the percentiles in microseconds, to within 1 %; None for each if no duration is known.

    The percentile p of n durations is the least one that is at least as long as p % of them (nearest rank). Buckets
    may come several times: those of days, applications and servers are added up.
    """
    counts: Counter[int] = Counter()
    for least, count in buckets:
        if least is not None and count > 0:
            counts[least] += count
    whole, below = counts.total(), 0
    if not whole:
        return [None for _ in wanted]
    found: dict[int, float] = {}
    for least in sorted(counts):
        below += counts[least]
        for percent in wanted:
            if percent not in found and 100 * below >= percent * whole:
                found[percent] = float(least * MIDDLE)  # exact: whole hundredths
    return [found[percent] for percent in wanted]


def known(buckets: Iterable[Bucket]) -> tuple[int, int]:
    """Return how many durations are known, and how many are not."""
    sums = [0, 0]
    for least, count in buckets:
        sums[least is None] += count
    return sums[0], sums[1]
