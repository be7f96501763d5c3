"""Admission: one connection per node, and limits on all connections, on those of an address, and of an IPv6 /56."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final

import msgspec

from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.connection.quotas import AddressQuotas
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.keys import node_id
from restante.waku.limits import Limits


class ConnectionCount(StrEnum):
    """What became of connections and of packets. The values are the names in the log of a minute."""

    TOO_MANY_FROM_ADDRESS = "turned away before the handshake, over max_peers_per_address"
    TOO_FAST_FROM_ADDRESS = "turned away before the handshake, over address_connects"
    """Connections that were closed at once. To send a reason would take a handshake."""
    HALF_OPEN = "disconnected in the handshake, to make room"
    """Connections that were closed before their Hello to admit others."""
    FULL = "turned away, too many peers"
    """Peers that were refused after their Hello, because no other peer was evicted."""
    EVICTED = "disconnected, to make room"
    """Peers that were evicted for a newcomer."""
    INCOMPLETE = "disconnected, too many incomplete packets"
    NO_PROXY_HEADER = "no proxy header"
    """Connections that were closed because they did not begin with a valid PROXY header of a proxy."""
    UNREADABLE = "packets that could not be read"


ANSWER_SECONDS: Final = 2.0
"""Seconds within which a peer that connects again must answer a Ping on its earlier connection, which is replaced
otherwise."""

ANSWER_POLL_SECONDS: Final = 0.05
"""Seconds between two checks whether it has answered."""

MAX_ERRORS: Final = 100
"""Packets of a peer that could not be read from which on it is disconnected to make room for another. These are the
peer's own fault, because a node relays only what it could read. Refused envelopes do not count: their makers chose
their times and their work, and a relay does not know this node's clock and limits."""

ERRORS_FORGOTTEN: Final = 100 / 3600
"""Errors that are forgotten in a second: a peer that stays connected for months may make one now and then."""


class PeerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections a node accepts."""

    max_peers: int
    max_peers_per_address: int
    max_handshakes: int = 256
    """Connections beyond `max_peers`, for those that are in their handshake when the node is full. When these are
    taken, too, a new one displaces another (`HalfOpen.oldest`). A handshake takes half a second on a slow line: 256
    last as long if 500 connections a second come from as many networks."""


class Admission:
    """The admitted connections. Connections that are refused or disconnected are counted in `counts`."""

    def __init__(
        self,
        own_id: bytes,
        peer_limits: PeerLimits,
        limits: Limits,
        counts: Counter[ConnectionCount],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.connections: set[PeerConnection] = set()
        self.peers: dict[bytes, PeerConnection] = {}
        """The peers that have said Hello, by node id."""
        self.protected: set[bytes] = set()
        """Ids of nodes in the settings. They are always admitted, and never evicted."""
        self._id = own_id
        self._peer_limits = peer_limits
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._quotas = AddressQuotas()
        self._half_open = HalfOpen()

    def admit(self, connection: PeerConnection) -> bool:
        """Admit a connection to the handshake. Return False if its address has too many, or made them too fast."""
        quota = connection.quota = self._quotas.obtain(connection.address)
        if not connection.dialled:
            if not quota.has_room(self._peer_limits.max_peers_per_address):
                self._counts[ConnectionCount.TOO_MANY_FROM_ADDRESS] += 1
                return False
            if not quota.take_connection(self._loop.time(), self._limits):
                self._counts[ConnectionCount.TOO_FAST_FROM_ADDRESS] += 1
                return False
            self._half_open.add(connection)
            self._shorten_half_open()
        self.connections.add(connection)
        quota.count_connections(1)
        return True

    def _shorten_half_open(self) -> None:
        """Close half-open connections if there are too many."""
        limits = self._peer_limits
        maximum = max(limits.max_peers - len(self.peers), 0) + limits.max_handshakes
        while len(self._half_open) > maximum:
            oldest = self._half_open.oldest()
            self._half_open.discard(oldest)
            if oldest.ending:
                oldest.abort()  # it does not read its Disconnect
            else:
                self._counts[ConnectionCount.HALF_OPEN] += 1
                oldest.disconnect(Reason.TOO_MANY_PEERS)

    def disconnect_largest(self) -> None:
        """Disconnect the peer with the largest incomplete packet."""
        connections = (connection for connection in self.connections if not connection.ending)
        largest = max(connections, key=attrgetter("incomplete_bytes"), default=None)
        if largest is not None and largest.incomplete_bytes:
            self._counts[ConnectionCount.INCOMPLETE] += 1
            largest.disconnect(Reason.TOO_MANY_PEERS)

    def identify(self, connection: PeerConnection, public: bytes) -> None:
        """Admit a peer that has said Hello, or disconnect it. If it has another connection, ping that first."""
        connection.node_id = node_id(public)
        before = self.peers.get(connection.node_id)
        if (
            before is None
            or before.ping_pending
            or before.reading.paused
            or before.writing_paused
            or self._replaces(connection, before)
        ):
            self._admit_peer(connection)
        else:
            before.ping()
            self._await_answer(connection, before, self._loop.time() + ANSWER_SECONDS)

    def _await_answer(self, connection: PeerConnection, before: PeerConnection, until: float) -> None:
        """Admit a connection if the one that its peer had before does not answer until then."""
        if connection not in self.connections or connection.ending:
            return
        current = self.peers.get(connection.node_id)
        if current is not None and (current is not before or not before.ping_pending):
            connection.disconnect(Reason.ALREADY_CONNECTED)
        elif current is not None and self._loop.time() < until:
            self._loop.call_later(ANSWER_POLL_SECONDS, self._await_answer, connection, before, until)
        else:
            self._admit_peer(connection)

    def _admit_peer(self, connection: PeerConnection) -> None:
        before = self.peers.get(connection.node_id)
        if before is not None:
            self._remove_peer(before, Reason.ALREADY_CONNECTED)
        elif len(self.peers) >= self._peer_limits.max_peers and not self._is_protected(connection):
            evicted = self._peer_to_evict(connection)
            if evicted is None:
                self._counts[ConnectionCount.FULL] += 1
                connection.disconnect(Reason.TOO_MANY_PEERS)
                return
            self._counts[ConnectionCount.EVICTED] += 1
            # Static nodes of status-go dial again, at most 35 s after they dialled last (geth p2p/dial.go,
            # dialHistoryExpiration). ethereumjs dials again after five minutes, and only after this reason
            # (devp2p/src/rlpx/rlpx.ts, _onDisconnect).
            self._remove_peer(evicted, Reason.TOO_MANY_PEERS)
        self._half_open.discard(connection)
        self.peers[connection.node_id] = connection
        connection.active_at = self._loop.time()
        connection.accept()

    def _is_protected(self, connection: PeerConnection) -> bool:
        return connection.dialled or connection.node_id in self.protected

    def _remove_peer(self, peer: PeerConnection, reason: Reason) -> None:
        """Disconnect a peer. Its connection is half-open until it is closed."""
        peer.disconnect(reason)
        del self.peers[peer.node_id]
        if not peer.dialled:
            self._half_open.add(peer)

    def count_error(self, connection: PeerConnection) -> None:
        """Count a packet that could not be read."""
        connection.errors.take(self._loop.time(), ERRORS_FORGOTTEN, 1)

    def _errors(self, connection: PeerConnection) -> float:
        return connection.errors.spent(self._loop.time(), ERRORS_FORGOTTEN)

    def _peer_to_evict(self, newcomer: PeerConnection) -> PeerConnection | None:
        """Return the peer to evict: one that sends unreadable packets, or one of a crowded network. None: no peer."""
        connections = [connection for connection in self.peers.values() if not self._is_protected(connection)]
        worst = max(connections, key=self._errors, default=None)
        if worst is not None and self._errors(worst) > MAX_ERRORS - 1:  # a part of the last may be forgotten already
            return worst
        return choose_evicted(connections, newcomer, self._loop.time())

    def _replaces(self, connection: PeerConnection, before: PeerConnection) -> bool:
        """Return whether a connection replaces an older one to the same node.

        It does if two nodes dialled each other at once and the node with the lower id dialled this one. Without a
        common rule each side would close the connection that it sees last, so both would be closed, and again after a
        redial.
        """
        return connection.dialled is not before.dialled and connection.dialled is (self._id < connection.node_id)

    def forget(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        self.connections.discard(connection)
        self._half_open.discard(connection)
        connection.quota.count_connections(-1)
        if self.peers.get(connection.node_id) is connection:
            del self.peers[connection.node_id]


# ── half-open connections ─────────────────────────────────────────────────────────────────────────


class HalfOpen:
    """Connections that are not peers: in their handshake, refused, or closing. By the network that they come from."""

    def __init__(self) -> None:
        self._networks: dict[str, OrderedDict[PeerConnection, None]] = {}
        """The connections of each network, the oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: PeerConnection) -> None:
        """Add a connection that is not in it."""
        self._networks.setdefault(connection.quota.network, OrderedDict())[connection] = None
        self._count += 1

    def discard(self, connection: PeerConnection) -> None:
        """Remove a connection if it is in it."""
        network = connection.quota.network
        connections = self._networks.get(network)
        if connections is not None and connection in connections:
            del connections[connection]
            self._count -= 1
            if not connections:
                del self._networks[network]

    def oldest(self) -> PeerConnection:
        """Return the oldest connection of the network that has the most of them. There must be one.

        An attacker leaves connections open until their deadline. An honest peer needs two round trips.
        """
        crowded: OrderedDict[PeerConnection, None] = max(self._networks.values(), key=len)
        return next(iter(crowded))


