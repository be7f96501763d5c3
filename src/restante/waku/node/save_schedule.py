"""When a batch of gathered envelopes is saved.

A save has a fixed cost: the pages of a transaction, a flush, and waking a thread. Waiting for more envelopes spreads
that cost over more of them, but delays senders that leave few packets unconfirmed. So a batch waits only if it is
small and no sender seems to wait for it. Times are seconds of a monotonic clock.

Whether a sender waits shows only while its packet waits to be saved: a sender that waits is silent until the
confirmation, and sends its next packet soon after it. Any other sends packets meanwhile, or much later.
"""

from __future__ import annotations

import math
from typing import Final

SAVE_INTERVAL: Final = 0.04
"""Seconds from the beginning of a save to the next save of a small batch: 25 small saves a second. At 200 envelopes a
second, one save per envelope would nearly double the node's work per envelope (bench/README.md)."""

MIN_BATCH_ENVELOPES: Final = 16
"""Envelopes in a batch that does not wait for `SAVE_INTERVAL`. A save costs 0.27 ms of processor time. Divided by 16,
that is less than the rest of the work per envelope."""

MAX_BATCH_ENVELOPES: Final = 500
"""Envelopes in a batch that is saved although more wait to be read. Larger batches hardly reduce the cost per
envelope."""

PROMPT_SECONDS: Final = 0.002
"""Seconds after a confirmation within which a peer that waited for it sends its next packet."""


SILENT_SECONDS: Final = 0.02
"""Seconds without another packet before a confirmation, from which on its sender may have waited for it. A sender of
more than 50 packets a second that does not wait is not silent for so long."""

BURST_SECONDS: Final = 0.005
"""Seconds after a packet in which more packets come from a sender that leaves several unconfirmed at a time."""

WAITS_IN_A_ROW: Final = 3
"""How often in a row a sender must seem to have waited. A sender of 30 packets a second that does not wait seems to
have waited once in seven times."""

PROMPT_PACKETS: Final = 256
"""Packets of a sender that has waited which are saved at once. Then three may wait again, to see whether it still
does."""


class SenderPace:
    """Whether one sender waits for the confirmation of a packet before it sends the next."""

    __slots__ = ("_arrived", "_prompt", "_waits")

    def __init__(self) -> None:
        self._arrived = math.inf
        """When its last packet arrived. Infinite before the first."""
        self._waits = 0
        """How often in a row it seemed to have waited."""
        self._prompt = 0
        """How many more of its packets are saved at once."""

    def arrive(self, now: float, confirmed: float) -> bool:
        """Note a packet. Return whether its sender seems to wait for its confirmation.

        `confirmed` is when a packet of the sender was last confirmed.
        """
        silent, late = confirmed - self._arrived, now - confirmed
        if silent < 0:  # its last packet is not confirmed yet
            if now - self._arrived > BURST_SECONDS:
                self._waits = self._prompt = 0
        elif silent >= SILENT_SECONDS and late <= silent / 2:
            self._waits += 1
            if self._waits >= WAITS_IN_A_ROW:
                self._waits, self._prompt = 0, PROMPT_PACKETS
        elif not self._prompt:
            self._waits = 0
        self._arrived = now
        if late <= PROMPT_SECONDS:
            return True
        self._prompt = max(0, self._prompt - 1)
        return self._prompt > 0


class SaveSchedule:
    """Decides when the next batch is saved."""

    __slots__ = ("_awaited", "_due", "_interval")

    def __init__(self, interval: float) -> None:
        """Set the time from the beginning of a save to the next save of a small batch."""
        self._interval = interval
        self._due = -math.inf
        self._awaited = False

    def await_save(self) -> None:
        """Note that a sender seems to wait for the next save."""
        self._awaited = True

    def waits(self, count: int, now: float) -> float:
        """Return how long a batch of `count` envelopes waits for more when nothing more waits to be read."""
        if count >= MIN_BATCH_ENVELOPES or self._awaited:
            return 0.0
        return max(0.0, self._due - now)

    def reads_on(self, count: int, now: float) -> bool:
        """Return whether to read what is waiting before a batch of `count` envelopes is saved."""
        return count < MAX_BATCH_ENVELOPES and now < self._due

    def begin(self, now: float) -> None:
        """Note that a save begins. Envelopes gathered from now on belong to the next batch."""
        self._due = now + self._interval
        self._awaited = False
