"""How much counts since the start have grown in the last hour."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

HOUR_SECONDS: Final = 3600.0

STEP_SECONDS: Final = 60.0
"""Seconds between two remembered states. The last hour may be longer by this much."""


class LastHour:
    """Remembers the counts of each minute of the last hour. Its memory is bounded if the number of counts is."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, counts: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Begin to remember. `counts` are those of this moment, if they are not all 0."""
        self._clock = clock
        self._states: deque[tuple[float, dict[str, int]]] = deque([(clock(), dict(counts))])
        """When counts were remembered, and the counts, the oldest first."""

    def remember(self, counts: Mapping[str, int]) -> None:
        """Remember counts. Call this at least once a minute."""
        now = self._clock()
        if now - self._states[-1][0] >= STEP_SECONDS:
            self._states.append((now, dict(counts)))
            while now - self._states[1][0] >= HOUR_SECONDS:
                self._states.popleft()

    def growth(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return how much each count has grown in the last hour."""
        before = self._states[0][1]
        return {name: count - before.get(name, 0) for name, count in counts.items()}
