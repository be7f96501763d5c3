"""Whether a peer is read: for as long as there is no reason not to."""

from __future__ import annotations

import asyncio
from typing import Final

PAUSED_BY_QUOTA: Final = 1
"""Its address sent more than it may in a second."""
PAUSED_BY_UNREAD: Final = 2
"""It does not read."""
PAUSED_BY_ARCHIVE: Final = 4
"""We have more to save than we may have."""
PAUSED_FOR_OTHERS: Final = 8
"""It is the others' turn."""
PAUSED_BY_LARGE_PACKET: Final = 16
"""A large packet of its is being taken in."""
PAUSED_BY_DRAIN: Final = 32
"""We are about to stop; it is read no more."""

MAX_TURN_BYTES: Final = 1 << 16
"""Bytes that came at once, after which it is the others' turn."""


REFUSAL_COST: Final = 10
"""How many envelopes one that is refused, or a packet that is no good, counts for."""

INTEREST_CHANGE_COST: Final = 100
"""How many a change of mind counts for: some thousand topics are looked at for it."""

BYTES_PER_COST: Final = 40
"""Bytes of a packet without envelopes that count for one: all of them may be items, of a microsecond each."""


class ReadPacing:
    """The reasons for which a peer is not read, added up."""

    __slots__ = ("_reasons", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None: the connection is not made yet, or is gone."""
        self._reasons = 0

    @property
    def paused(self) -> bool:
        """Whether it is we who do not read."""
        return bool(self._reasons)

    @property
    def stuck(self) -> bool:
        """Whether the peer owes us so much reading that nothing should be added."""
        return bool(self._reasons & PAUSED_BY_UNREAD)

    def pause(self, reason: int) -> None:
        """Leave the peer unread until `resume` for this reason."""
        if not self._reasons and self.transport is not None:
            self.transport.pause_reading()
        self._reasons |= reason

    def resume(self, reason: int) -> None:
        """Read on, where this was the last reason not to."""
        before, self._reasons = self._reasons, self._reasons & ~reason
        if before and not self._reasons and self.transport is not None:
            self.transport.resume_reading()

    def yield_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave the peer unread for a turn of the loop: else the transport may read on before others are read."""
        self.pause(PAUSED_FOR_OTHERS)
        loop.call_soon(self.resume, PAUSED_FOR_OTHERS)
