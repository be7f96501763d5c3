"""Which envelopes are taken: every edge one before, on it, and one beyond."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope.envelope import Envelope, make
from restante.waku.protocol import acceptance, packets
from restante.waku.protocol.acceptance import Policy, RefusalReason, Verdict, judge
from support.effort import examples

NOW = 1_600_000_000
U32 = 0xFFFFFFFF
FREE = Policy(min_pow=0.0)


def refusal(envelope: Envelope, policy: Policy = FREE, now: int = NOW) -> RefusalReason | None:
    return judge(envelope, now, policy).refusal


def sent_at(sent: int, ttl: int = 50, size: int = 100) -> Envelope:
    return make((sent + ttl) & U32, ttl & U32, b"abcd", bytes(size))


WEEK = 7 * 86400
WRAPPING = Policy(min_pow=0.0, max_ttl=U32)
MINUTE = Policy(min_pow=0.0, max_ttl=60)
KILOBYTE = Policy(min_pow=0.0, max_size=1000)


@pytest.mark.parametrize(
    ("envelope", "policy", "now", "expected"),
    [
        (sent_at(NOW + 9), FREE, NOW, None),
        (sent_at(NOW + 10), FREE, NOW, None),
        (sent_at(NOW + 11), FREE, NOW, acceptance.FUTURE),
        (make(NOW, 50, b"abcd", b"x"), FREE, NOW, None),
        (make(NOW - 1, 50, b"abcd", b"x"), FREE, NOW, acceptance.EXPIRED),
        (make(NOW - 20, 50, b"abcd", b"x"), FREE, NOW, acceptance.EXPIRED),
        (make(NOW - 21, 50, b"abcd", b"x"), FREE, NOW, acceptance.OLD),
        # Sent at 0, and at 2^32 - 1: a ttl beyond the expiry wraps into the future.
        (make(NOW, NOW, b"abcd", b"x"), WRAPPING, NOW, None),
        (make(NOW, NOW + 1, b"abcd", b"x"), WRAPPING, NOW, acceptance.FUTURE),
        (make(U32, 50, b"abcd", b"x"), FREE, U32, None),
        (make(U32 - 20, 50, b"abcd", b"x"), FREE, U32, acceptance.EXPIRED),
        (make(U32 - 21, 50, b"abcd", b"x"), FREE, U32, acceptance.OLD),
        # As in Go, the sum wraps: 2^32 - 19 + 20 is 1, and so the envelope is old a second after it expired.
        (make(U32 - 18, 50, b"abcd", b"x"), FREE, U32, acceptance.OLD),
        (sent_at(5), FREE, 4, acceptance.FUTURE),  # and so does 5 - 10
        (sent_at(NOW, WEEK), FREE, NOW, None),
        (sent_at(NOW, WEEK + 1), FREE, NOW, acceptance.TOO_LONG),
        (sent_at(NOW, 60), MINUTE, NOW, None),
        (sent_at(NOW, 61), MINUTE, NOW, acceptance.TOO_LONG),
        (make(NOW + 1, NOW - 10, b"abcd", b"x"), FREE, NOW, acceptance.TOO_LONG),
        # The size is twenty bytes and the data.
        (sent_at(NOW, size=980), KILOBYTE, NOW, None),
        (sent_at(NOW, size=981), KILOBYTE, NOW, acceptance.TOO_LARGE),
    ],
)
def test_an_envelope_is_refused_from_the_first_second_or_byte_beyond_a_limit(
    envelope: Envelope, policy: Policy, now: int, expected: RefusalReason | None
) -> None:
    assert refusal(envelope, policy, now) is expected


@pytest.mark.parametrize(("ahead", "late"), [(0, 0), (1, 2), (10, 11)])
def test_an_early_envelope_needs_work_for_the_time_until_it_is_sent(ahead: int, late: int) -> None:
    envelope = sent_at(NOW + ahead)
    assert judge(envelope, NOW, FREE).pow == envelope.pow(late)
    assert refusal(envelope, Policy(min_pow=envelope.pow(late))) is None
    assert refusal(envelope, Policy(min_pow=math.nextafter(envelope.pow(late), 1))) is acceptance.TOO_CHEAP


def test_only_clocks_are_time_errors_and_only_what_expired_on_its_way_is_dropped_silently() -> None:
    reasons = {reason.name: reason for reason in vars(acceptance).values() if isinstance(reason, RefusalReason)}
    codes = {name: reason.code for name, reason in reasons.items()}
    assert codes == {"future": 21, "old": 21, "expired": 21, "ttl": 22, "size": 22, "pow": 22}
    assert [name for name, reason in reasons.items() if not reason.words] == ["expired"]


@pytest.mark.parametrize(("more", "wanted"), [(0, None), (1, acceptance.TOO_LARGE)])
@pytest.mark.parametrize("max_size", [1 << 20, 10 << 20])
def test_an_envelope_that_fits_no_packet_is_refused_whatever_the_limit(
    more: int, wanted: RefusalReason | None, max_size: int
) -> None:
    """Nobody would ever get it: status-go disconnects whoever sends a packet of more than 1 MiB."""
    envelope = sent_at(NOW, size=packets.MAX_ENVELOPE_BYTES - 20 + more)
    assert len(envelope.raw) == packets.MAX_ENVELOPE_BYTES + more
    assert (len(packets.write_envelopes([envelope.raw])) <= packets.MAX_PACKET_BYTES) == (wanted is None)
    assert refusal(envelope, Policy(min_pow=0.0, max_size=max_size)) is wanted


def test_no_time_to_live_is_infinite_work() -> None:
    assert judge(sent_at(NOW, 0), NOW, Policy(min_pow=1e300)) == Verdict(None, math.inf)
    assert refusal(sent_at(NOW + 1, 0), Policy(min_pow=1e300)) is acceptance.TOO_CHEAP


def test_the_cheapest_checks_come_first() -> None:
    """One after the other is mended."""
    hard: dict[str, Any] = {"min_pow": 1e9, "max_size": 10, "max_ttl": 10}
    bad = make(NOW - 100, 50, b"abcd", b"x")
    assert refusal(bad, Policy(**hard)) is acceptance.OLD
    good = make(NOW + 50, 50, b"abcd", b"x")
    for name, wanted in (
        ("max_ttl", acceptance.TOO_LONG),
        ("max_size", acceptance.TOO_LARGE),
        ("min_pow", acceptance.TOO_CHEAP),
    ):
        verdict = judge(good, NOW, Policy(**hard))
        assert verdict.refusal is wanted
        assert bool(verdict.pow) == (name == "min_pow")
        del hard[name]
    assert refusal(good, Policy(**hard, min_pow=0.0)) is None


def uint32(number: int) -> int:
    return number % (1 << 32)


def as_in_go(envelope: Envelope, now: int, policy: Policy) -> str:
    """What waku.go does, in its order, in unsigned 32 bits."""
    sent, late = uint32(envelope.expiry - envelope.ttl), 0
    if sent > now:
        if uint32(sent - 10) > now:
            return "future"
        late = uint32(sent - now + 1)
    if envelope.expiry < now:
        return "old" if uint32(envelope.expiry + 20) < now else "expired"
    if 20 + len(envelope.data) > policy.max_size:
        return "size"
    return "pow" if envelope.pow(late) < policy.min_pow else "taken"


near = st.integers(-25, 25)
clocks = st.sampled_from((NOW, 0, 15, U32, U32 - 15)) | st.integers(0, U32)
ttls = st.integers(0, 60) | st.integers(0, U32) | st.sampled_from((7 * 86400 - 1, 7 * 86400, 7 * 86400 + 1))


@given(clocks, near, near, ttls, st.booleans(), st.integers(0, 60), st.sampled_from((0.0, 1e-4, 1e-3)))
@examples(400)
def test_an_envelope_that_status_go_accepts_is_accepted_unless_its_ttl_is_too_long(
    now: int, ahead: int, left: int, ttl: int, by_sent: bool, size: int, least: float
) -> None:
    expiry = uint32(now + ahead + ttl) if by_sent else uint32(now + left)
    envelope = make(expiry, ttl, b"abcd", bytes(size))
    policy = Policy(min_pow=least, max_size=60)
    found, wanted = refusal(envelope, policy, now), as_in_go(envelope, now, policy)
    if found is acceptance.TOO_LONG:
        assert ttl > policy.max_ttl
        assert wanted in ("taken", "size", "pow")
    else:
        assert (found.name if found else "taken") == wanted
