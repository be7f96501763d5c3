"""One range of times at one Mailserver, page by page: what it sent, in which order, and what is known from that.

Shipped servers iterate over their archive by key: the sending time, then the hash. The order is ascending with
LevelDB and descending with PostgreSQL. A cursor is a key. If all that was sent is in one of these orders, everything
from the first end to the cursor is known, whatever happens later. If the order is neither, or a cursor is not a key
as shipped servers send it, nothing is known before the last page.
"""

from __future__ import annotations

from restante.common.errors import PeerError
from restante.waku.client.ranges import Range
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.rlp import BREACH
from restante.waku.protocol.completion import Completed
from restante.waku.protocol.request import CURSOR_BYTES


class StuckError(PeerError):
    """The server sends page after page without progress. No honest server does."""

    def __init__(self, words: str) -> None:
        super().__init__(BREACH, words)


class Walk:
    """One range at one server. `requested` is when it was first requested, by the wall clock."""

    def __init__(self, lower: int, upper: int, requested: float) -> None:
        self.lower = lower
        self.upper = upper
        self.requested = requested
        self.cursor = b""
        """Where the next page begins."""
        self.known: Range | None = None
        """The times that are fully known, unless the server lies."""
        self.over = False
        self._cursors: set[bytes] = set()
        self._hashes: set[bytes] = set()
        self._brought = 0
        """Envelopes of the current page."""
        self._fresh = 0
        """Envelopes of the current page that no earlier page had."""
        self._key = b""
        self._upward: bool | None = None
        self._ordered = True

    def take(self, envelope: Envelope) -> bool:
        """Record an envelope. Return False if this server has already sent it."""
        self._brought += 1
        if envelope.hash in self._hashes:
            self._ordered = False
            return False
        self._hashes.add(envelope.hash)
        self._fresh += 1
        self._pass(envelope.sent.to_bytes(4) + envelope.hash)
        return True

    def has(self, last: bytes) -> bool:
        """Return whether this envelope, the last of a page according to the server, has arrived."""
        return last in self._hashes

    def turn(self, end: Completed) -> None:
        """Record the end of a page. Raises StuckError."""
        if not end.cursor:
            self.known = (self.lower, self.upper)
            self.over = True
            self._hashes.clear()
            return
        if end.cursor in self._cursors:
            raise StuckError("its cursor does not advance")
        if self._brought and not self._fresh:
            raise StuckError("its pages repeat")
        self._cursors.add(end.cursor)
        self.cursor = end.cursor
        self._brought = self._fresh = 0
        sent = int.from_bytes(end.cursor[:4])
        if len(end.cursor) != CURSOR_BYTES or not self.lower <= sent <= self.upper:
            self._ordered = False  # it is not a key of the requested range
        self._pass(end.cursor)
        self._conclude(sent)

    def _pass(self, key: bytes) -> None:
        """Check that the keys still go in the same direction."""
        if self._key and key != self._key:
            upward = key > self._key
            if self._upward is None:
                self._upward = upward
            elif self._upward != upward:
                self._ordered = False
        self._key = key

    def _conclude(self, sent: int) -> None:
        """Set what is known at a cursor. Other envelopes of its second may still follow."""
        self.known = None
        if not self._ordered or self._upward is None:
            return
        known = (self.lower, min(sent - 1, self.upper)) if self._upward else (max(sent + 1, self.lower), self.upper)
        if known[0] <= known[1]:
            self.known = known
