"""The transit relay's rules by themselves: requests, bytes of days and months, slowing, the cost of a connection."""

from __future__ import annotations

import gc
import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict
from wormhole_transit_relay.usage import blur_size

from restante.common.address_registry import SECONDS_PER_DAY
from restante.relay.core import quotas
from restante.relay.core.limits import SLOW_BYTES_PER_SECOND, UNLIMITED, Limits
from restante.relay.core.quotas import AddressQuota, Traffic
from restante.relay.core.relay import Now, Pair, Paired, Relay, Side
from restante.relay.core.usage import blurred_size
from restante.relay.protocol.refusals import KINDS
from restante.relay.protocol.request import Request, parse_message, read_line

START = 1_700_000_000.0
"""Tuesday, 14 November 2023, 22:13:20 UTC."""


def now(seconds: float = 0.0) -> Now:
    return Now(START + seconds, seconds)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────

PIECES = ("please relay ", "t" * 64, "T_" * 32, "é", " for side ", "s" * 16, "s" * 15, "\n", "\r\n", " ", "\x00")
almost_requests = st.lists(st.sampled_from(PIECES), max_size=7).map("".join) | st.builds(
    "please relay {}{}{}".format,
    st.sampled_from(("t" * 64, "t" * 63, "t" * 65, "é" * 32, "-" * 64)),
    st.sampled_from(("", " for side " + "s" * 16, " for side " + "s" * 17, " for side  " + "s" * 16)),
    st.sampled_from(("", "\n", "\n\n", "\r\n", "x")),
)


@given(almost_requests)
@example("please relay " + "t" * 64)
@example("please relay " + "t" * 64 + "\n\n")
def test_the_first_message_of_a_websocket_is_read_as_the_reference_reads_it(text: str) -> None:
    """Transit_server.py:231 and :237, 0.5.0."""
    payload = text.encode()
    first = re.search(rb"^please relay (\w{64})$", payload)
    second = re.search(rb"^please relay (\w{64}) for side (\w{16})$", payload)
    expected = Request(first[1]) if first else Request(second[1], second[2]) if second else None
    assert parse_message(payload) == expected


@given(almost_requests, st.binary(max_size=20), st.integers(1, 40))
def test_a_line_is_read_alike_in_any_segments(text: str, behind: bytes, segment: int) -> None:
    data = text.encode() + b"\n" + behind
    expected = read_line(data)
    assert expected is not None
    assert data[: expected.size] == data.partition(b"\n")[0] + b"\n"
    received, line = bytearray(), None
    for start in range(0, len(data), segment):
        received += data[start : start + segment]
        line = read_line(received)
        if line is not None:
            break
    assert line == expected


@pytest.mark.parametrize(
    "other", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\n", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"]
)
def test_lines_of_other_protocols_are_malformed(other: bytes) -> None:
    line = read_line(other)
    assert line is not None
    assert (line.request, line.size, line.too_long) == (None, len(other), False)


# ── usage records ─────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10**13))
@example(0)
@example(1)
@example(10_000)
@example(10_001)
@example(999_999)
@example(1_000_000)
@example(1_000_001)
@example(999_999_999)
@example(1_000_000_000)
@example(1_000_000_001)
def test_sizes_are_rounded_as_the_reference_rounds_them(size: int) -> None:
    assert blurred_size(size) == blur_size(size)


# ── bytes of days and months ──────────────────────────────────────────────────────────────────────


def named(traffic: Traffic, address_id: str) -> AddressQuota:
    quota = AddressQuota()
    traffic.name(quota, address_id)
    return quota


def count(traffic: Traffic, quota: AddressQuota, size: int) -> None:
    """Count bytes of one address only."""
    for day_bytes in traffic.counters([quota]):
        day_bytes.bytes += size


def test_counts_survive_a_restart_on_the_same_day() -> None:
    relay, pair = running(address_day_bytes=10)
    relay.count_bytes(pair, 7)
    restarted = Relay(relay.limits)
    restarted.traffic.restore(relay.traffic.saved(), START + 3600)
    assert restarted.traffic.saved() == relay.traffic.saved()
    quota = named(restarted.traffic, "first")
    assert restarted.traffic.day_bytes_of(quota) == 7
    count(restarted.traffic, quota, 3)
    assert restarted.traffic.top(5) == [("first", 10), ("second", 7)]


def test_the_next_day_begins_with_the_counts_of_the_month_and_the_next_month_without() -> None:
    relay, pair = running()
    relay.count_bytes(pair, 7)
    saved = relay.traffic.saved()
    assert (saved.month, saved.month_bytes, saved.day_bytes) == ("2023-11", 7, 7)
    for days, month_bytes in ((1, 7), (16, 7), (17, 0)):
        traffic = Traffic()
        traffic.restore(saved, START + days * SECONDS_PER_DAY)
        assert (traffic.month_bytes, traffic.day_bytes) == (month_bytes, 0)
        assert traffic.top(5) == []
        assert traffic.day_bytes_of(named(traffic, "first")) == 0


def test_a_month_goes_on_after_a_start_with_a_clock_that_is_behind_until_the_clock_reaches_another_month() -> None:
    """Computers without a battery start in 1970, and may start again before they are told the time."""
    relay, pair = running(month_bytes=10)
    relay.count_bytes(pair, 7)
    saved = relay.traffic.saved()
    for wall in (0.0, START - 20 * SECONDS_PER_DAY):
        traffic = Traffic()
        traffic.restore(saved, wall)
        saved = traffic.saved()
        assert (saved.month, saved.month_bytes, saved.day_bytes) == ("2023-11", 7, 0)
    for days, month_bytes in ((1 - 20, 7), (0, 7), (16, 7), (17, 0)):
        traffic.begin_day(START + days * SECONDS_PER_DAY)
        assert traffic.month_bytes == month_bytes


def test_a_month_of_a_clock_that_was_ahead_ends_with_the_month_in_which_the_clock_is_right() -> None:
    traffic = Traffic()
    traffic.begin_day(START + 10_000 * SECONDS_PER_DAY)
    traffic.month_bytes = 7
    restarted = Traffic()
    restarted.restore(traffic.saved(), START)
    assert (restarted.month, restarted.month_bytes) == ("2051-04", 7)
    restarted.begin_day(START + 17 * SECONDS_PER_DAY)
    assert (restarted.month, restarted.month_bytes) == ("2023-12", 0)


def test_an_address_without_a_name_of_this_day_is_counted_and_saved_once_it_has_one() -> None:
    """One of its pairs runs since yesterday; what another of its quotas had counted before is not lost."""
    relay, pair = running()
    relay.expire(now(SECONDS_PER_DAY))
    relay.count_bytes(pair, 5)
    traffic = relay.traffic
    quota = pair.first.address_quotas[0]
    assert (traffic.day_bytes_of(quota), traffic.top(5)) == (5, [])
    count(traffic, named(traffic, "today"), 2)
    traffic.name(quota, "today")
    relay.count_bytes(pair, 1)
    assert traffic.day_bytes_of(quota) == 8
    assert traffic.top(5) == [("today", 8)]


def test_a_name_of_yesterday_is_nobodys_name_today() -> None:
    traffic = Traffic()
    traffic.begin_day(START)
    quota = named(traffic, "x")
    traffic.begin_day(START + SECONDS_PER_DAY)
    count(traffic, named(traffic, "x"), 5)
    assert traffic.day_bytes_of(quota) == 0


def test_a_days_count_is_forgotten_if_very_many_addresses_were_paired_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_DAY_ADDRESSES", 3)
    traffic = Traffic()
    traffic.begin_day(START)
    addresses = [named(traffic, name) for name in "abc"]
    for quota in addresses:
        count(traffic, quota, 1)
    count(traffic, addresses[0], 1)
    count(traffic, named(traffic, "d"), 1)
    assert dict(traffic.top(5)) == {"a": 2, "c": 1, "d": 1}


def test_an_address_is_remembered_as_long_as_its_usage_records_count() -> None:
    limits, quota = Limits(address_records=2), AddressQuota()
    assert quota.idle(0.0, limits)
    assert quota.charge_record(0.0, limits)
    assert not quota.idle(SECONDS_PER_DAY / 2 - 1, limits)
    assert quota.idle(SECONDS_PER_DAY / 2 + 1, limits)
    for counter in ("waiting", "pairs", "pending_requests"):
        live = AddressQuota()
        setattr(live, counter, 1)
        assert live.live
        assert not live.idle(0.0, limits)


# ── running pairs ─────────────────────────────────────────────────────────────────────────────────


def running(**limits: int) -> tuple[Relay, Pair]:
    """Return a relay and a pair of two addresses, `first` and `second`."""
    relay = Relay(Limits(**limits))
    for name in ("first", "second"):
        side = relay.open(name, (AddressQuota(),), name, now())
        assert isinstance(side, Side)
        answer = relay.request(side, Request(b"t" * 64), now())
    assert isinstance(answer, Paired)
    return relay, answer.pair


def test_a_pair_is_slowed_when_an_address_has_used_up_its_day_until_the_next_day() -> None:
    relay, pair = running(address_day_bytes=10)
    assert relay.slow_rate(pair) is None
    assert relay.count_bytes(pair, 10)
    assert relay.slow_rate(pair) == SLOW_BYTES_PER_SECOND
    relay.expire(now(SECONDS_PER_DAY))
    assert relay.slow_rate(pair) is None
    relay.count_bytes(pair, 9)
    assert relay.slow_rate(pair) is None
    relay.count_bytes(pair, 1)
    assert relay.slow_rate(pair) == SLOW_BYTES_PER_SECOND


def test_every_pair_of_an_address_is_slowed_also_one_that_has_been_silent_since_yesterday() -> None:
    relay, silent = running(address_day_bytes=10)
    first = silent.first
    pair = Pair(first, Side(None, first.address_quotas, first.address_id, now()), now())
    relay.expire(now(SECONDS_PER_DAY))
    relay.count_bytes(pair, 10)
    assert relay.slow_rate(pair) == relay.slow_rate(silent) == SLOW_BYTES_PER_SECOND


def test_all_pairs_are_slowed_when_the_month_is_used_up_until_the_next_month() -> None:
    relay, pair = running(month_bytes=10)
    relay.count_bytes(pair, 9)
    assert relay.slow_rate(pair) is None
    relay.count_bytes(pair, 1)
    assert relay.slow_rate(pair) == SLOW_BYTES_PER_SECOND
    relay.expire(now(17 * SECONDS_PER_DAY))
    assert relay.slow_rate(pair) is None


def test_a_pair_that_reaches_its_bytes_is_refused_once_and_its_last_bytes_are_counted() -> None:
    relay, pair = running(pair_bytes=10)
    assert relay.count_bytes(pair, 9)
    assert not relay.count_bytes(pair, 1)
    assert not relay.count_bytes(pair, 5)
    relay.end_pair(pair, now(4.0))
    assert relay.refusal_counts.since_start == {"pair_bytes": 1}
    assert [(record.result, record.total_bytes, record.total_time) for record in relay.records] == [
        ("happy", 15, 4.0)
    ]


# ── tables and costs ──────────────────────────────────────────────────────────────────────────────


def test_each_refusal_names_the_limits_that_cause_it() -> None:
    named_limits = {limit for kind in KINDS.values() for limit in kind.limits}
    rates = {"pair_rate", "address_rate", "rate"}
    assert named_limits | rates | {"free_disk"} == set(Limits.__struct_fields__)


def test_without_limits_only_the_handshake_has_one() -> None:
    assert {name for name, value in asdict(UNLIMITED).items() if value} == {"handshake"}


def test_a_waiting_connection_takes_little_memory_which_is_free_when_it_ends() -> None:
    relay, quota = Relay(UNLIMITED), AddressQuota()

    def wait_and_end() -> tuple[int, int]:
        """Return the bytes of memory that are in use while 2,000 connections wait, and when they have ended."""
        for turn in range(2000):
            side = relay.open(None, (quota,), "", now(turn))
            assert isinstance(side, Side)
            relay.request(side, Request(b"%064d" % turn, b"%016d" % turn), now(turn))
        del side
        during, _ = tracemalloc.get_traced_memory()
        relay.drain(now(2000))
        relay.draining = False
        relay.records.clear()
        return during, tracemalloc.get_traced_memory()[0]

    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        during, after = wait_and_end()
        _, again = wait_and_end()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert during - before < 2000 * 1024
    assert again - after < 10_000
