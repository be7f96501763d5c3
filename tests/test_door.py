"""The door: who comes in, and on which terms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from restante.mailbox.core.addresses import PATIENCE, STRAIN_STEP, networks
from restante.mailbox.core.admission import FULL, TOO_MANY, Door, Entrance, Terms
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.core.model import Now

ABROAD = "8.8.8.8"


def door(**terms: Any) -> Door:
    numbers = itertools.count()
    return Door(Terms(**terms), lambda: next(numbers).to_bytes(32, "little"))


def enter(
    at: Door, address: str = "8.8.8.8", *, now: float = 0.0, there: int = 0, headers: Mapping[str, str] | None = None
) -> Entrance:
    return at.enter((address, 1), headers or {}, Now(1e9 + now, now), there)


def test_without_permission_nothing_is_offered_and_nothing_demanded() -> None:
    came = enter(door())
    assert (came.offer, came.demand, came.verdict) == (None, None, None)


def test_each_connection_has_a_resource_of_its_own() -> None:
    at = door(mode="hashcash", bits=12)
    demands = [enter(at).demand for _ in range(100)]
    assert all(demand is not None and demand.bits == 12 for demand in demands)
    assert len({demand.resource for demand in demands if demand}) == 100
    assert all(":" not in demand.resource for demand in demands if demand)


def test_so_many_connections_may_come_from_an_address_and_when_one_leaves_another_may() -> None:
    at = door()
    at.limits = replace(UNLIMITED, address_connections=2)
    first = enter(at)
    assert enter(at).verdict is None
    third = enter(at)
    assert third.verdict is not None
    assert (third.verdict.code, third.verdict.words) == (1008, TOO_MANY)
    assert enter(at, "9.9.9.9").verdict is None
    assert enter(at, "127.0.0.1").verdict is None
    assert third.accounts == (), "who is refused does not count"
    at.leave(first.accounts)
    assert enter(at).verdict is None


def test_who_comes_too_often_is_told_when_to_try_again() -> None:
    at = door()
    at.limits = replace(UNLIMITED, address_connects=60.0, address_connects_at_once=1)
    assert enter(at).verdict is None
    refused = enter(at).verdict
    assert refused is not None
    assert (refused.words, refused.hint) == (TOO_MANY, "they come too fast; try again in 1 s")
    assert enter(at, now=1.0).verdict is None


@pytest.mark.parametrize("invented", ["X-Forwarded-For", "X-Real-IP"])
def test_where_a_proxy_s_headers_differ_no_invention_gets_around_a_limit(invented: str) -> None:
    at = door(trusted=networks(["127.0.0.0/8"]))
    at.limits = replace(UNLIMITED, address_connections=2)
    real = {"X-Forwarded-For": "X-Real-IP", "X-Real-IP": "X-Forwarded-For"}[invented]
    came = [enter(at, "127.0.0.1", headers={real: "8.8.8.8", invented: f"203.0.113.{number}"}) for number in range(5)]
    assert [each.verdict is None for each in came] == [True, True, False, False, False]
    at.leave(came[0].accounts)
    assert enter(at, "127.0.0.1", headers={real: "8.8.8.8", invented: "203.0.113.9"}).verdict is None
    assert len(enter(at, "127.0.0.1", headers={real: "9.9.9.9", invented: "9.9.9.9"}).accounts) == 1


def test_so_many_connections_may_come_from_anywhere() -> None:
    at = door()
    at.limits = replace(UNLIMITED, connections=5)
    assert enter(at, there=4).verdict is None
    full = enter(at, there=5).verdict
    assert full is not None
    assert (full.code, full.words) == (1013, FULL)


def test_an_adaptive_server_demands_first_of_who_makes_trouble_and_says_so_each_time_that_changes() -> None:
    at = door(mode="adaptive", bits=20)
    came = enter(at)
    assert came.offer == {"none": {}}
    [account] = came.accounts
    account.strain(0.0, PATIENCE)
    demand = enter(at).demand
    assert demand is not None
    assert demand.bits == 20
    assert enter(at, "9.9.9.9").demand is None
    assert at.news == {came.address_id: 20}
    account.strain(0.0, STRAIN_STEP)
    more = enter(at).demand
    assert more is not None
    assert more.bits == 21
    assert at.news == {came.address_id: 21}
    assert enter(at, now=10_000).demand is None
    assert list(at.news.values()) == [0]
    assert (at.changes, at.demanded) == (3, 2)


def test_under_attack_it_demands_of_everybody_also_of_whom_it_cannot_tell_apart() -> None:
    at = door(mode="adaptive", bits=20, load=100.0)
    for _ in range(30):
        for _ in range(1000):
            enter(at, "127.0.0.1")
        at.tick()
    for address in ("8.8.8.8", "127.0.0.1"):
        demand = enter(at, address).demand
        assert demand is not None
        assert demand.bits > 20
    assert at.changes == 0


def test_a_hashcash_server_has_no_tide() -> None:
    at = door(mode="hashcash", bits=20, load=1.0)
    for _ in range(100):
        for _ in range(100):
            enter(at)
        assert not at.tick()
    demand = enter(at).demand
    assert demand is not None
    assert demand.bits == 20


def test_a_trusted_proxy_s_clients_are_counted_one_by_one() -> None:
    at = door(trusted=networks(["127.0.0.0/8"]))
    at.limits = replace(UNLIMITED, address_connections=1)
    headers = {"X-Forwarded-For": "8.8.8.8"}
    assert at.enter(("127.0.0.1", 1), headers, Now(0.0, 0.0), 0).verdict is None
    assert at.enter(("127.0.0.1", 1), headers, Now(0.0, 0.0), 0).verdict is not None
    assert at.enter(("127.0.0.1", 1), {"X-Forwarded-For": "8.8.8.9"}, Now(0.0, 0.0), 0).verdict is None


# ── before there is a request ────────────────────────────────────────────────────────────────────


def test_so_many_of_an_address_may_have_asked_for_nothing_yet() -> None:
    at = door()
    at.limits = replace(UNLIMITED, address_connections=2)
    first, second = (at.knock((ABROAD, port), 1e9) for port in (1, 2))
    assert not first.refused
    assert not second.refused
    third = at.knock((ABROAD, 3), 1e9)
    assert (third.refused, third.accounts) == (enter(at).address_id, ()), "who is refused does not count"
    assert not at.knock(("9.9.9.9", 1), 1e9).refused
    at.answer(first)
    assert not at.knock((ABROAD, 4), 1e9).refused


def test_who_asks_for_nothing_takes_no_place_of_those_who_are_in() -> None:
    at = door()
    at.limits = replace(UNLIMITED, address_connections=1)
    assert enter(at, ABROAD).verdict is None
    knock = at.knock((ABROAD, 1), 1e9)
    assert not knock.refused
    [account] = knock.accounts
    assert account.connections == 1
    assert account.live
    at.answer(knock)
    assert account.connections == 1


def test_nobody_is_counted_before_there_is_a_request_who_cannot_be_told_apart() -> None:
    at = door(trusted=networks(["8.8.8.0/24"]))
    at.limits = replace(UNLIMITED, address_connections=1)
    for peer in ("127.0.0.1", "10.0.0.1", "8.8.8.8"):  # the last may be anybody's proxy
        assert not any(at.knock((peer, port), 1e9).refused for port in range(10))
