"""What a wormhole reports while it works. `Wormhole.create(on_event=…)` is called with each."""

from __future__ import annotations

from typing import Literal

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
    "PeerSilent",
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
    """The connection was lost, or could not be made, and is tried again."""

    delay: float
    """Seconds until the next attempt."""
    reason: str
    """Why, in a text for a person."""
    busy: bool = False
    """Whether the server asked to try again later: it has no room for more connections, or too many of this address,
    or it cannot store anything."""


Awaited = Literal["key", "offer", "answer", "connection", "bytes", "confirmation"]
"""What a peer owes. To owe bytes means to send or to take them."""


class PeerSilent(msgspec.Struct, frozen=True):
    """The peer has not answered for a while. It is reported once in each phase, and the wait goes on."""

    seconds: float
    """How long it has not answered."""
    awaited: Awaited
    """What it owes: its part of the `key`, an `offer`, an `answer` to one, a `connection` for a file, to send or take
    `bytes` of it, or the `confirmation` that it has all. Before an offer or an answer its user may have to decide."""
    ends_after: float | None = None
    """Seconds of silence after which the transfer ends with an error, or sooner if the peer's system stops answering,
    too. None: it waits until the peer answers."""


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
    | PeerSilent
    | MessageStored
    | MessageDelivered
    | ReplayEnded
    | Reconnecting
    | Failed
    | Closed
)
