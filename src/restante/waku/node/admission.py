"""Admission: one connection per node, and limits on all connections and on those of an address."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.connection.quotas import AddressQuota, Quotas
from restante.waku.devp2p.hello import Reason
from restante.waku.envelope.keys import node_id
from restante.waku.limits import Limits
from restante.waku.node.housekeeping import Housekeeping

EXTRA_CONNECTIONS: Final = 64
"""Connections beyond `max_peers`, so that a peer of a full node gets as far as its Hello and is told that the node is
full. When these are taken too, further connections are closed without a word."""

BAD_PEER_SCORE: Final = 100
"""Refused envelopes and unreadable packets from which on a peer is disconnected to make room for another."""


class Admission:
    """The admitted connections. Connections that are refused or disconnected are counted in `counts`."""

    def __init__(
        self,
        own_id: bytes,
        housekeeping: Housekeeping,
        limits: Limits,
        counts: Counter[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.connections: set[PeerConnection] = set()
        self.peers: dict[bytes, PeerConnection] = {}
        """The peers that have said Hello, by node id."""
        self._id = own_id
        self._housekeeping = housekeeping
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._quotas = Quotas()

    def admit(self, connection: PeerConnection) -> bool:
        """Admit a connection. Return False if it may not even begin the handshake."""
        connection.quota = self._quotas.obtain(connection.address)
        if not connection.dialled and not self._take_place(connection.quota):
            self._counts["turned away before the handshake"] += 1
            return False
        self.connections.add(connection)
        connection.quota.connections += 1
        return True

    def _take_place(self, quota: AddressQuota) -> bool:
        """Charge an accepted connection. Return whether there is room for it."""
        most = self._housekeeping
        room = (
            len(self.connections) < most.max_peers + EXTRA_CONNECTIONS
            and quota.connections < most.max_peers_per_address
        )
        return room and quota.take_connection(self._loop.time(), self._limits)

    def disconnect_largest(self) -> None:
        """Disconnect the peer with the largest incomplete packet."""
        most = max((each for each in self.connections if not each.ending), key=lambda each: each.held, default=None)
        if most is not None and most.held:
            self._counts["disconnected, too many incomplete packets"] += 1
            most.disconnect(Reason.TOO_MANY_PEERS)

    def identify(self, connection: PeerConnection, public: bytes) -> Reason | None:
        """Admit a peer that has said Hello. Return the reason to disconnect it, if there is one."""
        connection.node_id = node_id(public)
        before = self.peers.get(connection.node_id)
        if before is not None:
            if not before.silent and not before.reading.paused and not self._replaces(connection, before):
                return Reason.ALREADY_CONNECTED
            before.disconnect(Reason.ALREADY_CONNECTED)
        elif len(self.peers) >= self._housekeeping.max_peers and not connection.dialled and not self._make_room():
            self._counts["turned away, too many peers"] += 1
            return Reason.TOO_MANY_PEERS
        self.peers[connection.node_id] = connection
        return None

    def _make_room(self) -> bool:
        """Disconnect the worst peer if its score is high and it dialled us. Return whether one was disconnected."""
        worst = max(self.peers.values(), key=lambda each: each.peer.score)
        if worst.dialled or worst.peer.score < BAD_PEER_SCORE:
            return False
        worst.disconnect(Reason.TOO_MANY_PEERS)
        del self.peers[worst.node_id]
        return True

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
        connection.quota.connections -= 1
        if self.peers.get(connection.node_id) is connection:
            del self.peers[connection.node_id]
