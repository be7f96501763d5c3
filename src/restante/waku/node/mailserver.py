"""The Mailserver's rules: which envelopes are new, which are archived, and when their packet is confirmed.

    offered ──known?──▶ confirmed with the batch it is in ─────────────────────────────┐
       │ no                                                                            │
       ▼                                                                               ▼
    accepted? ──▶ relayed at once, and gathered ──take──▶ saved, durable ─confirm──▶ confirmed

An envelope is known to the archive after its commit only; a copy that comes before is confirmed with the first. Only
a store that refused for certain (a full disk, a lock) is no end: its envelopes are relayed, answered with an error,
and not known to the archive, so that a later copy is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from restante.common.histogram import Histogram
from restante.waku.envelope.envelope import Envelope
from restante.waku.node.pool import LiveEnvelope, Pool
from restante.waku.protocol.acceptance import Policy, judge
from restante.waku.protocol.packets import OTHER_ERROR, Refusal, Response

UNARCHIVED_BATCH: Final = -1
"""The batch of an envelope that the archive would not take: it is tried again with the next copy."""

NO_BATCH: Final = 0
"""The batch of an envelope that is not to be archived."""

FULL_WORDS: Final = "not archived: no space left; send it again later"
LOCKED_WORDS: Final = "not archived: the archive cannot be written now; send it again later"
"""Why an envelope is not archived, for its sender."""

ENVELOPE_SIZE_BOUNDS: Final = tuple(1 << bits for bits in range(8, 21))
"""Bytes of an envelope, to count them by."""

ARCHIVE_RETRY_DELAY: Final = 10
"""Seconds until a store that refused is tried again."""


class ArchiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is archived."""

    retention: int | None = None
    """Seconds that envelopes are kept, from when they were sent."""
    topics: frozenset[bytes] | None = None
    """Only these, if any are named."""


class Batch(msgspec.Struct, frozen=True):
    """What is to be saved in one transaction; numbers rise."""

    number: int
    envelopes: list[Envelope]


class Intake:
    """A packet on its way in, named by its hash. `origin` is the name of the peer that brought it."""

    __slots__ = ("given_up", "hashes", "latest", "origin", "packet", "refusals")

    def __init__(self, origin: bytes, packet: bytes) -> None:
        self.origin = origin
        self.packet = packet
        self.hashes: list[bytes] = []
        """Of its envelopes that are being archived."""
        self.latest = 0
        """The last batch that one of them is in."""
        self.refusals: list[Refusal] = []
        self.given_up: set[bytes] = set()
        """Those that the store refused."""


