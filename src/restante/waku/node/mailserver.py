"""The Mailserver's rules: which envelopes are new, which are archived, and when their packet is confirmed.

    offered ──known?──▶ confirmed with the batch it is in ──────────────────────────────────┐
       │ no                                                                                 │
       ▼                                                                                    ▼
    accepted? ──▶ relayed at once, and gathered ──take_batch──▶ saved, durable ─confirm──▶ confirmed

The response to a packet names each of its envelopes that is not archived. An envelope is in the archive only after
its commit. A copy that arrives before that is confirmed together with the first. If the store refuses a batch before
the commit (a full disk, a lock), the node goes on: the envelopes are relayed, their senders receive an error, and a
later copy is archived. A copy of an envelope that was pruned is archived again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec

from restante.common.histogram import Histogram
from restante.waku.envelope.envelope import Envelope
from restante.waku.node.pool import LiveEnvelope, Pool
from restante.waku.protocol.acceptance import EXPIRED, Policy, RefusalReason, judge
from restante.waku.protocol.packets import MAX_REFUSALS, OTHER_ERROR, Refusal, Response

UNARCHIVED_BATCH: Final = 0
"""Batch number of a known envelope that is not in the archive. The next copy may be gathered."""

FULL_TEXT: Final = "not archived: no space left; send it again later"
LOCKED_TEXT: Final = "not archived: the archive cannot be written now; send it again later"
TOPIC_TEXT: Final = "not archived: this node does not archive its topic"
AGE_TEXT: Final = "not archived: it is older than what this node keeps"
WORK_TEXT: Final = "not archived: it has too little work for a ttl of 0"
"""Why an accepted envelope is not archived: the text for its sender."""

ENVELOPE_SIZE_BOUNDS: Final = tuple(1 << bits for bits in range(8, 21))
"""Bounds of a histogram: bytes of an envelope."""

ARCHIVE_RETRY_DELAY: Final = 10
"""Seconds after a refusal by the store until envelopes are gathered again."""

PACKET_MEMORY: Final = 500
HASH_MEMORY: Final = 80
REFUSAL_MEMORY: Final = 250
"""Bytes of memory, about, for a packet that waits to be confirmed, for each of its envelopes that is being archived,
and for each refused one."""


class EnvelopeCount(StrEnum):
    """What became of offered envelopes. The values are the names in the log of a minute."""

    NEW = "new"
    """Accepted, and not known before."""
    KNOWN = "known"
    ARCHIVED = "archived"
    NOT_ARCHIVED = "not archived"
    """Because of the disk."""


class ArchiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Which envelopes are archived, and which are kept."""

    retention: int | None = None
    """Seconds after sending for which envelopes are kept. None: for ever."""
    retention_bytes: int | None = None
    """Bytes of envelopes that are kept. None: no limit."""
    topics: frozenset[bytes] | None = None
    """The topics that are archived. None: all."""


class Batch(msgspec.Struct, frozen=True):
    """Envelopes to save in one transaction. Numbers ascend."""

    number: int
    envelopes: list[Envelope]


class OfferedPacket:
    """A packet of envelopes that is being handled. `origin` is the node id of the peer that sent it."""

    __slots__ = ("hash", "hashes", "last_batch", "memory", "origin", "refusals")

    def __init__(self, origin: bytes, packet_hash: bytes) -> None:
        self.origin = origin
        self.hash = packet_hash
        self.hashes: list[bytes] = []
        """Hashes of its envelopes that are being archived."""
        self.last_batch = 0
        """The number of the last batch that contains one of them."""
        self.refusals: dict[bytes, Refusal] = {}
        """Its envelopes that are not archived, by hash: a packet may contain one several times."""
        self.memory = 0
        """Bytes of memory that it takes while it waits, about."""

    def refuse(self, digest: bytes, code: int, text: str) -> None:
        """Name an envelope of the packet as not archived. `text` says why, for the sender."""
        if digest not in self.refusals and len(self.refusals) <= MAX_REFUSALS:  # more are never sent
            self.refusals[digest] = Refusal(digest, code, text)

    def response(self) -> Response | None:
        """Return the response to the packet, or None if it has more refusals than a response can contain.

        Such a packet is never answered. A response without some of them would confirm these envelopes, also if others
        followed: status-go closes a packet with the first answer (protocol/transport/envelopes_monitor.go,
        handleAcknowledgedBatch).
        """
        if len(self.refusals) > MAX_REFUSALS:
            return None
        return Response(self.hash, tuple(self.refusals.values()))


