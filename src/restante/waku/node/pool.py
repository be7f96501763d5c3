"""What is known of envelopes that live: which were seen, and those that can still be relayed.

Both are bounded in bytes. Of those that live, what expires first goes first. Of hashes, those that came first: copies
come within seconds, and a node that forgot what it has just relayed would relay it again, and its neighbours back to
it. What comes back later is archived again, which changes nothing; so to forget costs work and never truth.
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
"""Hashes that are forgotten together: the oldest block, or one of which all have expired."""

KNOWN_HASH_MEMORY: Final = 250
"""Bytes of memory that a hash takes while it is known, about."""

LIVE_ENVELOPE_MEMORY: Final = 650
"""Bytes of memory that a live envelope takes beyond its text, about, where each has a topic of its own."""

T = TypeVar("T")


class Expiring(Generic[T]):
    """Things by the second in which they expire."""

    def __init__(self) -> None:
        self._seconds: list[int] = []
        self._things: dict[int, list[T]] = {}

    def add(self, second: int, thing: T) -> None:
        things = self._things.get(second)
        if things is None:
            self._things[second] = [thing]
            heapq.heappush(self._seconds, second)
        else:
            things.append(thing)

    def pop_before(self, second: int) -> Iterator[T]:
        """Take out what expires before a second."""
        while self._seconds and self._seconds[0] < second:
            yield from self._things.pop(heapq.heappop(self._seconds))

    def pop_first(self) -> list[T]:
        """Take out all that expires in the first second there is; nothing where there is nothing."""
        return self._things.pop(heapq.heappop(self._seconds)) if self._seconds else []


class LiveEnvelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope that may be relayed."""

    envelope: Envelope
    pow: float
    origin: bytes
    """The name of the peer that brought it; not the peer itself, which may be gone long before."""
    number: int
    """Rises from one to the next."""


class _Block:
    """Hashes that came one after the other."""

    __slots__ = ("hashes", "until")

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.until = 0
        """When the last of them expires."""


class Pool:
    """Known hashes, each with a number that is the caller's; and live envelopes by topic."""

    def __init__(self, known_bytes: int, live_bytes: int) -> None:
        self.known: dict[bytes, int] = {}
        self.live: dict[bytes, dict[bytes, LiveEnvelope]] = {}
        self.size = 0
        """Bytes that live envelopes take, about."""
        self._most_known = known_bytes // KNOWN_HASH_MEMORY
        self._most_live = live_bytes
        self._blocks: deque[_Block] = deque()
        self._live_until: Expiring[Envelope] = Expiring()

    def know(self, envelope: Envelope, number: int) -> None:
        """Take note of an envelope that was not known."""
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
        """Have an envelope for those who come to want it later; no harm where it is there, but was forgotten."""
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
