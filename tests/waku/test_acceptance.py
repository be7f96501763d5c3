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
from restante.waku.protocol.packets import OTHER_ERROR, TIME_ERROR
from support.effort import examples
from support.rows import every

NOW = 1_600_000_000
U32 = 0xFFFFFFFF
FREE = Policy(min_pow=0.0)


def refusal(envelope: Envelope, policy: Policy = FREE, now: int = NOW) -> RefusalReason | None:
    return judge(envelope, now, policy).refusal


def sent_at(sent: int, ttl: int = 50, size: int = 100) -> Envelope:
    return make((sent + ttl) & U32, ttl & U32, b"abcd", bytes(size))


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("ahead", "wanted"), [(9, None), (10, None), (11, acceptance.FUTURE)])
def test_a_sender_s_clock_may_be_ten_seconds_ahead(ahead: int, wanted: RefusalReason | None) -> None:
    assert refusal(sent_at(NOW + ahead)) is wanted


@every(("ahead", "late"), [(-1, 0), (0, 0), (1, 2), (9, 10), (10, 11)])
def test_an_early_envelope_needs_work_for_the_time_until_it_is_sent(ahead: int, late: int) -> None:
    envelope = sent_at(NOW + ahead)
    assert judge(envelope, NOW, FREE).pow == envelope.pow(late)
    assert refusal(envelope, Policy(min_pow=envelope.pow(late))) is None
    assert refusal(envelope, Policy(min_pow=math.nextafter(envelope.pow(late), 1))) is acceptance.TOO_CHEAP


@every(
    ("left", "wanted"),
    [
        *((1, None), (0, None), (-1, acceptance.EXPIRED)),
        *((-19, acceptance.EXPIRED), (-20, acceptance.EXPIRED), (-21, acceptance.OLD)),
    ],
)
def test_an_expired_envelope_is_dropped_for_twenty_seconds_and_then_refused(
    left: int, wanted: RefusalReason | None
) -> None:
    assert refusal(make(NOW + left, 50, b"abcd", b"x")) is wanted


def test_an_envelope_that_expired_on_its_way_is_dropped_silently() -> None:
    assert acceptance.EXPIRED.words == ""
    told = [
        each
        for each in vars(acceptance).values()
        if isinstance(each, RefusalReason) and each is not acceptance.EXPIRED
    ]
    assert len(told) == 5
    assert all(each.words for each in told)


def test_only_clocks_are_time_errors() -> None:
    of_time = {acceptance.FUTURE, acceptance.OLD, acceptance.EXPIRED}
    for each in vars(acceptance).values():
        if isinstance(each, RefusalReason):
            assert each.code == (TIME_ERROR if each in of_time else OTHER_ERROR)
    assert (TIME_ERROR, OTHER_ERROR) == (21, 22)


@pytest.mark.parametrize(("more", "wanted"), [(-1, None), (0, None), (1, acceptance.FUTURE)])
def test_a_ttl_beyond_the_expiry_wraps_into_the_future(more: int, wanted: RefusalReason | None) -> None:
    envelope = make(NOW, NOW + more, b"abcd", b"x")  # sent at 1, 0, and 2^32 - 1
    assert refusal(envelope, Policy(min_pow=0.0, max_ttl=U32)) is wanted


def test_an_envelope_that_expires_at_the_end_of_32_bits_is_like_any_other() -> None:
    assert refusal(make(U32, 50, b"abcd", b"x"), now=U32) is None
    assert refusal(make(U32 - 20, 50, b"abcd", b"x"), now=U32) is acceptance.EXPIRED
    assert refusal(make(U32 - 21, 50, b"abcd", b"x"), now=U32) is acceptance.OLD
    # As in Go, the sum wraps: 2^32 - 19 + 20 is 1, and so the envelope is old a second after it expired.
    assert refusal(make(U32 - 18, 50, b"abcd", b"x"), now=U32) is acceptance.OLD
    assert refusal(sent_at(5), now=4) is acceptance.FUTURE  # and so does 5 - 10


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("more", "wanted"), [(-1, None), (0, None), (1, acceptance.TOO_LONG)])
def test_no_ttl_is_longer_than_seven_days_unless_the_operator_says_so(
    more: int, wanted: RefusalReason | None
) -> None:
    week = 7 * 86400
    assert refusal(sent_at(NOW, week + more)) is wanted
    assert refusal(sent_at(NOW, 60 + more), Policy(min_pow=0.0, max_ttl=60)) is wanted


def test_a_sender_with_work_cannot_date_back_by_decades() -> None:
    assert refusal(make(NOW + 1, NOW - 10, b"abcd", b"x")) is acceptance.TOO_LONG


@pytest.mark.parametrize(("more", "wanted"), [(-1, None), (0, None), (1, acceptance.TOO_LARGE)])
def test_the_size_is_twenty_bytes_and_the_data(more: int, wanted: RefusalReason | None) -> None:
    assert refusal(sent_at(NOW, size=980 + more), Policy(min_pow=0.0, max_size=1000)) is wanted


@every(("more", "wanted"), [(0, None), (1, acceptance.TOO_LARGE)])
@every("max_size", [1 << 20, 10 << 20])
def test_an_envelope_that_fits_no_packet_is_refused_whatever_the_limit(
    more: int, wanted: RefusalReason | None, max_size: int
) -> None:
    """Nobody would ever get it: status-go disconnects whoever sends a packet of more than 1 MiB."""
    envelope = sent_at(NOW, size=packets.MAX_ENVELOPE_BYTES - 20 + more)
    assert len(envelope.raw) == packets.MAX_ENVELOPE_BYTES + more
    assert (len(packets.write_envelopes([envelope.raw])) <= packets.MAX_PACKET_BYTES) == (wanted is None)
    assert refusal(envelope, Policy(min_pow=0.0, max_size=max_size)) is wanted


def test_work_must_be_the_least_or_more() -> None:
    envelope = sent_at(NOW)
    has = envelope.pow()
    for least, wanted in (
        *((math.nextafter(has, 0), None), (has, None)),
        (math.nextafter(has, 1), acceptance.TOO_CHEAP),
    ):
        assert refusal(envelope, Policy(min_pow=least)) is wanted
        assert judge(envelope, NOW, Policy(min_pow=least)).pow == has


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


# ── against Go's own arithmetic ──────────────────────────────────────────────────────────────────


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
