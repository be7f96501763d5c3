"""When a batch of gathered envelopes is saved.

A save has a fixed cost: the pages of a transaction, a flush, and waking a thread. Waiting for more envelopes spreads
that cost over more of them, but delays senders that leave few packets unconfirmed. So a batch waits only if it is
small and no sender seems to wait for it. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from typing import Final

SAVE_INTERVAL: Final = 0.04
"""Seconds from the beginning of a save to the next save of a small batch: 25 small saves a second. At 200 envelopes a
second, one save per envelope would nearly double the node's work per envelope (docs/decisions/waku-speed.md)."""

MIN_BATCH_ENVELOPES: Final = 16
"""Envelopes in a batch that does not wait for `SAVE_INTERVAL`. A save costs 0.27 ms of processor time. Divided by 16,
that is less than the rest of the work per envelope."""

MAX_BATCH_ENVELOPES: Final = 500
"""Envelopes in a batch that is saved although more wait to be read. Larger batches hardly reduce the cost per
envelope."""


class SaveSchedule:
    """Decides when the next batch is saved."""

    __slots__ = ("_awaited", "_interval", "_next_save")

    def __init__(self, interval: float) -> None:
        """Set the time from the beginning of a save to the next save of a small batch."""
        self._interval = interval
        self._next_save = -math.inf
        self._awaited = False

    def await_save(self) -> None:
        """Record that a sender seems to wait for the next save."""
        self._awaited = True

    def wait(self, count: int, now: float) -> float:
        """Return for how many seconds a batch of `count` envelopes waits for more, if nothing is left to be read."""
        if count >= MIN_BATCH_ENVELOPES or self._awaited:
            return 0.0
        return max(0.0, self._next_save - now)

    def may_read_more(self, count: int, now: float) -> bool:
        """Return whether to read what is waiting before a batch of `count` envelopes is saved."""
        return count < MAX_BATCH_ENVELOPES and now < self._next_save

    def begin(self, now: float) -> None:
        """Record that a save begins. Envelopes gathered from now on belong to the next batch."""
        self._next_save = now + self._interval
        self._awaited = False
