"""When a peer is read: while there is no reason to pause. And what its packets cost."""

from __future__ import annotations

import asyncio
from typing import Final

PAUSED_BY_QUOTA: Final = 1
"""Reason: the peer's address has used up its quota of bytes or envelopes."""
PAUSED_BY_UNREAD: Final = 2
"""Reason: the peer has left too much unread."""
PAUSED_BY_ARCHIVE: Final = 4
"""Reason: too many bytes of envelopes wait to be saved."""
PAUSED_FOR_OTHERS: Final = 8
"""Reason: other peers are read first."""
PAUSED_BY_LARGE_PACKET: Final = 16
"""Reason: a large packet of the peer is being handled."""
PAUSED_BY_DRAIN: Final = 32
"""Reason: the node is stopping, so it reads no more."""
PAUSED_BY_DECISION: Final = 64
"""Reason: it is not decided yet whether the peer is admitted."""

MAX_TURN_BYTES: Final = 1 << 16
"""Bytes in one read after which other peers are read first."""

REFUSAL_COST: Final = 10
"""Envelopes that a refused envelope, or a packet that cannot be read, counts as."""

INTEREST_CHANGE_COST: Final = 100
"""Envelopes that a change of interest counts as: the node looks at some thousand topics for it."""

BYTES_PER_COST: Final = 40
"""Bytes of a packet without envelopes that count as one envelope. The packet may consist of items of a microsecond
each."""


class ReadPacing:
    """The set of reasons for which a peer is not read."""

    __slots__ = ("_reasons", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the connection is made and after it is closed."""
        self._reasons = 0

    @property
    def paused(self) -> bool:
        """Return whether we are not reading the peer."""
        return bool(self._reasons)

    @property
    def paused_by_unread(self) -> bool:
        """Return whether the peer has left so much unread that nothing is relayed to it."""
        return bool(self._reasons & PAUSED_BY_UNREAD)

    def pause(self, reason: int) -> None:
        """Stop reading the peer until `resume` is called for this reason."""
        if not self._reasons and self.transport is not None:
            self.transport.pause_reading()
        self._reasons |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason. Read the peer again if no other is left."""
        before, self._reasons = self._reasons, self._reasons & ~reason
        if before and not self._reasons and self.transport is not None:
            self.transport.resume_reading()

    def yield_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop reading the peer for one turn of the loop, so that the transport reads other peers first."""
        self.pause(PAUSED_FOR_OTHERS)
        loop.call_soon(self.resume, PAUSED_FOR_OTHERS)
