"""The Mailserver's rules and its pool: each packet is answered once, and only when all of it is on disk."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.node.mailserver import (
    ARCHIVE_RETRY_DELAY,
    FULL_WORDS,
    LOCKED_WORDS,
    ArchiveTerms,
    Batch,
    Mailserver,
)
from restante.waku.node.pool import HASHES_PER_BLOCK, KNOWN_HASH_MEMORY, LIVE_ENVELOPE_MEMORY, LiveEnvelope, Pool
from restante.waku.protocol.acceptance import EXPIRED_GRACE_SECONDS, Policy
from restante.waku.protocol.packets import OTHER_ERROR, Refusal, Response
from support.effort import examples
from support.waku.letters import EPOCH, TOPIC, letter

MIB = 1 << 20
OTHER_TOPIC = b"\5\6\7\x08"
PACKETS = [bytes([number]) * 32 for number in range(10)]


def mailserver(terms: ArchiveTerms | None = None, *, known: int = MIB, live: int = MIB) -> Mailserver:
    return Mailserver(Policy(min_pow=1e-6), terms or ArchiveTerms(), Pool(known, live))


def relayed(server: Mailserver) -> list[Envelope]:
    """Remove the envelopes to relay, as the shell does."""
    fresh, server.fresh = server.fresh, []
    return [live.envelope for live in fresh]


def taken(server: Mailserver) -> Batch:
    batch = server.take()
    assert batch is not None
    return batch


def well(packet: bytes) -> Response:
    return Response(packet, ())


A, B, C = letter(1), letter(2), letter(3)
OLD = letter(4, age=500)


# ── the way through ──────────────────────────────────────────────────────────────────────────────


def test_an_envelope_is_relayed_at_once_and_confirmed_when_it_is_on_disk_with_its_copies() -> None:
    server = mailserver()
    assert server.offer(b"a", PACKETS[0], [A, B, A], EPOCH) is None
    assert server.offer(b"b", PACKETS[1], [A], EPOCH) is None
    assert relayed(server) == [A, B]
    batch = taken(server)
    assert batch.envelopes == [A, B]
    assert server.offer(b"c", PACKETS[2], [A, OLD], EPOCH) is None
    assert (relayed(server), server.take(), server.refused) == ([], None, 1)
    first, second, (origin, third) = server.confirm(batch)
    assert [first, second, origin] == [(b"a", well(PACKETS[0])), (b"b", well(PACKETS[1])), b"c"]
    assert (third.packet, [refusal.hash for refusal in third.refusals]) == (PACKETS[2], [OLD.hash])
    assert server.offer(b"b", PACKETS[3], [B], EPOCH) == well(PACKETS[3])
    assert server.offer(b"b", PACKETS[4], [], EPOCH) == well(PACKETS[4])


def test_a_packet_waits_for_the_batch_with_its_last_envelope() -> None:
    server = mailserver()
    server.offer(b"a", PACKETS[0], [A], EPOCH)
    first = taken(server)
    assert server.offer(b"b", PACKETS[1], [A, B], EPOCH) is None
    assert list(server.confirm(first)) == [(b"a", well(PACKETS[0]))]
    second = taken(server)
    assert second.envelopes == [B]
    assert list(server.confirm(second)) == [(b"b", well(PACKETS[1]))]


# ── what is not archived ─────────────────────────────────────────────────────────────────────────


def test_envelopes_that_are_not_archived_are_relayed_and_confirmed_at_once() -> None:
    """Those older than the retention, and those whose work is infinite only because they have no time to live."""
    server = mailserver(ArchiveTerms(retention=100))
    kept, over = letter(1, ttl=200, age=100), letter(2, ttl=200, age=101)
    assert server.offer(b"a", PACKETS[0], [over], EPOCH) == well(PACKETS[0])
    assert server.offer(b"a", PACKETS[1], [kept], EPOCH) is None
    assert relayed(server) == [over, kept]
    assert taken(server).envelopes == [kept]
    strict = Mailserver(Policy(min_pow=1e3), ArchiveTerms(), Pool(MIB, MIB))
    assert strict.offer(b"a", PACKETS[0], [letter(3, ttl=0)], EPOCH) == well(PACKETS[0])
    assert (relayed(strict), strict.take()) == ([letter(3, ttl=0)], None)


def test_counts_show_what_became_of_envelopes() -> None:
    server = mailserver(ArchiveTerms(topics=frozenset([TOPIC])))
    server.offer(b"a", PACKETS[0], [A, B, OLD, A, letter(1, topic=OTHER_TOPIC)], EPOCH)
    list(server.confirm(taken(server)))
    assert server.counts == {"new": 3, "known": 1, "archived": 2, "old": 1}


# ── a full store ─────────────────────────────────────────────────────────────────────────────────


def not_archived(*envelopes: Envelope) -> tuple[Refusal, ...]:
    return tuple(Refusal(each.hash, OTHER_ERROR, FULL_WORDS) for each in envelopes)


def filled(server: Mailserver, *envelopes: Envelope) -> Iterable[tuple[object, Response]]:
    """Offer envelopes for which there is no room."""
    assert server.offer(b"a", PACKETS[0], list(envelopes), EPOCH) is None
    return server.refuse(taken(server), EPOCH, FULL_WORDS)


def test_an_envelope_three_times_in_a_packet_is_refused_once() -> None:
    server = mailserver()
    assert list(filled(server, A, A, A)) == [(b"a", Response(PACKETS[0], not_archived(A)))]
    assert server.counts["not archived"] == 1
    assert server.offer(b"a", PACKETS[1], [A, A, A], EPOCH) == Response(PACKETS[1], not_archived(A))
    assert server.offer(b"a", PACKETS[2], [B, A, B, B], EPOCH) == Response(PACKETS[2], not_archived(B, A))
    assert server.counts["not archived"] == 4
    assert relayed(server) == [A, B]


def test_copies_of_an_envelope_without_room_are_answered_with_it() -> None:
    server = mailserver()
    server.offer(b"a", PACKETS[0], [A], EPOCH)
    batch = taken(server)
    server.offer(b"b", PACKETS[1], [A], EPOCH)
    server.offer(b"c", PACKETS[2], [A, B], EPOCH)
    refused = Response(PACKETS[1], not_archived(A))
    assert list(server.refuse(batch, EPOCH, FULL_WORDS)) == [
        (b"a", refused._replace(packet=PACKETS[0])),
        (b"b", refused),
    ]
    # What waits for a later batch is told of A together with B.
    assert list(server.confirm(taken(server))) == [(b"c", refused._replace(packet=PACKETS[2]))]


def test_a_full_disk_is_not_retried_at_once_and_later_envelopes_get_the_same_answer() -> None:
    server = mailserver()
    list(filled(server, A))
    relayed(server)
    for now in (EPOCH, EPOCH + ARCHIVE_RETRY_DELAY - 1):
        assert server.offer(b"b", PACKETS[1], [A], now) == Response(PACKETS[1], not_archived(A))
    assert server.offer(b"b", PACKETS[2], [C], EPOCH) == Response(PACKETS[2], not_archived(C))
    assert relayed(server) == [C]
    assert server.take() is None


def test_the_reason_for_not_archiving_is_the_latest_one() -> None:
    server = mailserver()
    server.offer(b"a", PACKETS[0], [A], EPOCH)
    locked = (Refusal(A.hash, OTHER_ERROR, LOCKED_WORDS),)
    assert list(server.refuse(taken(server), EPOCH, LOCKED_WORDS)) == [(b"a", Response(PACKETS[0], locked))]
    assert server.offer(b"a", PACKETS[1], [A], EPOCH) == Response(PACKETS[1], locked)
    assert server.offer(b"a", PACKETS[1], [A], EPOCH + ARCHIVE_RETRY_DELAY) is None
    assert list(server.refuse(taken(server), EPOCH, FULL_WORDS)) == [(b"a", Response(PACKETS[1], not_archived(A)))]


# ── anything ─────────────────────────────────────────────────────────────────────────────────────

LETTERS = [
    *(letter(number, ttl=10 + 10 * number) for number in range(6)),
    letter(7, topic=OTHER_TOPIC),
    letter(8, ttl=300, age=250),
    letter(9, ttl=1000, age=3),
    letter(10, age=-30),
    OLD,
]
"""Good ones that expire at different times; one of a topic, and one of an age, that is not archived; two bad ones."""

TERMS = ArchiveTerms(topics=frozenset([TOPIC]), retention=200)


class Interleaved(RuleBasedStateMachine):
    """However offers, batches and what becomes of them are interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.now = EPOCH
        self.server = self.make()
        self.saving: Batch | None = None
        self.saved: Counter[bytes] = Counter()
        self.offered: dict[bytes, list[Envelope]] = {}
        self.answered: dict[bytes, Response] = {}
        self.accepted: set[bytes] = set()
        self.due: set[bytes] = set()
        """Those of them that are to be archived."""

    def make(self) -> Mailserver:
        return mailserver(TERMS)

    @rule(some=st.lists(st.sampled_from(LETTERS), max_size=5))
    def offer(self, some: list[Envelope]) -> None:
        packet = len(self.offered).to_bytes(32, "big")
        self.offered[packet] = some
        response = self.server.offer(packet, packet, some, self.now)
        fresh = relayed(self.server)
        self.accepted |= {each.hash for each in fresh}
        self.due |= {each.hash for each in fresh if self.wanted(each)}
        if response is not None:
            self.hear(packet, response)

    @rule()
    def take(self) -> None:
        if self.saving is None:
            self.saving = self.server.take()

    @rule(full=st.booleans())
    def saved_or_not(self, full: bool) -> None:
        if self.saving is None:
            return
        batch, self.saving = self.saving, None
        if full:
            answers = self.server.refuse(batch, self.now, FULL_WORDS)
        else:
            self.saved.update(each.hash for each in batch.envelopes)
            answers = self.server.confirm(batch)
        for origin, response in answers:
            self.hear(origin, response)

    @rule(seconds=st.integers(1, 30))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds
        self.server.pool.expire(self.now)

    def hear(self, origin: object, response: Response) -> None:
        assert origin == response.packet
        assert response.packet not in self.answered, "answered twice"
        self.answered[response.packet] = response
        told_not = {each.hash for each in response.refusals}
        assert told_not <= {each.hash for each in self.offered[response.packet]}
        for envelope in self.offered[response.packet]:
            # Accepted once, it may come again when it has expired, or is too old to be kept: then nothing is said.
            if envelope.hash in self.due - told_not and self.wanted(envelope) and envelope.expiry >= self.now:
                assert self.saved[envelope.hash], "confirmed, and not on disk"

    def wanted(self, envelope: Envelope) -> bool:
        return envelope.topic == TOPIC and envelope.sent >= self.now - 200

    @invariant()
    def only_what_is_wanted_is_archived(self) -> None:
        assert self.saved.keys() <= self.due

    def teardown(self) -> None:
        while self.saving is not None or self.server.gathered:
            self.take()
            self.saved_or_not(full=False)
        assert self.answered.keys() == self.offered.keys(), "a packet was never answered"
        assert not self.server._waiting


