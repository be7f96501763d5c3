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

SILENT_WEIGHT: Final = 2
"""How many active peers a silent one counts for, and a newcomer. It is not higher, because an envelope costs an
attacker little. With 1, a newcomer that sends nothing could take the place of one of two active peers."""


class Occupant(Protocol):
    """A peer that has a place, or wants one."""

    quota: AddressQuota
    active_at: float
    """When it last sent an envelope or a request, or connected, in seconds of the loop's clock."""


Peer = TypeVar("Peer", bound=Occupant)

_Group = Callable[[Occupant], Hashable]

_GROUPS: Final[tuple[_Group, ...]] = tuple(map(attrgetter, ("quota.network", "quota.site", "quota")))
"""What peers are grouped by: their networks, their sites, and their addresses."""


def choose(peers: Sequence[Peer], newcomer: Peer, now: float) -> Peer | None:
    """Return the peer that gives its place to a newcomer. None: nobody does.

    It is the one that has been silent for longest at the most crowded address of the most crowded site of the most
    crowded network. If that network is not more crowded than the newcomer's, the sites of the newcomer's network are
    compared in the same way, and then the addresses of its site.
    """
    since = now - SILENT_AFTER
    for level, group in enumerate(_GROUPS):
        if not peers:
            break
        members, weight = _most_crowded(peers, group, since)
        for finer in _GROUPS[level + 1 :]:
            members, _ = _most_crowded(members, finer, since)
        chosen = min(members, key=attrgetter("active_at"))
        own = group(newcomer)
        peers = [peer for peer in peers if group(peer) == own]
        # Otherwise two groups could take a place from each other again and again.
        if _weigh(peers, since) + SILENT_WEIGHT <= weight - _weigh([chosen], since):
            return chosen
    return None


def _most_crowded(peers: Sequence[Peer], group: _Group, since: float) -> tuple[list[Peer], int]:
    """Return the peers of the most crowded group, and how much they count."""
    weights: dict[Hashable, int] = {}
    for peer in peers:
        name = group(peer)
        weights[name] = weights.get(name, 0) + (1 if peer.active_at > since else SILENT_WEIGHT)
    crowded = max(weights, key=weights.__getitem__)
    return [peer for peer in peers if group(peer) == crowded], weights[crowded]


def _weigh(peers: Sequence[Occupant], since: float) -> int:
    return sum(1 if peer.active_at > since else SILENT_WEIGHT for peer in peers)
