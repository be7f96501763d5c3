"""Crowding: which peer gives its place to a newcomer when a node is full.

A place goes from the network that has most peers to one that has fewer, never the other way. So an attacker gets no
more places than others unless it has addresses in many networks, and a peer that is alone in its network keeps its
place. Bitcoin Core protects its connections in a similar way (src/node/eviction.cpp, SelectNodeToEvict).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from restante.waku.connection.quotas import AddressQuota

SILENT_AFTER: Final = 600.0
"""Seconds after which a peer counts as silent if it has sent no envelope and no request. A node that relays sends
something all the time. A client requests history when it connects."""

SILENT_WEIGHT: Final = 4
"""How many active peers a silent one counts for. It is not higher, because an envelope costs an attacker little."""


class Occupant(Protocol):
    """A peer that has a place, or wants one."""

    quota: AddressQuota
    active_at: float
    """When it last sent an envelope or a request, or connected, in seconds of the loop's clock."""


Peer = TypeVar("Peer", bound=Occupant)


def choose(peers: Sequence[Peer], newcomer: Peer, now: float) -> Peer | None:
    """Return the peer that gives its place to a newcomer. None: nobody does.

    It is the one of the most crowded address of the most crowded network that has been silent for longest. The
    newcomer's network must be less crowded, even with the newcomer. In its own network, its address must be.
    """
    since = now - SILENT_AFTER
    chosen = _choose(peers, newcomer, _NETWORK, since)
    if chosen is None:
        own = newcomer.quota.network
        chosen = _choose([peer for peer in peers if peer.quota.network == own], newcomer, _ADDRESS, since)
    return chosen


_NETWORK: Final[Callable[[Occupant], Hashable]] = attrgetter("quota.network")
_ADDRESS: Final[Callable[[Occupant], Hashable]] = attrgetter("quota")


def _choose(
    peers: Sequence[Peer], newcomer: Peer, group: Callable[[Occupant], Hashable], since: float
) -> Peer | None:
    if not peers:
        return None
    weights = _weights(peers, group, since)
    crowded = max(weights, key=weights.__getitem__)
    members = [peer for peer in peers if group(peer) == crowded]
    addresses = _weights(members, _ADDRESS, since)
    address = max(addresses, key=addresses.__getitem__)
    chosen = min((peer for peer in members if peer.quota is address), key=attrgetter("active_at"))
    remaining = weights[crowded] - (1 if chosen.active_at > since else SILENT_WEIGHT)
    # Otherwise two groups could take a place from each other again and again. The newcomer has sent nothing yet.
    return chosen if weights.get(group(newcomer), 0) + SILENT_WEIGHT <= remaining else None


def _weights(peers: Sequence[Occupant], group: Callable[[Occupant], Hashable], since: float) -> dict[Hashable, int]:
    """Return how much the peers of each group count."""
    weights: dict[Hashable, int] = {}
    for peer in peers:
        name = group(peer)
        weights[name] = weights.get(name, 0) + (1 if peer.active_at > since else SILENT_WEIGHT)
    return weights