class Forgetting(Interleaved):
    """The same where no more than three hashes are known at a time."""

    def make(self) -> Mailserver:
        return mailserver(TERMS, known=3 * 250, live=3 * 700)


TestInterleaved = Interleaved.TestCase
TestForgetting = Forgetting.TestCase
TestInterleaved.settings = TestForgetting.settings = examples(100, 30)


def expiring(second: int, number: int = 0) -> Envelope:
    return make(EPOCH + second, 50, b"\1\2\3\4", b"\1\2\3", number)


def fill(pool: Pool, *envelopes: Envelope) -> None:
    for number, each in enumerate(envelopes, 1):
        pool.know(each, number)
        pool.keep(LiveEnvelope(each, 1.0, b"", 1))


def living(pool: Pool) -> set[bytes]:
    return {digest for topic in pool.live.values() for digest in topic}


def test_an_envelope_lives_through_its_last_second_and_is_known_until_a_copy_would_be_refused_as_old() -> None:
    pool, envelope = Pool(MIB, MIB), expiring(10)
    fill(pool, envelope)
    pool.expire(EPOCH + 10)
    assert living(pool) == {envelope.hash}
    pool.expire(EPOCH + 11)
    assert (pool.live, pool.size) == ({}, 0)
    pool.expire(EPOCH + 10 + EXPIRED_GRACE_SECONDS)
    assert pool.known == {envelope.hash: 1}
    pool.expire(EPOCH + 11 + EXPIRED_GRACE_SECONDS)
    assert pool.known == {}


