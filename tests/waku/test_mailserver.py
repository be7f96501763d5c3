"""The Mailserver's rules: which envelopes it accepts, and that each packet is answered when all of it is on disk."""

from __future__ import annotations

import math
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from restante.waku.envelope.envelope import U32, Envelope, make, parse
from restante.waku.node.mailserver import (
    AGE_TEXT,
    ARCHIVE_RETRY_DELAY,
    FULL_TEXT,
    HASH_MEMORY,
    LOCKED_TEXT,
    PACKET_MEMORY,
    TOPIC_TEXT,
    WORK_TEXT,
    ArchiveTerms,
    Batch,
    Mailserver,
    OfferedPacket,
)
from restante.waku.node.pool import KNOWN_HASH_MEMORY, LIVE_ENVELOPE_MEMORY, LiveEnvelope, Pool
from restante.waku.protocol import acceptance, packets
from restante.waku.protocol.acceptance import EXPIRED_GRACE_SECONDS, REFUSAL_REASONS, Policy, RefusalReason, judge
from restante.waku.protocol.packets import OTHER_ERROR, Refusal, Response
from support.effort import examples
from support.waku.letters import EPOCH, TOPIC, letter

MIB = 1 << 20
PACKETS = [bytes([number]) * 32 for number in range(10)]


def mailserver(min_pow: float = 1e-6) -> Mailserver:
    return Mailserver(Policy(min_pow=min_pow), ArchiveTerms(), Pool(MIB, MIB), 64 * MIB)


def relayed(server: Mailserver) -> list[Envelope]:
    unrelayed, server.unrelayed = server.unrelayed, []
    return [live.envelope for live in unrelayed]


def taken(server: Mailserver) -> Batch:
    batch = server.take_batch()
    assert batch is not None
    return batch


def offer(server: Mailserver, packet_hash: bytes, envelopes: list[Envelope], now: int = EPOCH) -> Response | None:
    packet = OfferedPacket(b"a", packet_hash)
    server.receive(packet, envelopes, now)
    return server.finish(packet)


A, B = letter(1), letter(2)


def test_packets_beyond_the_memory_for_those_that_wait_are_not_answered() -> None:
    server = mailserver()
    server.max_waiting_bytes = 2 * (PACKET_MEMORY + HASH_MEMORY)
    for packet in PACKETS[:3]:
        assert offer(server, packet, [A]) is None
    assert list(server.confirm(taken(server))) == [(b"a", Response(packet, ())) for packet in PACKETS[:2]]
    assert server.waiting_size == 0


def test_a_full_archive_is_tried_again_although_the_clock_was_set_back() -> None:
    server = mailserver()
    offer(server, PACKETS[0], [A])
    list(server.refuse(taken(server), EPOCH, FULL_TEXT))
    assert offer(server, PACKETS[1], [B], EPOCH + ARCHIVE_RETRY_DELAY - 1) is not None
    earlier = letter(3, age=3600)
    assert offer(server, PACKETS[2], [earlier], EPOCH - 3600) is None
    assert taken(server).envelopes == [earlier]


@pytest.mark.parametrize("saved", [False, True])
def test_a_packet_with_more_refusals_than_a_response_holds_is_not_confirmed(saved: bool) -> None:
    server = mailserver()
    expired = [letter(number, age=60) for number in range(packets.MAX_REFUSALS + 1)]
    some = [A] if saved else []
    least = offer(server, PACKETS[0], [*some, *expired[1:]])
    most = offer(server, PACKETS[1], [*some, *expired])
    if saved:
        [(_, least)] = server.confirm(taken(server))
    assert (least and len(least.refusals), most) == (packets.MAX_REFUSALS, None)


def test_the_largest_response_is_a_packet_that_every_node_accepts() -> None:
    text = max(
        [*(reason.words for reason in REFUSAL_REASONS), FULL_TEXT, LOCKED_TEXT, TOPIC_TEXT, AGE_TEXT, WORK_TEXT],
        key=len,
    )
    refusals = (Refusal(bytes(32), OTHER_ERROR, text),) * packets.MAX_REFUSALS
    assert len(packets.write_response(Response(PACKETS[0], refusals))) <= packets.MAX_PACKET_BYTES


