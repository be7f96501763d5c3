"""What is known and what lives: until it expires, within bounds, and what expires first goes first."""

from __future__ import annotations

import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope.envelope import Envelope, make, parse
from restante.waku.node.pool import HASHES_PER_BLOCK, KNOWN_HASH_MEMORY, LIVE_ENVELOPE_MEMORY, LiveEnvelope, Pool
from restante.waku.protocol.acceptance import EXPIRED_GRACE_SECONDS
from support.waku.letters import EPOCH, letter

MIB = 1 << 20


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
