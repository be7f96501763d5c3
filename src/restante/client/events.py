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


class Reconnecting(msgspec.Struct, frozen=True):
    """The connection was lost, or could not be made again. The next attempt follows after `delay` seconds."""

    delay: float
    reason: str


class Working(msgspec.Struct, frozen=True):
    """The server demands work before it serves us. It has been going on for `seconds` seconds."""

    bits: int
    expected_hashes: int
    """Hashes that it takes on average."""
    hashes: int
    """Hashes so far."""
    seconds: float


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