LETTERS = [
    *(letter(number, ttl=10 + 10 * number) for number in range(6)),
    letter(7, topic=b"\5\6\7\x08"),
    letter(8, ttl=300, age=250),
    letter(9, ttl=1000, age=3),
    letter(10, age=-30),
    letter(4, age=500),
]
"""Good ones that expire at different times; one of a topic, and one of an age, that is not archived; two bad ones."""

TERMS = ArchiveTerms(topics=frozenset([TOPIC]), retention=200)


class Interleaved(RuleBasedStateMachine):
    memory = (MIB, MIB)

    def __init__(self) -> None:
        super().__init__()
        self.now = EPOCH
        self.server = Mailserver(Policy(min_pow=1e-6), TERMS, Pool(*self.memory), 64 * MIB)
        self.saving: Batch | None = None
        self.saved: dict[bytes, int] = {}
        self.large: OfferedPacket | None = None
        self.offered: dict[bytes, list[Envelope]] = {}
        self.archived: dict[bytes, set[bytes]] = {}
        """Hashes in the archive at the offer of each packet, or saved since."""
        self.answered: dict[bytes, Response] = {}
        self.due: set[bytes] = set()

    @rule(some=st.lists(st.sampled_from(LETTERS), max_size=5))
    def offer(self, some: list[Envelope]) -> None:
        digest = len(self.offered).to_bytes(32, "big")
        packet = OfferedPacket(digest, digest)
        self.receive(packet, some)
        self.finish(packet)

    @rule(some=st.lists(st.sampled_from(LETTERS), max_size=3))
    def offer_a_part(self, some: list[Envelope]) -> None:
        if self.large is None:
            digest = len(self.offered).to_bytes(32, "big")
            self.large = OfferedPacket(digest, digest)
        self.receive(self.large, some)

    @rule()
    def finish_the_large_packet(self) -> None:
        if self.large is not None:
            large, self.large = self.large, None
            self.finish(large)

    def receive(self, packet: OfferedPacket, some: list[Envelope]) -> None:
        self.offered.setdefault(packet.hash, []).extend(some)
        self.archived.setdefault(packet.hash, set()).update({each.hash for each in some} & self.saved.keys())
        self.server.receive(packet, some, self.now)
        self.due |= {fresh.hash for fresh in relayed(self.server) if self.wanted(fresh)}

    def finish(self, packet: OfferedPacket) -> None:
        response = self.server.finish(packet)
        if response is not None:
            self.hear(packet.hash, response)

    @rule()
    def take(self) -> None:
        if self.saving is None:
            self.saving = self.server.take_batch()
            assert self.saving is None or len(set(self.saving.envelopes)) == len(self.saving.envelopes)

    @rule(full=st.booleans())
    def saved_or_not(self, full: bool) -> None:
        if self.saving is None:
            return
        batch, self.saving = self.saving, None
        if not full:
            saved = {envelope.hash: envelope.sent for envelope in batch.envelopes}
            self.saved |= saved
            for archived in self.archived.values():
                archived.update(saved)
        server = self.server
        for origin, response in server.refuse(batch, self.now, FULL_TEXT) if full else server.confirm(batch):
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
        offered = {each.hash for each in self.offered[response.packet]}
        assert told_not <= offered
        assert offered - told_not <= self.archived[response.packet], "confirmed, and not archived"

    def wanted(self, envelope: Envelope) -> bool:
        return envelope.topic == TOPIC and envelope.sent >= self.now - 200

    @rule(count=st.none() | st.integers(0, 3))
    def prune(self, count: int | None) -> None:
        oldest = sorted(self.saved, key=self.saved.__getitem__)
        pruned = [each for each in oldest if self.saved[each] < self.now - 200] if count is None else oldest[:count]
        for each in pruned:
            self.server.pruned_until = max(self.server.pruned_until, self.saved.pop(each))
        if count is not None:
            self.server.floor = self.server.pruned_until if pruned else -1

    @invariant()
    def only_what_is_wanted_is_archived(self) -> None:
        assert self.saved.keys() <= self.due

    def teardown(self) -> None:
        self.finish_the_large_packet()
        while self.saving is not None or self.server.gathered:
            self.take()
            self.saved_or_not(full=False)
        assert self.answered.keys() == self.offered.keys(), "a packet was never answered"


class Forgetting(Interleaved):
    memory = (3 * 250, 3 * 700)


TestInterleaved = Interleaved.TestCase
TestForgetting = Forgetting.TestCase
TestInterleaved.settings = TestForgetting.settings = examples(100, 30)


def fill(pool: Pool, *envelopes: Envelope) -> None:
    for number, envelope in enumerate(envelopes, 1):
        pool.add_hash(envelope, number)
        pool.add_live(LiveEnvelope(envelope, 1.0, b"", 1))


def test_hashes_are_forgotten_in_blocks_when_the_last_of_a_block_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.node.pool.HASHES_PER_BLOCK", 2)
    pool = Pool(MIB, MIB)
    a, b, c = (letter(age=50 - second) for second in (10, 40, 20))
    fill(pool, a, b, c)
    pool.expire(EPOCH + 21 + EXPIRED_GRACE_SECONDS)
    assert pool.known_hashes == {a.hash: 1, b.hash: 2}
    pool.expire(EPOCH + 41 + EXPIRED_GRACE_SECONDS)
    assert pool.known_hashes == {}


STEPS = st.lists(
    st.tuples(st.integers(-3, 3) | st.integers(-50, 50), st.integers(0, 2) | st.none()), min_size=15, max_size=60
)
"""A second, and the number of an envelope that expires then; without a number, time goes on to it."""


@given(STEPS)
@examples(200)
def test_hashes_are_forgotten_as_they_came_and_envelopes_as_they_expire(steps: list[tuple[int, int | None]]) -> None:
    """So nobody can have others' envelopes forgotten, and relayed anew, by some that live for days."""
    size = LIVE_ENVELOPE_MEMORY + len(letter().raw)
    known: dict[bytes, int] = {}
    live: dict[bytes, int] = {}
    with patch("restante.waku.node.pool.HASHES_PER_BLOCK", 1):
        pool = Pool(4 * KNOWN_HASH_MEMORY, 5 * size)
        for second, number in [*steps, (1000, None)]:
            now = EPOCH + second
            if number is None:
                pool.expire(now)
                known = {name: expiry for name, expiry in known.items() if expiry >= now - EXPIRED_GRACE_SECONDS}
                live = {name: expiry for name, expiry in live.items() if expiry >= now}
            elif (envelope := letter(number, age=50 - second)).hash not in known:
                fill(pool, envelope)
                known = dict([*known.items(), (envelope.hash, now)][-4:])
                live[envelope.hash] = now
                if len(live) > 5:
                    live = {name: expiry for name, expiry in live.items() if expiry > min(live.values())}
            living = {digest for topic in pool.live.values() for digest in topic}
            assert (set(pool.known_hashes), living) == (set(known), set(live))
            assert pool.size == size * len(live)
            assert all(pool.live.values()), "a topic without an envelope"


def test_the_estimates_of_memory_are_near_the_truth() -> None:
    """A million topics are no different: here each envelope has one of its own."""
    count = 2_000
    raws = [letter(number, topic=number.to_bytes(4, "big"), ttl=100 + number % 1000).raw for number in range(count)]
    known, live = Pool(1 << 40, 1 << 40), Pool(1 << 40, 1 << 40)
    tracemalloc.start()
    try:
        traced = [tracemalloc.get_traced_memory()[0]]
        for number, raw in enumerate(raws):
            known.add_hash(parse(bytes(bytearray(raw))), number)
        traced.append(tracemalloc.get_traced_memory()[0])
        for raw in raws:
            live.add_live(LiveEnvelope(parse(bytes(bytearray(raw))), 1.0, b"", 1))
        traced.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert 0.5 < (traced[1] - traced[0]) / (count * KNOWN_HASH_MEMORY) < 1.2
    assert 0.5 < (traced[2] - traced[1]) / live.size < 1.2


