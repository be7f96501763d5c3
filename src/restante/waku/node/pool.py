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
from typing import Final

import msgspec

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.acceptance import EXPIRED_GRACE_SECONDS

HASHES_PER_BLOCK: Final = 1000
"""Hashes that are forgotten together: the oldest block, or a block whose hashes have all expired."""

KNOWN_HASH_MEMORY: Final = 250
"""Bytes of memory per known hash, about."""

LIVE_ENVELOPE_MEMORY: Final = 650
"""Bytes of memory per live envelope beyond its text, about, if each has a topic of its own."""


class _ByExpiry:
    """Envelopes by the second in which they expire."""

    def __init__(self) -> None:
        self._seconds: list[int] = []
        self._envelopes: dict[int, list[Envelope]] = {}

    def add(self, envelope: Envelope) -> None:
        envelopes = self._envelopes.get(envelope.expiry)
        if envelopes is None:
            self._envelopes[envelope.expiry] = [envelope]
            heapq.heappush(self._seconds, envelope.expiry)
        else:
            envelopes.append(envelope)

    def pop_before(self, second: int) -> Iterator[Envelope]:
        """Remove and yield the envelopes that expire before a second."""
        while self._seconds and self._seconds[0] < second:
            yield from self.pop_first()

    def pop_first(self) -> list[Envelope]:
        """Remove and return the envelopes that expire first, all of one second; an empty list if there are none."""
        return self._envelopes.pop(heapq.heappop(self._seconds)) if self._seconds else []


class LiveEnvelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope that may be relayed."""

    envelope: Envelope
    pow: float
    origin: bytes
    """The node id of the peer that sent it. The peer may have disconnected since."""
    number: int
    """Ascending from one envelope to the next."""


class _Block:
    """Hashes that arrived in sequence."""

    __slots__ = ("expiry", "hashes")

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.expiry = 0
        """When the last of their envelopes expires."""


class Pool:
    """Known hashes, each with a number of the caller's choice; and live envelopes by topic."""

    def __init__(self, known_bytes: int, live_bytes: int) -> None:
        self.known_hashes: dict[bytes, int] = {}
        self.live: dict[bytes, dict[bytes, LiveEnvelope]] = {}
        self.size = 0
        """Bytes of memory for live envelopes, about."""
        self._max_hashes = known_bytes // KNOWN_HASH_MEMORY
        self._max_size = live_bytes
        self._blocks: deque[_Block] = deque()
        self._expiring = _ByExpiry()

    def add_hash(self, envelope: Envelope, number: int) -> None:
        """Add the hash of an unknown envelope."""
        self.known_hashes[envelope.hash] = number
        if not self._blocks or len(self._blocks[-1].hashes) == HASHES_PER_BLOCK:
            self._blocks.append(_Block())
        block = self._blocks[-1]
        block.hashes.append(envelope.hash)
        block.expiry = max(block.expiry, envelope.expiry)
        while len(self.known_hashes) > self._max_hashes and len(self._blocks) > 1:
            self._forget_hashes(self._blocks.popleft())

    def _forget_hashes(self, block: _Block) -> None:
        for digest in block.hashes:
            self.known_hashes.pop(digest, None)

    def add_live(self, live: LiveEnvelope) -> None:
        """Add an envelope for peers that want it later, unless it is in the pool already."""
        envelope = live.envelope
        topic = self.live.setdefault(envelope.topic, {})
        if envelope.hash in topic:
            return
        topic[envelope.hash] = live
        self._expiring.add(envelope)
        self.size += LIVE_ENVELOPE_MEMORY + len(envelope.raw)
        while self.size > self._max_size:
            for first_envelope in self._expiring.pop_first():
                self._remove_live(first_envelope)

    def expire(self, now: int) -> None:
        """Forget what has expired by this second."""
        for envelope in self._expiring.pop_before(now):
            self._remove_live(envelope)
        expired = [block for block in self._blocks if block.expiry < now - EXPIRED_GRACE_SECONDS]
        for block in expired:
            self._blocks.remove(block)
            self._forget_hashes(block)

    def _remove_live(self, envelope: Envelope) -> None:
        topic = self.live[envelope.topic]
        del topic[envelope.hash]
        if not topic:
            del self.live[envelope.topic]
        self.size -= LIVE_ENVELOPE_MEMORY + len(envelope.raw)