class Mailserver:
    """Takes in envelopes. `origin` is the name of whoever brought a packet."""

    def __init__(self, policy: Policy, terms: ArchiveTerms, pool: Pool) -> None:
        self.policy = policy
        self.terms = terms
        self.pool = pool
        self.fresh: list[LiveEnvelope] = []
        """To be relayed; the shell takes them away."""
        self.counts: Counter[str] = Counter()
        """What became of envelopes: `new`, `known`, `archived`, `not archived`, or why they were refused."""
        self.sizes, self.archived_sizes = Histogram(ENVELOPE_SIZE_BOUNDS), Histogram(ENVELOPE_SIZE_BOUNDS)
        """Bytes of those that were new, and of those that were archived."""
        self.refused = 0
        """Envelopes that were refused, all told."""
        self.gathered: list[Envelope] = []
        self.gathered_size = 0
        self._number = 1
        self._count = 0
        """Of envelopes that were new."""
        self._finished = 0
        self._waiting: dict[int, list[Intake]] = {}
        self._refused_until = 0
        self._refused = FULL_WORDS
        """Why the store refused last, for senders."""

    def offer(self, origin: bytes, packet: bytes, envelopes: Iterable[Envelope], now: int) -> Response | None:
        """Take in a packet, named by its hash; gives what to answer, or None: `confirm` will."""
        intake = Intake(origin, packet)
        self.take_in(intake, envelopes, now)
        return self.finish(intake)

    def take_in(self, intake: Intake, envelopes: Iterable[Envelope], now: int) -> None:
        """Take in a part of a packet, of which more may come."""
        known, hashes = self.pool.known, intake.hashes
        for each in envelopes:
            digest = each.hash
            number = known.get(digest)
            if number is None:
                number = self._judge(intake, each, now)
            else:
                self.counts["known"] += 1
                if number == UNARCHIVED_BATCH:
                    known[digest] = number = self._gather(each, intake, now)
            if number > self._finished:
                hashes.append(digest)
                intake.latest = max(intake.latest, number)

    def finish(self, intake: Intake) -> Response | None:
        """Give what to answer to a packet of which all was taken in, or None: `confirm` will."""
        if intake.latest <= self._finished:
            return Response(intake.packet, tuple(intake.refusals))
        self._waiting.setdefault(intake.latest, []).append(intake)
        return None

    def _judge(self, intake: Intake, envelope: Envelope, now: int) -> int:
        """Judge an envelope that is not known; gives the batch it is in."""
        verdict = judge(envelope, now, self.policy)
        if verdict.refusal is not None:
            self.counts[verdict.refusal.name] += 1
            self.refused += 1
            if verdict.refusal.words:
                intake.refusals.append(Refusal(envelope.hash, verdict.refusal.code, verdict.refusal.words))
            return NO_BATCH
        self.counts["new"] += 1
        self.sizes.add(len(envelope.raw))
        self._count += 1
        live = LiveEnvelope(envelope, verdict.pow, intake.origin, self._count)
        self.fresh.append(live)
        self.pool.keep(live)
        number = self._gather(envelope, intake, now) if self._wanted(envelope, now) else NO_BATCH
        self.pool.know(envelope, number)
        return number

    def _wanted(self, envelope: Envelope, now: int) -> bool:
        terms = self.terms
        if not envelope.ttl and envelope.pow(late=1) < self.policy.min_pow:
            return False  # its work is infinite, as in Go; to be kept it must have as much as others
        if terms.topics is not None and envelope.topic not in terms.topics:
            return False
        return terms.retention is None or envelope.sent >= now - terms.retention

    def _gather(self, envelope: Envelope, intake: Intake, now: int) -> int:
        if now < self._refused_until:
            self._give_up(envelope.hash, intake)
            return UNARCHIVED_BATCH
        self.gathered.append(envelope)
        self.gathered_size += len(envelope.raw)
        return self._number

    def _give_up(self, digest: bytes, intake: Intake) -> None:
        if digest not in intake.given_up:  # it may be in the packet several times
            intake.given_up.add(digest)
            self.counts["not archived"] += 1
            intake.refusals.append(Refusal(digest, OTHER_ERROR, self._refused))

    # ── the archive's side ───────────────────────────────────────────────────────────────────────

    def take(self) -> Batch | None:
        """Give what was gathered, to be saved; what comes from now on is of the next batch."""
        if not self.gathered:
            return None
        batch = Batch(self._number, self.gathered)
        self.gathered, self.gathered_size = [], 0
        self._number += 1
        return batch

    def confirm(self, batch: Batch) -> Iterator[tuple[bytes, Response]]:
        """Confirm a batch that is durable; return whom to answer what. Batches are confirmed in their order."""
        self.counts["archived"] += len(batch.envelopes)
        for each in batch.envelopes:
            self.archived_sizes.add(len(each.raw))
        self._finished = batch.number
        for waiting in self._waiting.pop(batch.number, ()):
            yield waiting.origin, Response(waiting.packet, tuple(waiting.refusals))

    def refuse(self, batch: Batch, now: int, words: str) -> Iterator[tuple[bytes, Response]]:
        """Tell that a batch was not saved, for certain, and why: `FULL_WORDS` or `LOCKED_WORDS`; likewise."""
        self._refused_until, self._refused = now + ARCHIVE_RETRY_DELAY, words
        self._finished = batch.number
        lost = {each.hash for each in batch.envelopes}
        for digest in lost & self.pool.known.keys():
            self.pool.known[digest] = UNARCHIVED_BATCH
        for later in list(self._waiting.values()):
            for waiting in later:
                for digest in waiting.hashes:
                    if digest in lost:
                        self._give_up(digest, waiting)
        for waiting in self._waiting.pop(batch.number, ()):
            yield waiting.origin, Response(waiting.packet, tuple(waiting.refusals))