FREE = Policy(min_pow=0.0)


def refusal(envelope: Envelope, policy: Policy = FREE, now: int = EPOCH) -> RefusalReason | None:
    return judge(envelope, now, policy).refusal


@pytest.mark.parametrize(("ahead", "late"), [(0, 0), (1, 2), (10, 11)])
def test_an_early_envelope_needs_work_for_the_time_until_it_is_sent(ahead: int, late: int) -> None:
    envelope = letter(age=-ahead)
    assert judge(envelope, EPOCH, FREE).pow == envelope.pow(late)
    assert refusal(envelope, Policy(min_pow=envelope.pow(late))) is None
    assert refusal(envelope, Policy(min_pow=math.nextafter(envelope.pow(late), 1))) is acceptance.TOO_CHEAP


def test_only_clocks_are_time_errors_and_each_reason_has_words() -> None:
    codes = {reason.name: reason.code for reason in REFUSAL_REASONS if reason.words}
    assert codes == {"future": 21, "old": 21, "expired": 21, "ttl": 22, "size": 22, "pow": 22}


@pytest.mark.parametrize(("more", "wanted"), [(0, None), (1, acceptance.TOO_LARGE)])
@pytest.mark.parametrize("max_size", [1 << 20, 10 << 20])
def test_an_envelope_that_fits_no_packet_is_refused_whatever_the_limit(
    more: int, wanted: RefusalReason | None, max_size: int
) -> None:
    """Nobody would ever get it: status-go disconnects whoever sends a packet of more than 1 MiB."""
    envelope = letter(size=packets.MAX_ENVELOPE_BYTES - 20 + more)
    assert len(envelope.raw) == packets.MAX_ENVELOPE_BYTES + more
    assert (len(packets.write_envelopes([envelope.raw])) <= packets.MAX_PACKET_BYTES) == (wanted is None)
    assert refusal(envelope, Policy(min_pow=0.0, max_size=max_size)) is wanted


def as_in_go(envelope: Envelope, now: int, policy: Policy) -> str:
    """What waku.go does, in its order, in unsigned 32 bits; and a ttl has a maximum."""
    sent, late = envelope.expiry - envelope.ttl & U32, 0
    if sent > now:
        if sent - 10 & U32 > now:
            return "future"
        late = sent - now + 1 & U32
    if envelope.expiry < now:
        return "old" if envelope.expiry + 20 & U32 < now else "expired"
    if envelope.ttl > policy.max_ttl:
        return "ttl"
    if 20 + len(envelope.data) > policy.max_size:
        return "size"
    return "pow" if envelope.pow(late) < policy.min_pow else "taken"


NEAR = st.integers(-25, 25) | st.sampled_from((-21, -20, -1, 0, 10, 11))
CLOCKS = st.sampled_from((EPOCH, 0, 15, U32, U32 - 15)) | st.integers(0, U32)
TTLS = st.integers(0, 60) | st.integers(0, U32) | st.sampled_from((7 * 86400 - 1, 7 * 86400, 7 * 86400 + 1))


@given(CLOCKS, NEAR, NEAR, TTLS, st.booleans(), st.integers(0, 60), st.sampled_from((0.0, 1e-4, 1e-3)))
@examples(400)
def test_what_status_go_accepts_is_accepted_unless_its_ttl_is_too_long(
    now: int, ahead: int, left: int, ttl: int, by_sent: bool, size: int, least: float
) -> None:
    expiry = (now + ahead + ttl if by_sent else now + left) & U32
    envelope = make(expiry, ttl, b"abcd", bytes(size))
    policy = Policy(min_pow=least, max_size=60)
    reason = refusal(envelope, policy, now)
    assert (reason.name if reason else "taken") == as_in_go(envelope, now, policy)
