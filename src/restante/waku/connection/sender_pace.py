"""Which senders wait for the confirmation of a packet before they send the next.

Whether a sender waits shows only while its packet waits to be saved: a sender that waits is silent until the
confirmation, and sends its next packet soon after it. Any other sends packets meanwhile, or much later. Times are
seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from typing import Final

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

    __slots__ = ("_arrived", "_prompt", "_waits", "confirmed")

    def __init__(self) -> None:
        self._arrived = math.inf
        """When its last packet arrived. Infinite before the first."""
        self._waits = 0
        """How often in a row it seemed to have waited."""
        self._prompt = 0
        """How many more of its packets are saved at once."""
        self.confirmed = -math.inf
        """When a packet of the sender was last confirmed."""

    def arrive(self, now: float) -> bool:
        """Record a packet that arrived. Return whether its sender seems to wait for its confirmation."""
        silent, late = self.confirmed - self._arrived, now - self.confirmed
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
