"""A range of times asked of one Mailserver, page after page: what came, in which order, and what is known by that.

Shipped servers go through their archive by key, which is when an envelope was sent and then its hash: upward with
LevelDB, downward with PostgreSQL. A cursor is a key. Where all that came is in one of these orders, all between the
cursor and the end that was begun at is known, whatever becomes of the rest. Where it is in neither, or a cursor is
none of shipped servers, nothing is known before the last page.
"""

from __future__ import annotations

from restante.common.errors import PeerError
from restante.waku.client.ranges import Range
from restante.waku.envelope.envelope import Envelope
from restante.waku.envelope.rlp import BREACH
from restante.waku.protocol.completion import Completed
from restante.waku.protocol.request import CURSOR_BYTES


class StuckError(PeerError):
    """The server gives page after page and comes no further: nobody honest does."""

    def __init__(self, words: str) -> None:
        super().__init__(BREACH, words)


class Walk:
    """One range at one server. `requested` is when it was first asked for, on the wall clock."""

    def __init__(self, lower: int, upper: int, requested: float) -> None:
        self.lower = lower
        self.upper = upper
        self.requested = requested
        self.cursor = b""
        """Where the next page begins."""
        self.known: Range | None = None
        """What has come of it for certain, unless the server lies."""
        self.over = False
        self._cursors: set[bytes] = set()
        self._hashes: set[bytes] = set()
        self._brought = 0
        """Envelopes of this page."""
        self._fresh = 0
        """Those of them that no page before had."""
        self._key = b""
        self._upward: bool | None = None
        self._ordered = True

    def take(self, envelope: Envelope) -> bool:
        """Take in an envelope; False where this server brought it already."""
        self._brought += 1
        if envelope.hash in self._hashes:
            self._ordered = False
            return False
        self._hashes.add(envelope.hash)
        self._fresh += 1
        self._pass(envelope.sent.to_bytes(4) + envelope.hash)
        return True

    def has(self, last: bytes) -> bool:
        """Tell whether the envelope has come that a page says was its last."""
        return last in self._hashes

    def turn(self, end: Completed) -> None:
        """Take in the end of a page. Raises StuckError."""
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
            self._ordered = False  # it is no key of what was asked for
        self._pass(end.cursor)
        self._conclude(sent)

    def _pass(self, key: bytes) -> None:
        """See whether the way goes on in the direction it had."""
        if self._key and key != self._key:
            upward = key > self._key
            if self._upward is None:
                self._upward = upward
            elif self._upward != upward:
                self._ordered = False
        self._key = key

    def _conclude(self, sent: int) -> None:
        """Note what is known with a cursor of this second, whose other envelopes may be still to come."""
        self.known = None
        if not self._ordered or self._upward is None:
            return
        known = (self.lower, min(sent - 1, self.upper)) if self._upward else (max(sent + 1, self.lower), self.upper)
        if known[0] <= known[1]:
            self.known = known