def test_the_earliest_arrival_is_forgotten_first_whenever_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody can have others' envelopes forgotten, and relayed anew, by some that live for days."""
    monkeypatch.setattr("restante.waku.node.pool.HASHES_PER_BLOCK", 1)
    pool = Pool(3 * KNOWN_HASH_MEMORY, MIB)
    a, b, c, d = (expiring(second) for second in (20, 40, 10, 30))
    fill(pool, a, b, c)
    pool.know(d, 4)
    assert pool.known == {b.hash: 2, c.hash: 3, d.hash: 4}


def test_hashes_are_forgotten_in_blocks_when_the_last_of_a_block_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.node.pool.HASHES_PER_BLOCK", 2)
    pool = Pool(MIB, MIB)
    a, b, c = (expiring(second) for second in (10, 40, 20))
    fill(pool, a, b, c)
    pool.expire(EPOCH + 21 + EXPIRED_GRACE_SECONDS)
    assert pool.known == {a.hash: 1, b.hash: 2}
    pool.expire(EPOCH + 41 + EXPIRED_GRACE_SECONDS)
    assert pool.known == {}


def test_the_first_to_expire_is_dropped_first_whenever_it_came() -> None:
    size = LIVE_ENVELOPE_MEMORY + len(expiring(10).raw)
    pool = Pool(MIB, 3 * size)
    a, b, c, d = (expiring(second) for second in (40, 10, 30, 20))
    fill(pool, a, b, c)
    pool.keep(LiveEnvelope(d, 1.0, b"", 1))
    assert living(pool) == {a.hash, c.hash, d.hash}
    assert pool.size == 3 * size


