"""What a wormhole reports while it works. `Wormhole.create(on_event=…)` is called with each."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from restante.client.errors import WormholeError


class Connecting(msgspec.Struct, frozen=True):
    """A connection to the server is being made."""

    url: str
    """The server."""


class Welcomed(msgspec.Struct, frozen=True):
    """The server sent its welcome. It does so on each connection."""

    motd: str | None
    """A message of the day for the user, or None."""
    current_cli_version: str | None
    """The version of the Python client that the server recommends, or None."""


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


class CodeKnown(msgspec.Struct, frozen=True):
    """The code is known: it was set, or the server has allocated its number."""

    code: str


class WaitingForPeer(msgspec.Struct, frozen=True):
    """The mailbox is open, and no peer has ever sent anything. It is reported on each connection until one has."""


class KeyAgreed(msgspec.Struct, frozen=True):
    """The peer's half of the key has arrived, and the key is known. The peer may still have used another code."""


class PeerConfirmed(msgspec.Struct, frozen=True):
    """The peer knows the key. Messages can arrive from now on."""

    verifier: bytes
    """What people may compare (`BaseWormhole.verifier`)."""
    versions: dict[str, Any]
    """The versions that the peer's application sent (`BaseWormhole.versions`)."""


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


class MessageStored(msgspec.Struct, frozen=True):
    """The server has a message of this side on its disk. Each is reported once."""

    number: int
    """Its number among the messages of this side, from 0."""


class MessageDelivered(msgspec.Struct, frozen=True):
    """The peer's application has processed a message of this side. Only a wormhole that wants receipts reports it."""

    number: int
    """Its number among the messages of this side, from 0."""


class ReplayEnded(msgspec.Struct, frozen=True):
    """All messages that the server had stored have come on this connection."""


class Reconnecting(msgspec.Struct, frozen=True):
    """The connection was lost, or could not be made, and is tried again."""

    delay: float
    """Seconds until the next attempt."""
    reason: str
    """Why, in a text for a person."""
    busy: bool = False
    """Whether the server asked to try again later: it has no room for more connections, or too many of this address,
    or it cannot store anything."""


class Failed(msgspec.Struct, frozen=True):
    """The wormhole cannot succeed, and is being closed. It is not reported if the server cannot be reached."""

    error: WormholeError
    """What the wormhole's methods raise from now on."""


class Closed(msgspec.Struct, frozen=True):
    """The wormhole is closed, and its nameplate and mailbox at the server, if it had any. It is the last event.

    It is not reported if the server did not confirm that in time.
    """

    mood: str
    """How it went: what `BaseWormhole.close` was given, or the mood of an error."""


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
