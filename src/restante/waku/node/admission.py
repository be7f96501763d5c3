"""Which connections may come, and which of them stay: one of each node, and so many in all and from an address."""

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
"""Connections beyond the peers, so that who comes to a full node gets to its Hello, and is told that it is full;
where these are taken, too, the next is cut without a word."""

BAD_PEER_SCORE: Final = 100
"""Refused envelopes and packets that were no good, from which on a peer makes room when there is none."""


class Admission:
    """The connections there are. What becomes of others is counted in `counts`."""

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
        """Those that said Hello, by node id."""
        self._id = own_id
        self._housekeeping = housekeeping
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._quotas = Quotas()

    def admit(self, connection: PeerConnection) -> bool:
        """Take in a connection; False where it may not even shake hands."""
        connection.quota = self._quotas.obtain(connection.address)
        if not connection.dialled and not self._take_place(connection.quota):
            self._counts["turned away at the door"] += 1
            return False
        self.connections.add(connection)
        connection.quota.connections += 1
        return True

    def _take_place(self, quota: AddressQuota) -> bool:
        """Count a connection that was accepted; return whether there is room for it."""
        most = self._housekeeping
        room = (
            len(self.connections) < most.max_peers + EXTRA_CONNECTIONS
            and quota.connections < most.max_peers_per_address
        )
        return room and quota.take_connection(self._loop.time(), self._limits)

    def shed(self) -> None:
        """Disconnect the peer that has sent most of a packet that is not complete."""
        most = max((each for each in self.connections if not each.ending), key=lambda each: each.held, default=None)
        if most is not None and most.held:
            self._counts["disconnected, too much that is not complete"] += 1
            most.disconnect(Reason.TOO_MANY_PEERS)

    def identify(self, connection: PeerConnection, public: bytes) -> Reason | None:
        """Take in a peer that has said Hello; return why it must go, if it must."""
        connection.node_id = node_id(public)
        before = self.peers.get(connection.node_id)
        if before is not None:
            if not before.silent and not before.reading.paused and not self._outranks(connection, before):
                return Reason.ALREADY_CONNECTED
            before.disconnect(Reason.ALREADY_CONNECTED)
        elif len(self.peers) >= self._housekeeping.max_peers and not connection.dialled and not self._make_room():
            self._counts["turned away, too many peers"] += 1
            return Reason.TOO_MANY_PEERS
        self.peers[connection.node_id] = connection
        return None

    def _make_room(self) -> bool:
        """Disconnect the peer that was wrong most often, if that was often; return whether one went."""
        worst = max(self.peers.values(), key=lambda each: each.peer.score)
        if worst.dialled or worst.peer.score < BAD_PEER_SCORE:
            return False
        worst.disconnect(Reason.TOO_MANY_PEERS)
        del self.peers[worst.node_id]
        return True

    def _outranks(self, connection: PeerConnection, before: PeerConnection) -> bool:
        """Return whether it stays where two nodes dial each other at once; the one that the lower id dialled does.

        Each would else end the one that it sees last, that is both, and again when they are dialled again.
        """
        return connection.dialled is not before.dialled and connection.dialled is (self._id < connection.node_id)

    def forget(self, connection: PeerConnection) -> None:
        """Forget a connection that is no more."""
        self.connections.discard(connection)
        connection.quota.connections -= 1
        if self.peers.get(connection.node_id) is connection:
            del self.peers[connection.node_id]
