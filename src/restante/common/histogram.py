"""Histograms, as Prometheus shows them (Prometheus, "Exposition formats": histograms and summaries)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Histogram:
    """Counts of values by upper bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count values by these upper bounds, which ascend, and one more for all values."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of the values."""

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add_since(self, times: Iterable[float], now: float) -> None:
        """Count how long ago each of these times was, in one call for all messages of a batch."""
        bounds, counts, total = self._bounds, self._counts, self.total
        for time in times:
            value = now - time
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.total = total

    @property
    def state(self) -> tuple[list[int], float]:
        """The counts and the sum, for another histogram's `state`. Counts by other bounds are ignored."""
        return self._counts.copy(), self.total

    @state.setter
    def state(self, state: tuple[list[int], float]) -> None:
        counts, total = state
        if len(counts) == len(self._counts):
            self._counts, self.total = list(counts), total

    @property
    def count(self) -> int:
        """Return the number of values."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """Return the bounds as text, each with the number of values at or below it. The last bound is +Inf."""
        return list(
            zip([*(f"{bound:.10g}" for bound in self._bounds), "+Inf"], accumulate(self._counts), strict=True)
        )
