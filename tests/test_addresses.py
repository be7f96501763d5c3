"""Addresses: who is at the other end, what that address has used up, and on which terms it may connect."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common import address_registry
from restante.common.address_registry import AddressRegistry
from restante.common.client_address import identify
from restante.common.net import household_text, network_of, parse_networks, site_of
from restante.common.system import system_secret
from restante.mailbox.core import quotas
from restante.mailbox.core.admission import Admission, AdmissionResult
from restante.mailbox.core.limits import UNLIMITED, Limits
from restante.mailbox.core.model import Now, Policy
from restante.mailbox.core.quotas import REFUSALS_PER_SECOND, AddressQuota
from restante.mailbox.protocol.refusals import TOO_MANY_FROM_ADDRESS
from restante.mailbox.server.running_settings import admission_terms
from restante.mailbox.settings import Serve

LOCAL = ("127.0.0.1", 5000)
ABROAD = ("8.8.8.8", 5000)
PROXY = parse_networks(["127.0.0.0/8", "fd00::/8"], "--trust-proxy")


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
        ({"X-Real-IP": " 8.8.8.8 ", "X-Real-Port": " 99 "}, ("8.8.8.8", 99, True)),
        ({"X-Forwarded-For": "1.2.3.4, 8.8.8.8"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "8.8.8.8, 127.0.0.2"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "127.0.0.3, 127.0.0.2"}, ("127.0.0.3", 0, True)),
        ({"X-Forwarded-For": "10.0.0.7"}, ("10.0.0.7", 0, True)),
        ({"X-Forwarded-For": "8.8.8.8:443"}, ("8.8.8.8", 0, True)),
        ({"X-Forwarded-For": "[2001:4860::1]:443"}, ("2001:4860::1", 0, True)),
        ({"X-Forwarded-For": "unknown"}, ("127.0.0.1", 5000, True)),
        ({"X-Forwarded-For": ""}, ("127.0.0.1", 5000, False)),
        ({"X-Real-IP": "nobody"}, ("127.0.0.1", 5000, True)),
        ({"X-Real-IP": "6.6.6.6,8.8.8.8", "X-Real-Port": "6,9"}, ("8.8.8.8", 9, True)),
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
        ("1.2.3.4, 8.8.8.8", "8.8.8.8", None),
        ("8.8.8.8", "nobody", "127.0.0.1"),
        ("8.8.8.8", "9.9.9.9:443", "9.9.9.9"),
        ("nobody", "nobody", None),
        ("8.8.8.8, 127.0.0.2", "127.0.0.2", None),
        ("", "9.9.9.9", None),
        ("8.8.8.8", "", None),
    ],
)
def test_if_a_proxy_s_headers_differ_both_addresses_are_known(forwarded: str, real: str, other: str | None) -> None:
    address = identify(LOCAL, {"X-Forwarded-For": forwarded, "X-Real-IP": real}, PROXY).other_address
    assert other == (None if address is None else str(address))


def test_headers_of_untrusted_peers_do_not_count_and_of_a_private_one_are_noticed() -> None:
    headers = {"X-Forwarded-For": "9.9.9.9", "X-Real-IP": "9.9.9.9", "X-Real-Port": "1"}
    for peer, trusted in ((LOCAL, ()), (ABROAD, ()), (ABROAD, PROXY)):
        assert seen(peer, headers, trusted) == seen(peer, {})
        for name in headers.keys() - {"X-Real-Port"}:
            assert identify(peer, {name: "9.9.9.9"}, trusted).untrusted_proxy == (peer == LOCAL)
    assert not identify(LOCAL, {}, ()).untrusted_proxy
    assert not identify(LOCAL, headers, PROXY).untrusted_proxy


@given(st.text(), st.text(), st.text())
def test_no_header_raises_an_unexpected_error(forwarded: str, real: str, port: str) -> None:
    identify(LOCAL, {"X-Forwarded-For": forwarded, "X-Real-IP": real, "X-Real-Port": port}, PROXY)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket of another kind", "a socket of another kind"),
    ],
)
def test_an_address_is_shown_as_its_ipv4_address_or_ipv6_64(text: str, wanted: str) -> None:
    assert household_text(text) == wanted


@pytest.mark.parametrize(
    ("text", "its_site", "its_network"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.0/24"),
        ("2001:db8:1:2::/64", "2001:db8:1::/56", "2001:db8:1::/48"),
        ("2001:db8:1:1ff::/64", "2001:db8:1:100::/56", "2001:db8:1::/48"),
        ("2001:db8:1:100::/56", "2001:db8:1:100::/56", "2001:db8:1::/48"),
        ("", "", ""),
        ("a socket of another kind", "a socket of another kind", "a socket of another kind"),
    ],
)
def test_the_site_and_the_network_of_a_household(text: str, its_site: str, its_network: str) -> None:
    assert (site_of(text), network_of(text)) == (its_site, its_network)


def test_an_ipv4_address_and_an_ipv6_network_have_a_quota_each() -> None:
    book = AddressRegistry(AddressQuota, system_secret)

    def quota(text: str) -> AddressQuota:
        return book.get_or_add(identify((text, 1), {}, ()).address)

    assert quota("8.8.8.8") is quota("8.8.8.8")
    assert quota("8.8.8.8") is quota("::ffff:8.8.8.8")
    assert quota("8.8.8.8") is not quota("8.8.8.9")
    assert quota("2001:4860:0:1::1") is quota("2001:4860:0:1:ffff::9")
    assert quota("2001:4860:0:1::1") is not quota("2001:4860:0:2::1")


def test_the_name_of_an_address_changes_at_midnight_and_with_the_process() -> None:
    address = identify(ABROAD, {}, ()).address
    book = AddressRegistry(AddressQuota, system_secret)
    day = 20_000 * 86400.0
    first = book.day_id(address, day)
    assert book.day_id(address, day + 86399) == first
    assert book.day_id(address, day + 86400) != first
    assert book.day_id(identify(("8.8.8.9", 1), {}, ()).address, day + 86400) != book.day_id(address, day + 86400)
    assert "8.8" not in first


LIMITS = replace(UNLIMITED, address_claims=60.0)


def test_a_quota_with_nothing_to_remember_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    book = AddressRegistry(AddressQuota, system_secret)
    address_quotas = [book.get_or_add(identify((f"8.8.8.{n}", 1), {}, ()).address) for n in range(4)]
    address_quotas[0].connections = 1
    address_quotas[1].nameplates = 1
    address_quotas[2].charge_claim(None, 0.0, LIMITS)
    book.forget(lambda quota: quota.idle(0.0, LIMITS))
    assert set(book.quotas.values()) == set(address_quotas[:3])
    book.forget(lambda quota: quota.idle(1000.0, LIMITS))
    assert set(book.quotas.values()) == set(address_quotas[:2])
    monkeypatch.setattr(address_registry, "MAX_ADDRESSES", 3)
    fresh = [book.get_or_add(identify((f"8.8.9.{n}", 1), {}, ()).address) for n in range(3)]
    assert set(book.quotas.values()) == {*address_quotas[:2], fresh[-1]}  # never one that has something live


@pytest.mark.parametrize("live", [0, 1], ids=["nothing live", "all live"])
def test_no_call_checks_more_than_some_hundreds_of_quotas(monkeypatch: pytest.MonkeyPatch, live: int) -> None:
    monkeypatch.setattr(address_registry, "MAX_ADDRESSES", 3000)
    book = AddressRegistry(AddressQuota, system_secret)
    address_quotas, taken_out, checks = book.quotas, [0], []

    def popitem(last: bool = True) -> tuple[bytes, AddressQuota]:
        taken_out[0] += 1
        return OrderedDict.popitem(address_quotas, last)

    monkeypatch.setattr(address_quotas, "popitem", popitem)
    for number in range(9000):
        before = taken_out[0]
        quota = book.get_or_add(ipaddress.IPv4Address(number))
        quota.connections = live if number < 3000 else 0
        if number % 100 == 0:
            book.forget(lambda quota: quota.idle(0.0, LIMITS))
        checks.append(taken_out[0] - before)
    assert 0 < max(checks) < 1000
    for _ in range(len(address_quotas) // address_registry.FORGET_CHECKS_PER_SECOND + 1):
        book.forget(lambda quota: quota.idle(0.0, LIMITS))
    assert len(address_quotas) == live * 3000, "all that are idle are found in the end"
    assert sum(quota.connections for quota in address_quotas.values()) == live * 3000


def admission(*, limits: Limits = UNLIMITED, **terms: Any) -> Admission:
    return Admission(replace(admission_terms(Serve()), **terms), system_secret, Policy(limits=limits))


def admit(
    at: Admission, address: str = "8.8.8.8", headers: Mapping[str, str] | None = None, *, now: float = 0.0
) -> AdmissionResult:
    return at.admit((address, 1), headers or {}, Now(1e9 + now, now), 0)


def bits(result: AdmissionResult) -> int:
    return 0 if result.demand is None else result.demand.bits


def test_each_connection_has_a_resource_of_its_own() -> None:
    at = admission(mode="hashcash", bits=12)
    demands = [demand for demand in (admit(at).demand for _ in range(100)) if demand]
    assert [demand.bits for demand in demands] == [12] * 100
    assert len({demand.resource for demand in demands if ":" not in demand.resource}) == 100


def test_an_address_at_its_connection_limit_may_connect_again_when_a_connection_ends() -> None:
    at = admission(limits=replace(UNLIMITED, address_connections=2))
    first = admit(at)
    assert admit(at).verdict is None
    third = admit(at)
    assert third.verdict is not None
    assert (third.verdict.code, third.verdict.text) == (1008, TOO_MANY_FROM_ADDRESS.message)
    assert admit(at, "9.9.9.9").verdict is None
    assert admit(at, "127.0.0.1").verdict is None
    assert third.address_quotas == (), "who is refused does not count"
    at.release(first.address_quotas)
    assert admit(at).verdict is None


def test_an_address_that_connects_too_often_is_told_when_to_try_again() -> None:
    at = admission(limits=replace(UNLIMITED, address_connects=60.0, address_connects_at_once=1))
    assert admit(at).verdict is None
    refused = admit(at).verdict
    assert refused is not None
    assert (refused.text, refused.hint) == (TOO_MANY_FROM_ADDRESS.message, "they come too fast; try again in 1 s")
    assert admit(at, now=1.0).verdict is None


@pytest.mark.parametrize(("real", "invented"), [("X-Real-IP", "X-Forwarded-For"), ("X-Forwarded-For", "X-Real-IP")])
def test_an_invented_proxy_header_does_not_bypass_a_limit(real: str, invented: str) -> None:
    at = admission(trusted=PROXY, limits=replace(UNLIMITED, address_connections=2))
    came = [admit(at, "127.0.0.1", {real: "8.8.8.8", invented: f"203.0.113.{number}"}) for number in range(5)]
    assert [result.verdict is None for result in came] == [True, True, False, False, False]
    at.release(came[0].address_quotas)
    assert admit(at, "127.0.0.1", {real: "8.8.8.8", invented: "203.0.113.9"}).verdict is None
    assert len(admit(at, "127.0.0.1", {real: "9.9.9.9", invented: "9.9.9.9"}).address_quotas) == 1


def test_an_adaptive_server_demands_work_of_abusive_addresses_first_and_reports_each_change() -> None:
    at = admission(mode="adaptive", bits=20)
    came = admit(at)
    assert came.offer == {"none": {}}
    [quota] = came.address_quotas
    for _ in range(quotas.ABUSE_SCORE_TOLERATED):
        quota.charge_claim(None, 0.0, UNLIMITED)
    assert bits(admit(at)) == 20
    assert admit(at, "9.9.9.9").demand is None
    assert at.changed_bits == {came.address_id: 20}
    quota.add_abuse_score(0.0, quotas.ABUSE_SCORE_PER_BIT)
    assert bits(admit(at)) == 21
    assert at.changed_bits == {came.address_id: 21}
    assert admit(at, now=10_000).demand is None
    assert list(at.changed_bits.values()) == [0]
    assert (at.changes, at.demanded) == (3, 2)


def test_under_attack_an_adaptive_server_demands_work_of_all_clients() -> None:
    at = admission(mode="adaptive", bits=20, load=100.0)
    for _ in range(30):
        for _ in range(1000):
            admit(at, "127.0.0.1")
        at.tick()
    for address in ("8.8.8.8", "127.0.0.1"):
        assert bits(admit(at, address)) > 20
    assert at.changes == 0


def test_an_address_has_a_limit_of_connections_without_a_request_which_does_not_count_open_ones() -> None:
    at = admission(limits=replace(UNLIMITED, address_connections=2))
    came = [admit(at) for _ in range(2)]
    assert [result.verdict for result in came] == [None, None]
    first, second = (at.begin_request(("8.8.8.8", port), 1e9) for port in (1, 2))
    assert (first.refused, second.refused) == (False, False)
    [quota] = came[0].address_quotas
    assert (quota.connections, quota.pending_requests) == (2, 2)
    third = at.begin_request(("8.8.8.8", 3), 1e9)
    assert (third.refused, third.address_quotas) == (True, ()), "who is refused does not count"
    assert not at.begin_request(("9.9.9.9", 1), 1e9).refused
    at.addresses.end_request(first)
    assert not at.begin_request(("8.8.8.8", 4), 1e9).refused
    for result in came:
        at.release(result.address_quotas)
    assert (quota.connections, quota.live) == (0, True), "requests are awaited"


def test_an_address_has_twice_as_many_handshakes_as_it_may_have_connections() -> None:
    at = admission(limits=replace(UNLIMITED, address_connects=60.0, address_connects_at_once=3))
    pending, other = at.begin_request(("8.8.8.8", 1), 1e9), at.begin_request(("9.9.9.9", 1), 1e9)
    assert [at.charge_handshake(pending, 0.0) for _ in range(7)] == [True] * 6 + [False]
    assert at.charge_handshake(other, 0.0)
    assert [at.charge_handshake(pending, 0.5) for _ in range(2)] == [True, False]
    assert admit(at, "8.8.8.8").verdict is None, "connections are counted apart"


def test_connections_of_possible_proxies_are_not_counted_before_their_request() -> None:
    at = admission(trusted=parse_networks(["8.8.8.0/24"], ""), limits=replace(UNLIMITED, address_connections=1))
    for peer in ("127.0.0.1", "10.0.0.1", "8.8.8.8"):  # the last may be anybody's proxy
        assert not any(at.begin_request((peer, port), 1e9).refused for port in range(10))


def test_of_many_refused_connections_some_may_clean_up_and_the_others_are_closed_at_once() -> None:
    """Otherwise an address could keep any number open, each for a second, and send what it likes on them."""
    at = admission(limits=replace(UNLIMITED, address_connections=1))
    admit(at)
    refused = [admit(at) for _ in range(REFUSALS_PER_SECOND + 5)]
    assert [result.at_once for result in refused] == [False] * REFUSALS_PER_SECOND + [True] * 5
    assert not admit(at, "8.8.4.4").at_once, "another address"
    assert not admit(at, now=1.0).at_once, "a second later"
