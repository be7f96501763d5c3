"""Attackers from many addresses take the places of a node: newcomers still come in, and honest peers stay."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.descriptors import raise_descriptors
from restante.waku.connection.quotas import SITE_SHARE, AddressQuota, AddressQuotas
from restante.waku.devp2p import session
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.keys import Key, node_id
from restante.waku.limits import Limits
from restante.waku.node import admission
from restante.waku.node.admission import SILENT_AFTER, SILENT_WEIGHT, ConnectionCount, PeerLimits
from restante.waku.node.history_requests import HistoryTerms
from restante.waku.protocol import packets
from support.waku.inside import Inside, inside
from support.waku.letters import letter
from support.waku.raw_peer import NOTHING, RawPeer, fetch_page, plain

NEVER: Final = float("-inf")

SIZES: Final = [
    pytest.param(PeerLimits(max_peers=60, max_peers_per_address=20), id="small"),
    pytest.param(PeerLimits(max_peers=1000, max_peers_per_address=50), id="default", marks=pytest.mark.thorough),
]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes wait for ever for a Hello and for a Pong: no place becomes free with time."""
    limits = partial(session.SessionLimits, hello=1e9, ping=1e9, silence=1e9)
    monkeypatch.setattr(session, "SessionLimits", limits)


async def posts(here: Inside, number: int) -> None:
    newcomer = await here.greet(NOTHING, source=f"127.1.{number}.1")
    assert not (await newcomer.post(letter(number))).refusals


@pytest.mark.parametrize("peer_limits", SIZES)
async def test_half_handshakes_lock_nobody_out(tmp_path: Path, peer_limits: PeerLimits) -> None:
    raise_descriptors()
    async with inside(tmp_path, peer_limits=peer_limits) as here:
        peer = await here.greet(NOTHING, source="127.1.200.1")
        slow = await RawPeer.knock(here.enode.port, here.enode.public, source="127.1.201.1")
        writers = []
        for number in range(30):
            for _ in range(peer_limits.max_peers_per_address):
                source = (f"127.2.{number}.1", 0)
                _, writer = await asyncio.open_connection("127.0.0.1", here.enode.port, local_addr=source)
                writers.append(writer)
        for number in range(1, 4):
            await posts(here, number)
        assert here.node.counts[ConnectionCount.HALF_OPEN] > 0
        await slow.shake_hands()
        await here.until("its Hello", lambda: node_id(slow.key.public) in here.node.peers)
        await peer.fence()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("peer_limits", SIZES)
async def test_idle_peers_lock_nobody_out(tmp_path: Path, peer_limits: PeerLimits) -> None:
    raise_descriptors()
    addresses = peer_limits.max_peers // peer_limits.max_peers_per_address
    async with inside(tmp_path, peer_limits=peer_limits) as here:
        honest = await here.greet(NOTHING, source="127.1.200.1")
        idle = [
            await here.greet(NOTHING, source=f"127.2.{number % addresses}.1")
            for number in range(peer_limits.max_peers - 1)
        ]
        for number in range(1, 4):
            await posts(here, number)
        assert len(here.node.peers) == peer_limits.max_peers
        assert here.node.counts[ConnectionCount.EVICTED] == 3
        assert await idle[0].ended() is Reason.TOO_MANY_PEERS
        await honest.fence()


async def test_a_peer_that_sends_envelopes_or_requests_history_is_not_silent(tmp_path: Path) -> None:
    async with inside(tmp_path) as here:
        posting, requesting, failing = [await here.greet(NOTHING) for _ in range(3)]
        for connection in here.node.connections:
            connection.active_at = NEVER
        await posting.post(letter(1))
        await fetch_page(requesting)
        for envelope in (letter(2, age=1000), letter(3, age=60), letter(1)):  # very old, just expired, a copy
            await failing.post(envelope)
        failing.say(packets.MESSAGES, b"\x80")
        failing.say(packets.REQUEST, plain(lower=2, upper=1))
        await failing.fence()
        active = {one.node_id for one in here.node.connections if one.active_at != NEVER}
        assert active == {node_id(peer.key.public) for peer in (posting, requesting)}


