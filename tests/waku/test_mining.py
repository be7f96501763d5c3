"""Mining: a nonce with enough work, found within bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.mining import EXTRA_TTL_SECONDS, NotMined, hashes, mine
from restante.waku.protocol.acceptance import MAX_CLOCK_AHEAD_SECONDS, Policy, judge
from support.effort import examples

NOW = 1_600_000_000
ENVELOPE = make(NOW + 50, 50, b"abcd", bytes(284))


def with_nonce(envelope: Envelope, nonce: int) -> Envelope:
    return make(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, nonce)


def one_by_one(envelope: Envelope, least: float, start: int, late: int) -> Envelope:
    """Find it by looking at whole envelopes."""
    nonce = start
    while (found := with_nonce(envelope, nonce)).pow(late) < least:
        nonce = (nonce + 1) % (1 << 64)
    return found


@given(
    st.integers(1, 1000),
    st.binary(max_size=400),
    st.sampled_from((0.0, 1e-6, 1e-4, 1e-3, 1e-2)),
    st.integers(0, (1 << 64) - 1) | st.just((1 << 64) - 1),
    st.sampled_from((0, 1, EXTRA_TTL_SECONDS)),
)
@examples(40)
def test_the_first_sufficient_nonce_from_the_start_is_found(
    ttl: int, data: bytes, least: float, start: int, late: int
) -> None:
    envelope = make(NOW, ttl, b"abcd", data, 12345)
    if hashes(envelope, least, late=late) <= 1 << 9:
        found = mine(envelope, least, start=start, late=late)
        assert found == one_by_one(envelope, least, start, late)
        assert found.pow(late) >= least
        assert found.pow() >= least


def test_a_spent_budget_returns_the_best_nonce_found() -> None:
    first = one_by_one(ENVELOPE, 2e-3, 0, EXTRA_TTL_SECONDS)
    assert mine(ENVELOPE, 2e-3, start=0, budget=first.nonce + 1) == first
    with pytest.raises(NotMined) as spent:
        mine(ENVELOPE, 2e-3, start=0, budget=first.nonce)
    tried = [with_nonce(ENVELOPE, number) for number in range(first.nonce)]
    assert spent.value.best in tried
    assert spent.value.best.pow() == max(each.pow() for each in tried)
    assert isinstance(spent.value, Misuse)
    assert f"in {first.nonce} hashes" in str(spent.value)
    assert "shorten the ttl" in str(spent.value)
    with pytest.raises(NotMined):
        mine(ENVELOPE, 2e-3, start=0, budget=0)


def test_an_envelope_with_no_time_to_live_needs_work_only_where_it_may_be_early() -> None:
    envelope = make(NOW, 0, b"abcd", b"x")
    assert mine(envelope, 1e9, start=5, budget=1, late=0) == with_nonce(envelope, 5)
    assert hashes(envelope, 1e9, late=0) == 1
    with pytest.raises(NotMined):
        mine(envelope, 1e9, start=5, budget=1)


@pytest.mark.parametrize("behind", [0, 1, MAX_CLOCK_AHEAD_SECONDS])
def test_a_mined_envelope_is_accepted_by_a_peer_whose_clock_is_behind(behind: int) -> None:
    policy = Policy(min_pow=2e-3)
    verdict = judge(mine(ENVELOPE, policy.min_pow, start=0), NOW - behind, policy)
    assert verdict.refusal is None
    assert verdict.pow >= policy.min_pow


def test_twice_the_bytes_or_the_seconds_is_twice_the_work() -> None:
    bare = len(ENVELOPE.bare)
    assert hashes(ENVELOPE, 1 / (bare * 50), late=0) == 1
    assert hashes(ENVELOPE, 2 / (bare * 50), late=0) == 2
    assert hashes(ENVELOPE, 2.1 / (bare * 50), late=0) == 4
    assert hashes(ENVELOPE, 1024 / (bare * 61)) == 1024
    assert hashes(ENVELOPE, 0.0) == 1
    short, long = make(NOW, 200, b"abcd", bytes(1000)), make(NOW, 200, b"abcd", bytes(4000))
    assert hashes(long, 0.01) == 4 * hashes(short, 0.01)


def test_mining_takes_as_many_hashes_as_estimated() -> None:
    wanted = hashes(ENVELOPE, 2e-3)
    needed = []
    start = 0
    for _ in range(200):
        found = mine(ENVELOPE, 2e-3, start=start).nonce
        needed.append(found - start + 1)
        start = found + 1
    assert wanted == 64
    assert math.isclose(sum(needed) / len(needed), wanted, rel_tol=0.25)
