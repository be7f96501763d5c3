"""When a batch of gathered envelopes is saved.

A save has a fixed cost: the pages of a transaction, a flush, and waking a thread. Waiting for more envelopes spreads
it over more of them, but holds up senders that leave few packets unconfirmed. So a batch waits only where it is small
and where no sender seems to wait for it. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from typing import Final

SAVE_INTERVAL: Final = 0.04
"""Seconds from the beginning of a save to the next save of a small batch: 25 small saves a second. With 200 envelopes
a second, a save for each would nearly double what the node does for an envelope (bench/README.md)."""

MIN_BATCH_ENVELOPES: Final = 16
"""Envelopes that do not wait for `SAVE_INTERVAL`. A save costs 0.27 ms of the processor, so for each of 16 it
costs less than everything else that is done for an envelope."""

MAX_BATCH_ENVELOPES: Final = 500
"""Envelopes that are saved although more is waiting to be read: in larger batches each costs hardly less."""

PROMPT_SECONDS: Final = 0.002
"""Seconds after its last confirmation in which a peer sends the next packet if it waited for that confirmation."""


class SaveSchedule:
    """Decides when the next batch is saved."""

    __slots__ = ("_awaited", "_due", "_interval")

    def __init__(self, interval: float) -> None:
        """`interval` is the time from the beginning of a save to the next save of a small batch."""
        self._interval = interval
        self._due = -math.inf
        self._awaited = False

    def gathered(self, since_confirmed: float) -> None:
        """Note that a peer brought envelopes for the batch, so long after its last packet was confirmed."""
        if since_confirmed <= PROMPT_SECONDS:
            self._awaited = True

    def waits(self, count: int, now: float) -> float:
        """Return how long a batch of `count` envelopes waits for more, once nothing more waits to be read."""
        if count >= MIN_BATCH_ENVELOPES or self._awaited:
            return 0.0
        return max(0.0, self._due - now)

    def reads_on(self, count: int, now: float) -> bool:
        """Return whether what waits to be read now is read before a batch of `count` envelopes is saved."""
        return count < MAX_BATCH_ENVELOPES and now < self._due

    def begin(self, now: float) -> None:
        """Note that a save begins; what is gathered from now on is the next batch."""
        self._due = now + self._interval
        self._awaited = False