def test_a_live_envelope_that_was_forgotten_may_come_again() -> None:
    pool, envelope = Pool(HASHES_PER_BLOCK * KNOWN_HASH_MEMORY, MIB), expiring(10)
    fill(pool, envelope)
    for number in range(HASHES_PER_BLOCK):  # more than can be known
        pool.know(expiring(10, number + 1), 1)
    assert envelope.hash not in pool.known
    pool.keep(LiveEnvelope(expiring(10, 1), 1.0, b"", 1))
    fill(pool, envelope)
    assert len(living(pool)) == 2
    pool.expire(EPOCH + 11)
    assert (pool.live, pool.size) == ({}, 0)


seconds = st.integers(-50, 50)
steps = st.lists(
    st.one_of(st.tuples(st.just("add"), seconds, st.integers(0, 3)), st.tuples(st.just("expire"), seconds)),
    max_size=60,
)


@given(steps)
def test_both_limits_always_hold_and_the_totals_agree(steps: list[tuple[Any, ...]]) -> None:
    size = LIVE_ENVELOPE_MEMORY + len(expiring(0).raw)
    with patch("restante.waku.node.pool.HASHES_PER_BLOCK", 1):
        pool = Pool(8 * KNOWN_HASH_MEMORY, 5 * size)
        for kind, second, *more in steps:
            if kind == "expire":
                pool.expire(EPOCH + second)
            else:
                envelope = expiring(second, *more)
                if envelope.hash not in pool.known:
                    fill(pool, envelope)
            assert len(pool.known) <= 8
            assert pool.size == size * len(living(pool)) <= 5 * size
            assert all(pool.live.values()), "a topic without an envelope"
        pool.expire(EPOCH + 1000)
        assert (pool.known, pool.live, pool.size) == ({}, {}, 0)


def test_the_estimates_of_memory_are_near_the_truth() -> None:
    """A million topics are no different: here each envelope has one of its own."""
    count = 2_000
    raws = [letter(number, topic=number.to_bytes(4, "big"), ttl=100 + number % 1000).raw for number in range(count)]
    tracemalloc.start()
    try:
        known, live = Pool(1 << 40, 1 << 40), Pool(1 << 40, 1 << 40)
        before = tracemalloc.get_traced_memory()[0]
        for number, raw in enumerate(raws):
            known.know(parse(bytes(bytearray(raw))), number)
        between = tracemalloc.get_traced_memory()[0]
        for raw in raws:
            live.keep(LiveEnvelope(parse(bytes(bytearray(raw))), 1.0, b"", 1))
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 < (between - before) / (count * KNOWN_HASH_MEMORY) < 1.2
    assert 0.5 < (after - between) / live.size < 1.2