# ── eviction ──────────────────────────────────────────────────────────────────────────────────────

SILENT_AFTER: Final = 600.0
"""Seconds after which a peer counts as silent if it has sent no envelope and no request. A node that relays sends
something all the time. A client requests history when it connects."""

SILENT_WEIGHT: Final = 2
"""How many active peers a silent one counts for, and a newcomer. It is not higher, because an envelope costs an
attacker little. With 1, a newcomer that sends nothing could take the place of one of two active peers."""


_Group = Callable[[PeerConnection], Hashable]

_GROUPS: Final[tuple[_Group, ...]] = tuple(map(attrgetter, ("quota.network", "quota.site", "quota")))
"""What peers are grouped by: their networks, their sites, and their addresses."""


def choose_evicted(peers: Sequence[PeerConnection], newcomer: PeerConnection, now: float) -> PeerConnection | None:
    """Return the peer that a full node disconnects to admit a newcomer. None: no peer.

    The network that has most peers loses one to a network that has fewer, never the other way. So an attacker gets no
    more peers than others unless it has addresses in many networks, and a peer that is alone in its network stays.
    Bitcoin Core protects its connections in a similar way (src/node/eviction.cpp, SelectNodeToEvict).

    It is the peer that has been silent for longest at the most crowded address of the most crowded site of the most
    crowded network. If that network is not more crowded than the newcomer's, the sites of the newcomer's network are
    compared in the same way, and then the addresses of its site.
    """
    since = now - SILENT_AFTER
    for level, group in enumerate(_GROUPS):
        if not peers:
            break
        members = _most_crowded(peers, group, since)
        weight = _weigh(members, since)
        for finer_group in _GROUPS[level + 1 :]:
            members = _most_crowded(members, finer_group, since)
        evicted = min(members, key=attrgetter("active_at"))
        newcomer_group = group(newcomer)
        peers = [peer for peer in peers if group(peer) == newcomer_group]
        # Otherwise two groups could evict each other's peers again and again.
        if _weigh(peers, since) + SILENT_WEIGHT <= weight - _weigh([evicted], since):
            return evicted
    return None


def _most_crowded(peers: Sequence[PeerConnection], group: _Group, since: float) -> list[PeerConnection]:
    """Return the peers of the most crowded group."""
    groups: dict[Hashable, list[PeerConnection]] = {}
    for peer in peers:
        groups.setdefault(group(peer), []).append(peer)
    return max(groups.values(), key=lambda members: _weigh(members, since))


def _weigh(peers: Sequence[PeerConnection], since: float) -> int:
    return sum(1 if peer.active_at > since else SILENT_WEIGHT for peer in peers)