async def test_nodes_that_the_operator_has_named_come_in_and_stay(tmp_path: Path) -> None:
    allowed, static = Key(b"\x11" * 32), Key(b"\x12" * 32)
    terms = HistoryTerms(allow=frozenset([node_id(allowed.public)]))
    async with inside(tmp_path, peer_limits=PeerLimits(max_peers=4, max_peers_per_address=50), history=terms) as here:
        here.node.admission.protected.add(node_id(static.public))
        first, *others = await here.greet(key=allowed), *[await here.greet() for _ in range(3)]
        assert await (await here.enter()).ended() is Reason.TOO_MANY_PEERS
        second = await here.greet(key=static)
        for connection in here.node.connections:
            connection.active_at = NEVER
        newcomers = [await here.greet(source=f"127.1.{number}.1") for number in range(2)]
        assert await (await here.enter(source="127.1.2.1")).ended() is Reason.TOO_MANY_PEERS
        assert [await peer.ended() for peer in others[:2]] == [Reason.TOO_MANY_PEERS] * 2
        for peer in (first, second, others[2], *newcomers):
            await peer.fence()


SILENT: Final = SILENT_AFTER + 1


class Occupant(msgspec.Struct, eq=False):
    quota: AddressQuota
    active_at: float


class Crowd:
    def __init__(self) -> None:
        self.peers: list[Any] = []
        self.now = 1e6
        self._quotas: dict[str, AddressQuota] = {}

    def _occupant(self, address: str, silent: float = 0.0) -> Any:
        quota = self._quotas.setdefault(address, AddressQuota(address))
        return Occupant(quota, self.now - silent)

    def add(self, address: str, count: int, *, silent: float = 0.0) -> list[Occupant]:
        peers = [self._occupant(address, silent) for _ in range(count)]
        self.peers += peers
        return peers

    def comes(self, address: str) -> Any:
        newcomer = self._occupant(address)
        yielding = admission.choose_evicted(self.peers, newcomer, self.now)
        if yielding is not None:
            self.peers.remove(yielding)
            self.peers.append(newcomer)
        return yielding

    def counts(self) -> Counter[str]:
        return Counter(peer.quota.network for peer in self.peers)


def test_the_longest_silent_peer_of_the_most_crowded_address_of_the_most_crowded_network_yields() -> None:
    crowd = Crowd()
    crowd.add("192.0.2.1", 5, silent=3 * SILENT)
    crowd.add("198.51.100.1", 2, silent=3 * SILENT)
    crowded = crowd.add("198.51.100.2", 4, silent=SILENT)
    crowded[2].active_at -= 1
    assert crowd.comes("203.0.113.1") is crowded[2]


def test_active_peers_behind_one_address_stay_while_there_are_crowds_of_silent_ones() -> None:
    crowd = Crowd()
    office = crowd.add("192.0.2.1", 40)
    for number in range(20):
        crowd.add(f"198.51.{number}.1", 48, silent=SILENT)
    for number in range(500):
        assert crowd.comes(f"10.{number // 250}.{number % 250}.1") not in (None, *office)


def test_a_newcomer_of_a_crowded_network_takes_a_place_of_a_crowded_address_there() -> None:
    crowd = Crowd()
    crowd.add("192.0.2.1", 50, silent=SILENT)
    assert crowd.comes("192.0.2.1") is None
    for number in range(2, 50):
        yielding = crowd.comes(f"192.0.2.{number}")
        assert yielding is not None
        assert yielding.quota is crowd.peers[0].quota


