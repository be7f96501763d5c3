"""Connections that have no place among the peers: in their handshake, refused, or closing."""

from __future__ import annotations

from collections import OrderedDict

from restante.waku.connection.peer_connection import PeerConnection


class HalfOpen:
    """These connections, by the network that they come from."""

    def __init__(self) -> None:
        self._networks: dict[str, OrderedDict[PeerConnection, None]] = {}
        """Those of each network, the oldest first."""
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

        An attacker holds connections until their time is over. An honest peer needs two round trips.
        """
        crowded: OrderedDict[PeerConnection, None] = max(self._networks.values(), key=len)
        return next(iter(crowded))