class Mailserver:
    """Decides about each offered envelope, and gathers those that are to be archived in batches."""

    def __init__(self, policy: Policy, terms: ArchiveTerms, pool: Pool, max_waiting_bytes: int) -> None:
        self.policy = policy
        self.terms = terms
        self.pool = pool
        self.unrelayed: list[LiveEnvelope] = []
        """New envelopes to relay. The relay removes them."""
        self.counts: Counter[EnvelopeCount] = Counter()
        self.refusals: Counter[RefusalReason] = Counter()
        """Refused envelopes."""
        self.sizes, self.archived_sizes = Histogram(ENVELOPE_SIZE_BOUNDS), Histogram(ENVELOPE_SIZE_BOUNDS)
        """Sizes in bytes of new envelopes, and of archived ones."""
        self.refused = 0
        """Envelopes refused since the start, without those that may have expired in transit."""
        self.gathered: list[Envelope] = []
        """Envelopes of the next batch."""
        self.gathered_size = 0
        """Bytes of these envelopes."""
        self._number = 1
        """The number of the next batch."""
        self._finished = 0
        """The number of the last batch that was saved or refused."""
        self._waiting: dict[int, list[OfferedPacket]] = {}
        """Packets that wait for a batch, by its number."""
        self.waiting_size = 0
        """Bytes of memory for these packets, about."""
        self.max_waiting_bytes = max_waiting_bytes
        """The limit of `waiting_size`."""
        self._unfinished: set[OfferedPacket] = set()
        """Packets of which some envelopes are being archived and the last part has not been handled."""
        self.pruned_until = -1
        """Envelopes sent until this time may have been pruned."""
        self.floor = -1
        """Envelopes sent before this time would be pruned first, because the archive has reached its maximum size."""
        self.refused_until = 0
        """Time until which nothing is archived, because the store has refused a batch."""
        self._refusal_text = FULL_TEXT
        """Why the store refused the last batch, for senders."""

    def receive(self, packet: OfferedPacket, envelopes: Iterable[Envelope], now: int) -> None:
        """Handle a part of a packet."""
        known_hashes = self.pool.known_hashes
        for envelope in envelopes:
            digest = envelope.hash
            number = known_hashes.get(digest)
            if number is None:
                number = self._judge(packet, envelope, now)
            else:
                self.counts[EnvelopeCount.KNOWN] += 1
                if number <= self._finished and (number == UNARCHIVED_BATCH or self._may_be_pruned(envelope, now)):
                    known_hashes[digest] = number = self._gather(envelope, packet, now)
            if number > self._finished:
                packet.hashes.append(digest)
                packet.last_batch = max(packet.last_batch, number)
        if packet.hashes:
            self._unfinished.add(packet)

    def finish(self, packet: OfferedPacket) -> Response | None:
        """Return the response to a packet after its last part.

        None: `confirm` or `refuse` will return it, or it is never answered, because it has too many refusals or too
        many packets wait.
        """
        self._unfinished.discard(packet)
        if packet.last_batch <= self._finished:
            return packet.response()
        packet.memory = PACKET_MEMORY + HASH_MEMORY * len(packet.hashes) + REFUSAL_MEMORY * len(packet.refusals)
        if self.waiting_size + packet.memory <= self.max_waiting_bytes:
            self.waiting_size += packet.memory
            self._waiting.setdefault(packet.last_batch, []).append(packet)
        return None

    def _judge(self, packet: OfferedPacket, envelope: Envelope, now: int) -> int:
        """Judge an unknown envelope. Return the number of its batch."""
        verdict = judge(envelope, now, self.policy)
        if verdict.refusal is not None:
            self.refusals[verdict.refusal] += 1
            if verdict.refusal is not EXPIRED:
                self.refused += 1
            packet.refuse(envelope.hash, verdict.refusal.code, verdict.refusal.words)
            return UNARCHIVED_BATCH
        self.counts[EnvelopeCount.NEW] += 1
        self.sizes.add(len(envelope.raw))
        live = LiveEnvelope(envelope, verdict.pow, packet.origin, self.counts[EnvelopeCount.NEW])
        self.unrelayed.append(live)
        self.pool.add_live(live)
        number = self._gather(envelope, packet, now)
        self.pool.add_hash(envelope, number)
        return number

    def _gather(self, envelope: Envelope, packet: OfferedPacket, now: int) -> int:
        """Gather an accepted envelope, or name it in the response. Return the number of its batch."""
        unarchived = self._unarchived_text(envelope, now)
        if unarchived is not None:
            packet.refuse(envelope.hash, OTHER_ERROR, unarchived)
            return UNARCHIVED_BATCH
        if self.store_refuses(now):
            self._refuse_unsaved(envelope.hash, packet)
            return UNARCHIVED_BATCH
        self.gathered.append(envelope)
        self.gathered_size += len(envelope.raw)
        return self._number

    def store_refuses(self, now: int) -> bool:
        """Return whether nothing is archived, because the store refused a batch a moment ago."""
        return 0 < self.refused_until - now <= ARCHIVE_RETRY_DELAY  # more is left if the clock was set back

    def _unarchived_text(self, envelope: Envelope, now: int) -> str | None:
        """Return why an accepted envelope is not to be archived, or None if it is."""
        if not envelope.ttl and envelope.pow(late=1) < self.policy.min_pow:
            return WORK_TEXT  # its work is infinite, as in Go; to be archived it must have as much as others
        if self.terms.topics is not None and envelope.topic not in self.terms.topics:
            return TOPIC_TEXT
        return AGE_TEXT if envelope.sent < self._oldest(now) else None

    def _oldest(self, now: int) -> int:
        """Return the time before which no envelope is archived."""
        return self.floor if self.terms.retention is None else max(self.floor, now - self.terms.retention)

    def _may_be_pruned(self, envelope: Envelope, now: int) -> bool:
        """Return whether an archived envelope may have been pruned, or would be by the next prune."""
        return envelope.sent <= self.pruned_until or envelope.sent < self._oldest(now)

    def _refuse_unsaved(self, digest: bytes, packet: OfferedPacket) -> None:
        if digest not in packet.refusals:
            self.counts[EnvelopeCount.NOT_ARCHIVED] += 1
            packet.refuse(digest, OTHER_ERROR, self._refusal_text)

    # ── the archive ──────────────────────────────────────────────────────────────────────────────

    def take_batch(self) -> Batch | None:
        """Return the gathered envelopes as a batch, or None. Later envelopes belong to the next batch."""
        if not self.gathered:
            return None
        batch = Batch(self._number, self.gathered)
        self.gathered, self.gathered_size = [], 0
        self._number += 1
        return batch

    def confirm(self, batch: Batch) -> Iterator[tuple[bytes, Response]]:
        """Record that a batch is durable. Yield the responses that this allows, each with its origin.

        Batches are confirmed in their order.
        """
        self.counts[EnvelopeCount.ARCHIVED] += len(batch.envelopes)
        for envelope in batch.envelopes:
            self.archived_sizes.add(len(envelope.raw))
        self._finished = batch.number
        yield from self._responses(batch)

    def refuse(self, batch: Batch, now: int, text: str) -> Iterator[tuple[bytes, Response]]:
        """Record that a batch was not saved. Yield responses as `confirm` does.

        `text` says why: `FULL_TEXT` or `LOCKED_TEXT`.
        """
        self.refused_until, self._refusal_text = now + ARCHIVE_RETRY_DELAY, text
        self._finished = batch.number
        unsaved = {envelope.hash for envelope in batch.envelopes}
        for digest in unsaved & self.pool.known_hashes.keys():
            self.pool.known_hashes[digest] = UNARCHIVED_BATCH
        for packet in chain(self._unfinished, *self._waiting.values()):
            for digest in packet.hashes:
                if digest in unsaved:
                    self._refuse_unsaved(digest, packet)
        yield from self._responses(batch)

    def _responses(self, batch: Batch) -> Iterator[tuple[bytes, Response]]:
        """Yield the responses to packets whose last batch this is, each with its origin."""
        for packet in self._waiting.pop(batch.number, ()):
            self.waiting_size -= packet.memory
            response = packet.response()
            if response is not None:
                yield packet.origin, response
