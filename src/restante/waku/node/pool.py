"""The pool: the hashes of known envelopes, and the live envelopes that can still be relayed.

Both are limited in bytes. Live envelopes that expire first are forgotten first. Hashes are forgotten in the order in
which they came, because copies arrive within seconds: a node that forgot what it has just relayed would relay it
again, and its neighbours back to it. A copy that arrives after its hash was forgotten is archived again, which
changes nothing. So forgetting costs work but not correctness.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.acceptance import EXPIRED_GRACE_SECONDS

HASHES_PER_BLOCK: Final = 1000
"""Hashes that are forgotten together: the oldest block, or a block whose hashes have all expired."""

KNOWN_HASH_MEMORY: Final = 250
"""Bytes of memory per known hash, about."""

LIVE_ENVELOPE_MEMORY: Final = 650
"""Bytes of memory per live envelope beyond its text, about, if each has a topic of its own."""

T = TypeVar("T")


class Expiring(Generic[T]):
    """Items by the second in which they expire."""

    def __init__(self) -> None:
        self._seconds: list[int] = []
        self._things: dict[int, list[T]] = {}

    def add(self, second: int, thing: T) -> None:
        """Add something that expires at a second."""
        things = self._things.get(second)
        if things is None:
            self._things[second] = [thing]
            heapq.heappush(self._seconds, second)
        else:
            things.append(thing)

    def pop_before(self, second: int) -> Iterator[T]:
        """Remove and yield the items that expire before a second."""
        while self._seconds and self._seconds[0] < second:
            yield from self._things.pop(heapq.heappop(self._seconds))

    def pop_first(self) -> list[T]:
        """Remove and return the items that expire first, all of one second; an empty list if there are none."""
        return self._things.pop(heapq.heappop(self._seconds)) if self._seconds else []


class LiveEnvelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope that may be relayed."""

    envelope: Envelope
    pow: float
    origin: bytes
    """The node id of the peer that sent it. The peer itself may be gone long before."""
    number: int
    """Ascending from one envelope to the next."""


class _Block:
    """Hashes that arrived in sequence."""

    __slots__ = ("hashes", "until")

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.until = 0
        """When the last of them expires."""


class Pool:
    """Known hashes, each with a number of the caller's choice; and live envelopes by topic."""

    def __init__(self, known_bytes: int, live_bytes: int) -> None:
        self.known: dict[bytes, int] = {}
        self.live: dict[bytes, dict[bytes, LiveEnvelope]] = {}
        self.size = 0
        """Bytes of memory for live envelopes, about."""
        self._most_known = known_bytes // KNOWN_HASH_MEMORY
        self._most_live = live_bytes
        self._blocks: deque[_Block] = deque()
        self._live_until: Expiring[Envelope] = Expiring()

    def know(self, envelope: Envelope, number: int) -> None:
        """Add the hash of an unknown envelope."""
        self.known[envelope.hash] = number
        if not self._blocks or len(self._blocks[-1].hashes) == HASHES_PER_BLOCK:
            self._blocks.append(_Block())
        block = self._blocks[-1]
        block.hashes.append(envelope.hash)
        block.until = max(block.until, envelope.expiry)
        while len(self.known) > self._most_known and len(self._blocks) > 1:
            self._forget(self._blocks.popleft())

    def _forget(self, block: _Block) -> None:
        for digest in block.hashes:
            self.known.pop(digest, None)

    def keep(self, live: LiveEnvelope) -> None:
        """Keep an envelope for peers that want it later. One that is still in the pool is kept once."""
        envelope = live.envelope
        topic = self.live.setdefault(envelope.topic, {})
        if envelope.hash in topic:
            return
        topic[envelope.hash] = live
        self._live_until.add(envelope.expiry, envelope)
        self.size += LIVE_ENVELOPE_MEMORY + len(envelope.raw)
        while self.size > self._most_live:
            for first in self._live_until.pop_first():
                self._let_go(first)

    def expire(self, now: int) -> None:
        """Forget what has expired by this second."""
        for envelope in self._live_until.pop_before(now):
            self._let_go(envelope)
        over = [block for block in self._blocks if block.until < now - EXPIRED_GRACE_SECONDS]
        for block in over:
            self._blocks.remove(block)
            self._forget(block)

    def _let_go(self, envelope: Envelope) -> None:
        topic = self.live[envelope.topic]
        del topic[envelope.hash]
        if not topic:
            del self.live[envelope.topic]
        self.size -= LIVE_ENVELOPE_MEMORY + len(envelope.raw)