def test_two_active_peers_of_a_network_keep_their_places() -> None:
    crowd = Crowd()
    crowd.add("192.0.2.1", SILENT_WEIGHT)
    assert crowd.comes("198.51.100.1") is None
    crowd.add("192.0.2.1", 1)
    assert crowd.comes("198.51.100.1") is not None


def test_whoever_has_yielded_does_not_take_the_place_back() -> None:
    crowd = Crowd()
    crowd.add("192.0.2.1", 3, silent=SILENT)
    crowd.add("198.51.100.1", 1, silent=SILENT)
    assert crowd.comes("203.0.113.1") is not None
    for _ in range(3):
        assert crowd.comes("192.0.2.1") is None
        crowd.now += SILENT  # now all are silent


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=60),
    st.lists(st.integers(0, 12), max_size=60),
)
def test_no_network_gains_places_from_a_less_crowded_one(peers: list[tuple[int, bool]], newcomers: list[int]) -> None:
    crowd = Crowd()
    for number, silent in peers:
        crowd.add(f"192.0.{number}.{number}", 1, silent=silent * SILENT)
    for number in newcomers:
        before = crowd.counts()
        yielding = crowd.comes(f"192.0.{number}.200")
        if yielding is not None:
            lost, gained = yielding.quota.network, f"192.0.{number}.0/24"
            assert before[lost] > 1
            assert lost == gained or before[lost] * SILENT_WEIGHT > before[gained] + SILENT_WEIGHT


@pytest.mark.parametrize("silent", [0.0, SILENT])
def test_an_ipv6_48_is_one_network_and_its_56s_share_it(silent: float) -> None:
    """A tunnel broker gives a /48 to anybody."""
    crowd = Crowd()
    for number in range(0, 1 << 16, 1 << 8):
        crowd.add(f"2001:db8:0:{number:x}::/64", 4, silent=silent)
    for number in range(100):
        assert crowd.comes(f"2001:db8:{number + 1:x}::/64") is not None
    of_48 = crowd.counts()["2001:db8::/48"]
    for number in range(100):
        crowd.comes(f"2001:db8:0:{number:x}::/64")
    assert crowd.counts()["2001:db8::/48"] == of_48 == 4 * 256 - 100


def test_the_addresses_of_an_ipv6_56_share_a_quota_beside_their_own() -> None:
    limits = Limits(address_connects=60.0, address_connects_at_once=10, address_envelopes_at_once=100)
    quotas, now = AddressQuotas(), 1e6
    of_site = [quotas.obtain(f"2001:db8:0:{number:x}::/64") for number in range(256)]
    elsewhere = quotas.obtain("2001:db8:0:100::/64")
    for quota in of_site[: SITE_SHARE + 1]:
        assert quota.has_room(10)
        quota.count_connections(10)
        assert not quota.has_room(10)
        if quota is of_site[SITE_SHARE - 1]:
            break
    assert not of_site[200].has_room(10)
    assert elsewhere.has_room(10)
    of_site[0].count_connections(-1)
    assert of_site[200].has_room(10)
    allowed = sum(quota.take_connection(now, limits) for quota in of_site)
    assert allowed == SITE_SHARE * limits.address_connects_at_once + 1
    assert elsewhere.take_connection(now, limits)
    for quota in of_site:
        quota.charge(now, limits, 0, 50)
    assert of_site[0].wait(now, limits) > 0
    assert elsewhere.wait(now, limits) == 0


def test_the_quota_of_an_ipv6_56_is_not_forgotten_before_those_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("restante.waku.connection.quotas.MAX_REMEMBERED_ADDRESSES", 3)
    quotas = AddressQuotas()
    first = quotas.obtain("2001:db8::/64")
    assert quotas.obtain("2001:db8:0:1::/64").of_site is first.of_site
    assert quotas.obtain("2001:db8::/64") is first
    for address in ("192.0.2.1", "192.0.2.2"):
        quotas.obtain(address)
        assert quotas.obtain("2001:db8:0:2::/64").of_site is first.of_site
