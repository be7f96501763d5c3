"""Admission: who may connect, and on which terms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from restante.common.net import networks
from restante.mailbox.core.address_quotas import ABUSE_SCORE_PER_BIT, ABUSE_SCORE_TOLERATED, REFUSALS_PER_SECOND
from restante.mailbox.core.admission import (
    TOO_MANY_CONNECTIONS,
    TOO_MANY_FROM_ADDRESS,
    Admission,
    AdmissionResult,
    AdmissionTerms,
)
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.core.model import Now

ABROAD = "8.8.8.8"


def admission(**terms: Any) -> Admission:
    numbers = itertools.count()
    return Admission(AdmissionTerms(**terms), lambda: next(numbers).to_bytes(32, "little"))


def admit(
    at: Admission,
    address: str = "8.8.8.8",
    *,
    now: float = 0.0,
    there: int = 0,
    headers: Mapping[str, str] | None = None,
) -> AdmissionResult:
    return at.admit((address, 1), headers or {}, Now(1e9 + now, now), there)


def bits(result: AdmissionResult) -> int:
    """Return how much work is demanded; 0: none."""
    return 0 if result.demand is None else result.demand.bits


def refusal(result: AdmissionResult) -> tuple[int, str] | None:
    return None if result.verdict is None else (result.verdict.code, result.verdict.words)


def test_without_permission_nothing_is_offered_and_nothing_demanded() -> None:
    came = admit(admission())
    assert (came.offer, came.demand, came.verdict) == (None, None, None)


def test_each_connection_has_a_resource_of_its_own() -> None:
    at = admission(mode="hashcash", bits=12)
    demands = [admit(at).demand for _ in range(100)]
    assert all(demand is not None and demand.bits == 12 for demand in demands)
    assert len({demand.resource for demand in demands if demand}) == 100
    assert all(":" not in demand.resource for demand in demands if demand)


def test_an_address_at_its_connection_limit_may_connect_again_when_a_connection_ends() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, address_connections=2)
    first = admit(at)
    assert admit(at).verdict is None
    third = admit(at)
    assert refusal(third) == (1008, TOO_MANY_FROM_ADDRESS)
    assert admit(at, "9.9.9.9").verdict is None
    assert admit(at, "127.0.0.1").verdict is None
    assert third.address_quotas == (), "who is refused does not count"
    at.release(first.address_quotas)
    assert admit(at).verdict is None


def test_an_address_that_connects_too_often_is_told_when_to_try_again() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, address_connects=60.0, address_connects_at_once=1)
    assert admit(at).verdict is None
    refused = admit(at).verdict
    assert refused is not None
    assert (refused.words, refused.hint) == (TOO_MANY_FROM_ADDRESS, "they come too fast; try again in 1 s")
    assert admit(at, now=1.0).verdict is None


@pytest.mark.parametrize("invented", ["X-Forwarded-For", "X-Real-IP"])
def test_an_invented_proxy_header_does_not_bypass_a_limit(invented: str) -> None:
    at = admission(trusted=networks(["127.0.0.0/8"], "--trust-proxy"))
    at.limits = replace(UNLIMITED, address_connections=2)
    real = {"X-Forwarded-For": "X-Real-IP", "X-Real-IP": "X-Forwarded-For"}[invented]
    came = [admit(at, "127.0.0.1", headers={real: "8.8.8.8", invented: f"203.0.113.{number}"}) for number in range(5)]
    assert [each.verdict is None for each in came] == [True, True, False, False, False]
    at.release(came[0].address_quotas)
    assert admit(at, "127.0.0.1", headers={real: "8.8.8.8", invented: "203.0.113.9"}).verdict is None
    assert len(admit(at, "127.0.0.1", headers={real: "9.9.9.9", invented: "9.9.9.9"}).address_quotas) == 1


def test_all_addresses_together_have_a_connection_limit() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, connections=5)
    assert admit(at, there=4).verdict is None
    assert refusal(admit(at, there=5)) == (1013, TOO_MANY_CONNECTIONS)


def test_an_adaptive_server_demands_work_of_abusive_addresses_first_and_reports_each_change() -> None:
    at = admission(mode="adaptive", bits=20)
    came = admit(at)
    assert came.offer == {"none": {}}
    [quota] = came.address_quotas
    quota.add_abuse_score(0.0, ABUSE_SCORE_TOLERATED)
    assert bits(admit(at)) == 20
    assert admit(at, "9.9.9.9").demand is None
    assert at.changed_bits == {came.address_id: 20}
    quota.add_abuse_score(0.0, ABUSE_SCORE_PER_BIT)
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


def test_a_hashcash_server_has_no_load_level() -> None:
    at = admission(mode="hashcash", bits=20, load=1.0)
    for _ in range(100):
        for _ in range(100):
            admit(at)
        assert not at.tick()
    assert bits(admit(at)) == 20


# ── before there is a request ────────────────────────────────────────────────────────────────────


def test_an_address_has_a_limit_of_connections_without_a_request() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, address_connections=2)
    first, second = (at.begin_request((ABROAD, port), 1e9) for port in (1, 2))
    assert not first.refused
    assert not second.refused
    third = at.begin_request((ABROAD, 3), 1e9)
    assert (third.refused, third.address_quotas, third.address_id) == (True, (), admit(at).address_id), (
        "who is refused does not count"
    )
    assert not at.begin_request(("9.9.9.9", 1), 1e9).refused
    at.end_request(first)
    assert not at.begin_request((ABROAD, 4), 1e9).refused


def test_connections_without_a_request_do_not_count_against_open_ones() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, address_connections=1)
    assert admit(at, ABROAD).verdict is None
    pending = at.begin_request((ABROAD, 1), 1e9)
    assert not pending.refused
    [quota] = pending.address_quotas
    assert quota.connections == 1
    assert quota.live
    at.end_request(pending)
    assert quota.connections == 1


def test_an_address_has_twice_as_many_handshakes_as_it_may_have_connections() -> None:
    at = admission()
    at.limits = replace(UNLIMITED, address_connects=60.0, address_connects_at_once=3)
    pending, other = at.begin_request((ABROAD, 1), 1e9), at.begin_request(("9.9.9.9", 1), 1e9)
    assert [at.charge_handshake(pending, 0.0) for _ in range(7)] == [True] * 6 + [False]
    assert at.charge_handshake(other, 0.0)
    assert [at.charge_handshake(pending, 0.5) for _ in range(2)] == [True, False]
    assert admit(at, ABROAD).verdict is None, "connections are counted apart"


def test_connections_of_possible_proxies_are_not_counted_before_their_request() -> None:
    at = admission(trusted=networks(["8.8.8.0/24"], "--trust-proxy"))
    at.limits = replace(UNLIMITED, address_connections=1)
    for peer in ("127.0.0.1", "10.0.0.1", "8.8.8.8"):  # the last may be anybody's proxy
        assert not any(at.begin_request((peer, port), 1e9).refused for port in range(10))


def test_of_many_refused_connections_some_may_clean_up_and_the_others_are_closed_at_once() -> None:
    """Otherwise an address could keep any number open, each for a second, and send what it likes on them."""
    at = admission()
    at.limits = replace(UNLIMITED, address_connections=1)
    admit(at)
    refused = [admit(at) for _ in range(REFUSALS_PER_SECOND + 5)]
    assert [each.at_once for each in refused] == [False] * REFUSALS_PER_SECOND + [True] * 5
    assert not admit(at, "8.8.4.4").at_once, "another address"
    assert not admit(at, now=1.0).at_once, "a second later"
