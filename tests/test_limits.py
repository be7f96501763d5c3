"""Limits: buckets, and the limiter of one connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.token_bucket import Bucket
from restante.mailbox.core.address_quotas import ABUSE_SCORE_TOLERATED
from restante.mailbox.core.admission import CONNECTION_ABUSE_SCORE
from restante.mailbox.core.limits import UNLIMITED, Limits, RateLimiter

steps = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), max_size=20)


@given(steps, st.floats(0.1, 100))
def test_a_bucket_empties_at_its_rate_and_never_below_zero(taken: list[tuple[float, float]], rate: float) -> None:
    bucket, now, spent = Bucket(), 0.0, 0.0
    for passed, amount in taken:
        now += passed
        spent = max(0.0, spent - passed * rate)
        assert bucket.spent(now, rate) == pytest.approx(spent, abs=1e-6)
        bucket.take(now, rate, amount)
        spent += amount
    assert bucket.spent(now + spent / rate + 1, rate) == 0


def test_a_bucket_tells_when_there_is_room_again() -> None:
    bucket = Bucket()
    bucket.take(0.0, 2.0, 10)
    assert bucket.wait(0.0, 2.0, 4) == 3.0
    assert bucket.wait(1.0, 2.0, 4) == 2.0
    assert bucket.wait(9.0, 2.0, 4) == 0.0


LIMITS = replace(UNLIMITED, commands=10.0, commands_at_once=5, bytes=1000.0, bytes_at_once=5000)


def test_commands_are_limited_to_a_burst_and_a_rate() -> None:
    limiter = RateLimiter()
    for _ in range(5):
        limiter.charge(100.0, LIMITS, 1)
    assert not limiter.owing
    limiter.charge(100.0, LIMITS, 1)
    assert limiter.owing
    assert limiter.refresh(100.0, LIMITS) == pytest.approx(0.1)
    assert limiter.refresh(100.11, LIMITS) == 0
    assert not limiter.owing


def test_an_expensive_command_is_executed_and_the_next_ones_wait() -> None:
    limiter = RateLimiter()
    limiter.charge(0.0, LIMITS, 20_000)
    assert limiter.refresh(0.0, LIMITS) == pytest.approx(15.0)
    assert limiter.refresh(15.01, LIMITS) == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3000)), min_size=1, max_size=50))
def test_a_connection_that_keeps_its_waits_never_exceeds_the_limits(said: list[tuple[float, int]]) -> None:
    limiter, now, commands, size = RateLimiter(), 0.0, 0, 0
    for passed, cost in said:
        now += passed
        now += limiter.refresh(now, LIMITS)
        assert commands <= LIMITS.commands_at_once + now * LIMITS.commands + 1e-6
        assert size <= LIMITS.bytes_at_once + now * LIMITS.bytes + 3000
        limiter.charge(now, LIMITS, cost)
        commands, size = commands + 1, size + cost


def test_without_limits_no_connection_waits() -> None:
    limiter = RateLimiter()
    for _ in range(1000):
        limiter.charge(0.0, UNLIMITED, 10**9)
    assert not limiter.owing
    assert limiter.refresh(0.0, UNLIMITED) == 0


def test_no_default_contradicts_another() -> None:
    limits = Limits()
    assert limits.message_bytes <= limits.mailbox_bytes <= limits.stored_bytes
    assert limits.message_bytes <= limits.bytes_at_once
    assert limits.mailbox_bytes <= limits.address_bytes < limits.stored_bytes
    assert limits.mailbox_bytes < limits.held_bytes
    # The limits' own reasons are no trouble to an adaptive server: an office after an outage, a class of thirty.
    assert limits.address_connects_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED
    assert 30 + limits.address_claims_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED
