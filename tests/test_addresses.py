"""Addresses: who is at the other end, and what that address has used up."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.net import host_and_port, household, networks, read, shown
from restante.mailbox.core import address_quotas
from restante.mailbox.core.address_quotas import (
    ABUSE_SCORE_PER_BIT,
    ABUSE_SCORE_TOLERATED,
    AddressQuota,
    AddressRegistry,
)
from restante.mailbox.core.addresses import identify
from restante.mailbox.core.limits import UNLIMITED

LOCAL = ("127.0.0.1", 5000)
ABROAD = ("8.8.8.8", 5000)
PROXY = networks(["127.0.0.0/8", "fd00::/8"], "--trust-proxy")


def seen(peer: tuple[Any, ...], headers: dict[str, str], trusted: Any = ()) -> tuple[str, int, bool]:
    client = identify(peer, headers, trusted)
    return str(client.address), client.port, client.counted


@pytest.mark.parametrize(
    ("host", "address", "counted"),
    [
        *((host, host, True) for host in ("8.8.8.8", "2001:4860::1", "2001::4136:e378", "198.18.0.1", "240.0.0.1")),
        *((host, host, False) for host in ("127.0.0.1", "::1", "10.1.2.3", "192.168.1.1", "fd12::1")),
        ("::ffff:8.8.8.8", "8.8.8.8", True),
        ("::ffff:127.0.0.1", "127.0.0.1", False),
        ("fe80::1%eth0", "fe80::1", False),
    ],
)
def test_limits_count_for_public_addresses(host: str, address: str, counted: bool) -> None:
    assert seen((host, 7), {}) == (address, 7, counted)


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, ("127.0.0.1", 5000, False)),
        ({"X-Real-IP": "8.8.8.8"}, ("8.8.8.8", 0, True)),
        ({"X-Real-IP": " 8.8.8.8 ", "X-Real-Port": " 99 "}, ("8.8.8.8", 99, True)),
        ({"X-Forwarded-For": "8.8.8.8"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "1.2.3.4, 8.8.8.8"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "8.8.8.8, 127.0.0.2"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "127.0.0.3, 127.0.0.2"}, ("127.0.0.3", 0, True)),
        ({"X-Forwarded-For": "10.0.0.7"}, ("10.0.0.7", 0, True)),
        ({"X-Forwarded-For": "8.8.8.8:443"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "[2001:4860::1]:443"}, ("2001:4860::1", 0, True)),
        ({"X-Forwarded-For": "2001:4860::1"}, ("2001:4860::1", 0, True)),
        ({"X-Forwarded-For": "8.8.8.8", "X-Real-IP": "9.9.9.9"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "unknown"}, ("127.0.0.1", 5000, True)),
        ({"X-Forwarded-For": ""}, ("127.0.0.1", 5000, False)),
        ({"X-Forwarded-For": ", ,"}, ("127.0.0.1", 5000, True)),
        ({"X-Real-IP": "8.8.8.8:443"}, ("8.8.8.8", 0, True)),
        ({"X-Real-IP": "nobody"}, ("127.0.0.1", 5000, True)),
        ({"X-Real-IP": "6.6.6.6,8.8.8.8", "X-Real-Port": "6,9"}, ("8.8.8.8", 9, True)),
        ({"X-Real-IP": "8.8.8.8", "X-Real-Port": "http"}, ("8.8.8.8", 0, True)),
        ({"X-Real-IP": "8.8.8.8", "X-Real-Port": "99999"}, ("8.8.8.8", 0, True)),
        ({"X-Real-IP": "8.8.8.8", "X-Real-Port": "٣"}, ("8.8.8.8", 0, True)),
    ],
)
def test_a_trusted_proxy_names_its_client(headers: dict[str, str], wanted: tuple[str, int, bool]) -> None:
    assert seen(LOCAL, headers, PROXY) == wanted


@pytest.mark.parametrize(
    ("forwarded", "real", "other"),
    [
        ("8.8.8.8", "9.9.9.9", "9.9.9.9"),
        ("8.8.8.8", "8.8.8.8", None),
        ("1.2.3.4, 8.8.8.8", "8.8.8.8", None),
        ("8.8.8.8", "nobody", "127.0.0.1"),
        ("8.8.8.8", "9.9.9.9:443", "9.9.9.9"),
        ("8.8.8.8", "[2001:4860::1]:443", "2001:4860::1"),
        ("nobody", "nobody", None),
        ("8.8.8.8, 127.0.0.2", "127.0.0.2", None),
        ("unknown", "9.9.9.9", "9.9.9.9"),
        ("", "9.9.9.9", None),
        ("8.8.8.8", "", None),
    ],
)
def test_if_a_proxy_s_headers_differ_both_addresses_are_known(forwarded: str, real: str, other: str | None) -> None:
    found = identify(LOCAL, {"X-Forwarded-For": forwarded, "X-Real-IP": real}, PROXY).other
    assert other == (None if found is None else str(found))


@pytest.mark.parametrize("peer", [LOCAL, ABROAD])
def test_headers_of_untrusted_peers_do_not_count(peer: tuple[str, int]) -> None:
    headers = {"X-Forwarded-For": "9.9.9.9", "X-Real-IP": "9.9.9.9", "X-Real-Port": "1"}
    assert seen(peer, headers) == seen(peer, {})
    assert seen(ABROAD, headers, PROXY) == seen(ABROAD, {})


def test_headers_of_an_untrusted_private_peer_are_noticed() -> None:
    assert identify(LOCAL, {"X-Forwarded-For": "9.9.9.9"}, ()).untrusted_proxy
    assert identify(LOCAL, {"X-Real-IP": "9.9.9.9"}, ()).untrusted_proxy
    assert not identify(ABROAD, {"X-Forwarded-For": "9.9.9.9"}, ()).untrusted_proxy
    assert not identify(LOCAL, {}, ()).untrusted_proxy
    assert not identify(LOCAL, {"X-Forwarded-For": "9.9.9.9"}, PROXY).untrusted_proxy


@given(st.text(), st.text(), st.text())
def test_no_header_raises_an_unexpected_error(forwarded: str, real: str, port: str) -> None:
    identify(LOCAL, {"X-Forwarded-For": forwarded, "X-Real-IP": real, "X-Real-Port": port}, PROXY)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket of another kind", "a socket of another kind"),
    ],
)
def test_an_address_is_shown_as_its_ipv4_address_or_ipv6_64(text: str, wanted: str) -> None:
    assert shown(text) == wanted


def test_an_ipv4_address_or_an_ipv6_64_is_one_household() -> None:
    def of(text: str) -> bytes:
        address = read(text)
        assert address is not None
        return household(address)

    assert of("2001:db8::1") == of("2001:db8::ffff:0:0:1") == bytes.fromhex("20010db800000000")
    assert of("2001:db8:0:1::1") != of("2001:db8::1")
    assert of("192.0.2.1") == of("::ffff:192.0.2.1") == bytes([192, 0, 2, 1])
    assert of("192.0.2.2") != of("192.0.2.1")


def test_text_that_is_no_address_is_read_as_none() -> None:
    assert [read(text) for text in ("", "x", "1.2.3", "1.2.3.4:5", "[::1]")] == [None] * 5


def test_an_ipv6_address_is_in_brackets_in_a_url() -> None:
    assert host_and_port("::1", 4010) == "[::1]:4010"
    assert host_and_port("127.0.0.1", 4010) == "127.0.0.1:4010"


# ── quotas ─────────────────────────────────────────────────────────────────────────────────────


def secrets() -> Callable[[], bytes]:
    numbers = itertools.count()
    return lambda: bytes([next(numbers)] * 32)


def test_an_ipv4_address_and_an_ipv6_network_have_a_quota_each() -> None:
    book = AddressRegistry(secrets())

    def quota(text: str) -> AddressQuota:
        return book.get_or_add(identify((text, 1), {}, ()).address)

    assert quota("8.8.8.8") is quota("8.8.8.8")
    assert quota("8.8.8.8") is quota("::ffff:8.8.8.8")
    assert quota("8.8.8.8") is not quota("8.8.8.9")
    assert quota("2001:4860:0:1::1") is quota("2001:4860:0:1:ffff::9")
    assert quota("2001:4860:0:1::1") is not quota("2001:4860:0:2::1")


def test_the_name_of_an_address_changes_at_midnight_and_with_the_process() -> None:
    address = identify(ABROAD, {}, ()).address
    book = AddressRegistry(secrets())
    day = 20_000 * 86400.0
    first = book.day_id(address, day)
    assert book.day_id(address, day + 86399) == first
    assert book.day_id(address, day + 86400) != first
    assert book.day_id(identify(("8.8.8.9", 1), {}, ()).address, day + 86400) != book.day_id(address, day + 86400)
    assert "8.8" not in first


LIMITS = replace(UNLIMITED, address_claims=60.0, address_claims_at_once=3)


def test_different_nameplates_are_counted_and_the_same_one_only_once() -> None:
    quota = AddressQuota()

    def claim(key: int, now: float) -> float:
        wait = quota.charge_claim(key, now, LIMITS)
        if not wait:
            quota.remember_nameplate(key)
        return wait

    assert [claim(key, 0.0) for key in (1, 2, 1, 3, 1, 2, 4, 4)] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert claim(4, 1.0) == 0


def test_claims_of_names_without_a_nameplate_are_counted_each_time() -> None:
    quota = AddressQuota()
    assert [quota.charge_claim(None, 0.0, LIMITS) for _ in range(4)] == [0, 0, 0, 1]


def test_without_a_limit_any_number_may_be_claimed() -> None:
    quota = AddressQuota()
    assert {quota.charge_claim(None, 0.0, UNLIMITED) for _ in range(1000)} == {0.0}


def test_an_address_that_guesses_must_show_more_work_and_the_score_decays() -> None:
    quota = AddressQuota()
    for _ in range(ABUSE_SCORE_TOLERATED):
        quota.charge_claim(None, 0.0, UNLIMITED)
    assert quota.bits(0.0, 20) is None
    quota.charge_claim(None, 0.0, UNLIMITED)
    assert quota.bits(0.0, 20) == 20
    quota.add_abuse_score(0.0, ABUSE_SCORE_PER_BIT)
    assert quota.bits(0.0, 20) == 21
    assert quota.bits(1000.0, 20) is None


def test_a_quota_with_nothing_to_remember_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    book = AddressRegistry(secrets())
    quotas = [book.get_or_add(identify((f"8.8.8.{n}", 1), {}, ()).address) for n in range(4)]
    quotas[0].connections = 1
    quotas[1].nameplates = 1
    quotas[2].charge_claim(None, 0.0, LIMITS)
    book.forget(0.0, LIMITS)
    assert set(book.quotas.values()) == set(quotas[:3])
    book.forget(1000.0, LIMITS)
    assert set(book.quotas.values()) == set(quotas[:2])
    monkeypatch.setattr(address_quotas, "MAX_ADDRESSES", 3)
    fresh = [book.get_or_add(identify((f"8.8.9.{n}", 1), {}, ()).address) for n in range(3)]
    assert set(book.quotas.values()) == {*quotas[:2], fresh[-1]}  # never one that has something live


def test_looking_for_idle_quotas_takes_some_at_a_time_and_finds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_quotas, "FORGET_CHECKS_PER_SECOND", 7)
    book = AddressRegistry(secrets())
    for number in range(100):
        book.get_or_add(identify((f"8.8.8.{number}", 1), {}, ()).address).connections = number % 2
    left = []
    for _ in range(40):
        book.forget(0.0, LIMITS)
        left.append(len(book.quotas))
    assert all(before - after <= 7 for before, after in itertools.pairwise(left))
    assert left[-1] == 50


def test_connections_are_limited_to_a_burst_and_a_rate() -> None:
    limits = replace(UNLIMITED, address_connects=60.0, address_connects_at_once=3)
    quota = AddressQuota()
    assert [quota.charge_connect(0.0, limits) for _ in range(5)] == [0, 0, 0, 1, 1]
    assert quota.connections == 5
    assert quota.charge_connect(1.0, limits) == 0
    assert quota.charge_connect(1.0, UNLIMITED) == 0


class Seen(AddressQuota):
    """Counts how often quotas were looked at."""

    __slots__ = ("_live",)
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self._live = 0

    @property
    def connections(self) -> int:
        Seen.looks += 1
        return self._live

    @connections.setter
    def connections(self, live: int) -> None:
        self._live = live


@pytest.mark.parametrize("live", [0, 1], ids=["nothing live", "all live"])
def test_no_call_checks_more_than_some_hundreds_of_quotas(monkeypatch: pytest.MonkeyPatch, live: int) -> None:
    monkeypatch.setattr(address_quotas, "AddressQuota", Seen)
    monkeypatch.setattr(address_quotas, "MAX_ADDRESSES", 3000)
    book = AddressRegistry(secrets())
    for number in range(address_quotas.MAX_ADDRESSES):
        book.get_or_add(ipaddress.IPv4Address(number)).connections = live
    looks = []
    for number in range(2 * address_quotas.MAX_ADDRESSES):
        before = Seen.looks
        book.get_or_add(ipaddress.IPv4Address(address_quotas.MAX_ADDRESSES + number))
        if number % 100 == 0:
            book.forget(0.0, LIMITS)
        looks.append(Seen.looks - before)
    assert max(looks) < 1000
    kept = book.quotas
    assert (
        sum(quota._live for quota in kept.values() if isinstance(quota, Seen)) == live * address_quotas.MAX_ADDRESSES
    )
    assert len(kept) <= (1 + live) * address_quotas.MAX_ADDRESSES
