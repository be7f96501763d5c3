"""The Mailserver's rules: which envelopes are new, which are archived, and when their packet is confirmed.

    offered ──known?──▶ confirmed with the batch it is in ─────────────────────────────┐
       │ no                                                                            │
       ▼                                                                               ▼
    accepted? ──▶ relayed at once, and gathered ──take──▶ saved, durable ─confirm──▶ confirmed

An envelope is in the archive only after its commit. A copy that arrives before that is confirmed together with the
first. If the store refuses a batch before the commit (a full disk, a lock), the node goes on: the envelopes are
relayed, their senders receive an error, and a later copy is archived.
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
"""Batch number of an envelope that the archive refused. The next copy is gathered again."""

NO_BATCH: Final = 0
"""Batch number of an envelope that is not archived."""

FULL_WORDS: Final = "not archived: no space left; send it again later"
LOCKED_WORDS: Final = "not archived: the archive cannot be written now; send it again later"
"""Why an envelope is not archived, in words for its sender."""

ENVELOPE_SIZE_BOUNDS: Final = tuple(1 << bits for bits in range(8, 21))
"""Bounds of a histogram: bytes of an envelope."""

ARCHIVE_RETRY_DELAY: Final = 10
"""Seconds after a refusal by the store until envelopes are gathered again."""


class ArchiveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Which envelopes are archived."""

    retention: int | None = None
    """Seconds after sending for which envelopes are kept. None: for ever."""
    topics: frozenset[bytes] | None = None
    """The topics that are archived. None: all."""


class Batch(msgspec.Struct, frozen=True):
    """Envelopes to save in one transaction. Numbers ascend."""

    number: int
    envelopes: list[Envelope]


class Intake:
    """A packet that is being handled, named by its hash. `origin` is the node id of the peer that sent it."""

    __slots__ = ("given_up", "hashes", "latest", "origin", "packet", "refusals")

    def __init__(self, origin: bytes, packet: bytes) -> None:
        self.origin = origin
        self.packet = packet
        self.hashes: list[bytes] = []
        """Hashes of its envelopes that are being archived."""
        self.latest = 0
        """The number of the last batch that contains one of them."""
        self.refusals: list[Refusal] = []
        self.given_up: set[bytes] = set()
        """Hashes of its envelopes that the store refused."""


class Mailserver:
    """Handles envelopes. `origin` is the node id of the peer that sent a packet."""

    def __init__(self, policy: Policy, terms: ArchiveTerms, pool: Pool) -> None:
        self.policy = policy
        self.terms = terms
        self.pool = pool
        self.fresh: list[LiveEnvelope] = []
        """New envelopes to relay. The relay removes them."""
        self.counts: Counter[str] = Counter()
        """Numbers of envelopes: `new`, `known`, `archived`, `not archived`, or refused, by the name of the
        refusal."""
        self.sizes, self.archived_sizes = Histogram(ENVELOPE_SIZE_BOUNDS), Histogram(ENVELOPE_SIZE_BOUNDS)
        """Sizes in bytes of new envelopes, and of archived ones."""
        self.refused = 0
        """Envelopes refused since the start."""
        self.gathered: list[Envelope] = []
        self.gathered_size = 0
        self._number = 1
        self._count = 0
        """New envelopes since the start."""
        self._finished = 0
        self._waiting: dict[int, list[Intake]] = {}
        self.refused_until = 0
        """Time until which nothing is archived, because the store has refused a batch."""
        self._refused = FULL_WORDS
        """Why the store refused the last batch, in words for senders."""

    def offer(self, origin: bytes, packet: bytes, envelopes: Iterable[Envelope], now: int) -> Response | None:
        """Handle a packet, named by its hash. Return its response, or None if `confirm` will return it."""
        intake = Intake(origin, packet)
        self.take_in(intake, envelopes, now)
        return self.finish(intake)

    def take_in(self, intake: Intake, envelopes: Iterable[Envelope], now: int) -> None:
        """Handle a part of a packet."""
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
        """Return the response to a packet after its last part, or None if `confirm` will return it."""
        if intake.latest <= self._finished:
            return Response(intake.packet, tuple(intake.refusals))
        self._waiting.setdefault(intake.latest, []).append(intake)
        return None

    def _judge(self, intake: Intake, envelope: Envelope, now: int) -> int:
        """Judge an unknown envelope. Return the number of its batch."""
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
            return False  # its work is infinite, as in Go; to be archived it must have as much as others
        if terms.topics is not None and envelope.topic not in terms.topics:
            return False
        return terms.retention is None or envelope.sent >= now - terms.retention

    def _gather(self, envelope: Envelope, intake: Intake, now: int) -> int:
        if now < self.refused_until:
            self._give_up(envelope.hash, intake)
            return UNARCHIVED_BATCH
        self.gathered.append(envelope)
        self.gathered_size += len(envelope.raw)
        return self._number

    def _give_up(self, digest: bytes, intake: Intake) -> None:
        if digest not in intake.given_up:  # a packet may contain it several times
            intake.given_up.add(digest)
            self.counts["not archived"] += 1
            intake.refusals.append(Refusal(digest, OTHER_ERROR, self._refused))

    # ── the archive ──────────────────────────────────────────────────────────────────────────────

    def take(self) -> Batch | None:
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
        self.counts["archived"] += len(batch.envelopes)
        for each in batch.envelopes:
            self.archived_sizes.add(len(each.raw))
        self._finished = batch.number
        for waiting in self._waiting.pop(batch.number, ()):
            yield waiting.origin, Response(waiting.packet, tuple(waiting.refusals))

    def refuse(self, batch: Batch, now: int, words: str) -> Iterator[tuple[bytes, Response]]:
        """Record that a batch was not saved. Yield responses as `confirm` does.

        `words` say why: `FULL_WORDS` or `LOCKED_WORDS`.
        """
        self.refused_until, self._refused = now + ARCHIVE_RETRY_DELAY, words
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
