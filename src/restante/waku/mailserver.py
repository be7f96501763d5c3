"""The Mailserver's rules: which envelopes are new, which are archived, and when their packet is confirmed.

    offered ──known?──▶ confirmed with the batch it is in ─────────────────────────────┐
       │ no                                                                            │
       ▼                                                                               ▼
    accepted? ──▶ relayed at once, and gathered ──take──▶ saved, durable ──settle──▶ confirmed

An envelope is known to the archive after its commit only; a copy that comes before is confirmed with the first. Only
a store that refused for certain (a full disk) is no end: its envelopes are relayed, answered with an error, and not
known to the archive, so that a later copy is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from restante.waku.acceptance import Policy, judge
from restante.waku.envelope import Envelope
from restante.waku.pool import Live, Pool
from restante.waku.wire import OTHER_ERROR, Refusal, Response

UNARCHIVED: Final = -1
"""The batch of an envelope that the archive would not take: it is tried again with the next copy."""

NEVER: Final = 0
"""The batch of an envelope that is not to be archived."""

FULL: Final = "not archived: no space left; send it again later"

TRY_AGAIN: Final = 10
"""Seconds until a store that was full is tried again."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is archived."""

    retention: int | None = None
    """Seconds that envelopes are kept, from when they were sent."""
    topics: frozenset[bytes] | None = None
    """Only these, if any are named."""


class Batch(msgspec.Struct, frozen=True):
    """What is to be saved in one transaction; numbers rise."""

    number: int
    envelopes: list[Envelope]


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A packet that is not confirmed yet."""

    origin: object
    packet: bytes
    hashes: tuple[bytes, ...]
    """Of its envelopes that are being archived."""
    refusals: list[Refusal]


class Mailserver:
    """Takes in envelopes. `origin` is whoever brought a packet, whatever the shell calls a peer."""

    def __init__(self, policy: Policy, terms: Terms, pool: Pool) -> None:
        self.policy = policy
        self.terms = terms
        self.pool = pool
        self.fresh: list[Live] = []
        """To be relayed; the shell takes them away."""
        self.counts: Counter[str] = Counter()
        """What became of envelopes: `new`, `known`, `archived`, `not archived`, or the name of their flaw."""
        self.refused = 0
        """Envelopes that had a flaw, all told."""
        self.gathered: list[Envelope] = []
        self.gathered_size = 0
        self._number = 1
        self._settled = 0
        self._waiting: dict[int, list[_Waiting]] = {}
        self._full_until = 0

    def offer(self, origin: object, packet: bytes, envelopes: list[Envelope], now: int) -> Response | None:
        """Take in a packet, named by its hash; gives what to answer, or None: `settle` will.

        An envelope that is in it twice is answered once; its copies are known.
        """
        refusals: list[Refusal] = []
        hashes: list[bytes] = []
        latest = 0
        known = self.pool.known
        distinct = {each.hash: each for each in envelopes}
        if len(distinct) < len(envelopes):
            self.counts["known"] += len(envelopes) - len(distinct)
        for each in distinct.values():
            number = known.get(each.hash)
            if number is None:
                number = self._take_in(origin, each, refusals, now)
            else:
                self.counts["known"] += 1
                if number == UNARCHIVED:
                    known[each.hash] = number = self._gather(each, refusals, now)
            if number > self._settled:
                hashes.append(each.hash)
                latest = max(latest, number)
        if not latest:
            return Response(packet, tuple(refusals))
        self._waiting.setdefault(latest, []).append(_Waiting(origin, packet, tuple(hashes), refusals))
        return None

    def _take_in(self, origin: object, envelope: Envelope, refusals: list[Refusal], now: int) -> int:
        """Judge an envelope that is not known; gives the batch it is in."""
        verdict = judge(envelope, now, self.policy)
        if verdict.flaw is not None:
            self.counts[verdict.flaw.name] += 1
            self.refused += 1
            if verdict.flaw.words:
                refusals.append(Refusal(envelope.hash, verdict.flaw.code, verdict.flaw.words))
            return NEVER
        self.counts["new"] += 1
        live = Live(envelope, verdict.pow, origin)
        self.fresh.append(live)
        self.pool.keep(live)
        number = self._gather(envelope, refusals, now) if self._wanted(envelope, now) else NEVER
        self.pool.know(envelope, number)
        return number

    def _wanted(self, envelope: Envelope, now: int) -> bool:
        terms = self.terms
        if terms.topics is not None and envelope.topic not in terms.topics:
            return False
        return terms.retention is None or envelope.sent >= now - terms.retention

    def _gather(self, envelope: Envelope, refusals: list[Refusal], now: int) -> int:
        if now < self._full_until:
            self._give_up(envelope.hash, refusals)
            return UNARCHIVED
        self.gathered.append(envelope)
        self.gathered_size += len(envelope.raw)
        return self._number

    def _give_up(self, digest: bytes, refusals: list[Refusal]) -> None:
        self.counts["not archived"] += 1
        refusals.append(Refusal(digest, OTHER_ERROR, FULL))

    # ── the archive's side ───────────────────────────────────────────────────────────────────────

    def take(self) -> Batch | None:
        """Give what was gathered, to be saved; what comes from now on is of the next batch."""
        if not self.gathered:
            return None
        batch = Batch(self._number, self.gathered)
        self.gathered, self.gathered_size = [], 0
        self._number += 1
        return batch

    def settle(self, batch: Batch) -> Iterator[tuple[object, Response]]:
        """Tell that a batch is durable; gives whom to answer what. Batches are settled in their order."""
        self.counts["archived"] += len(batch.envelopes)
        self._settled = batch.number
        for waiting in self._waiting.pop(batch.number, ()):
            yield waiting.origin, Response(waiting.packet, tuple(waiting.refusals))

    def refuse(self, batch: Batch, now: int) -> Iterator[tuple[object, Response]]:
        """Tell that a batch was not saved, for certain, since there is no room; likewise."""
        self._full_until = now + TRY_AGAIN
        self._settled = batch.number
        lost = {each.hash for each in batch.envelopes}
        for digest in lost & self.pool.known.keys():
            self.pool.known[digest] = UNARCHIVED
        for later in list(self._waiting.values()):
            for waiting in later:
                for digest in waiting.hashes:
                    if digest in lost:
                        self._give_up(digest, waiting.refusals)
        for waiting in self._waiting.pop(batch.number, ()):
            yield waiting.origin, Response(waiting.packet, tuple(waiting.refusals))
