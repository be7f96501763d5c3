"""What a wormhole reports while it works. `Wormhole.create(on_event=…)` is called with each."""

from __future__ import annotations

import msgspec

from restante.client.core.outputs import (
    Closed,
    CodeKnown,
    Failed,
    KeyAgreed,
    MessageDelivered,
    MessageStored,
    PeerConfirmed,
    ReplayEnded,
    WaitingForPeer,
    Welcomed,
)

__all__ = [
    "Closed",
    "CodeKnown",
    "Connecting",
    "Event",
    "Failed",
    "KeyAgreed",
    "MessageDelivered",
    "MessageStored",
    "PeerConfirmed",
    "Reconnecting",
    "ReplayEnded",
    "WaitingForPeer",
    "Welcomed",
    "Working",
]


class Connecting(msgspec.Struct, frozen=True):
    """A connection to the server is being made."""

    url: str
    """The server."""


class Reconnecting(msgspec.Struct, frozen=True):
    """The connection was lost, or could not be made again."""

    delay: float
    """Seconds until the next attempt."""
    reason: str
    """Why, in words for a person."""
    busy: bool = False
    """Whether the server asked to try again later: it has no room for more connections, or too many of this address,
    or it cannot store anything."""


class Working(msgspec.Struct, frozen=True):
    """The server demands work before it serves this client, and the work goes on. Little work is not reported."""

    bits: int
    """How much is demanded: each further bit doubles it."""
    expected_hashes: int
    """Hashes that it takes on average."""
    hashes: int
    """Hashes so far."""
    seconds: float
    """Time so far."""


Event = (
    Connecting
    | Welcomed
    | Working
    | CodeKnown
    | WaitingForPeer
    | KeyAgreed
    | PeerConfirmed
    | MessageStored
    | MessageDelivered
    | ReplayEnded
    | Reconnecting
    | Failed
    | Closed
)
