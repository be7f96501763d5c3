"""What a wormhole wants its caller to do, and what it reports to the application."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.client.errors import WormholeError


class SendFrame(msgspec.Struct, frozen=True):
    """Send this text to the server."""

    text: bytes


class Reconnect(msgspec.Struct, frozen=True):
    """End this connection, and make another one later."""

    reason: str
    """Why, in a text for a person."""


class ShowWork(msgspec.Struct, frozen=True):
    """Find a stamp of hashcash for the server, and hand it to `Machine.permitted`."""

    bits: int
    resource: str


class Welcomed(msgspec.Struct, frozen=True):
    """The server sent its welcome. It does so on each connection."""

    motd: str | None
    """A message of the day for the user, or None."""
    current_cli_version: str | None
    """The version of the Python client that the server recommends, or None."""


class NameplatesListed(msgspec.Struct, frozen=True):
    """The nameplates that are in use, for completion."""

    nameplates: list[str]


class CodeKnown(msgspec.Struct, frozen=True):
    """The code is known: it was set, or the server has allocated its number."""

    code: str


class KeyAgreed(msgspec.Struct, frozen=True):
    """The peer's half of the key has arrived, and the key is known. The peer may still have used another code."""


class PeerConfirmed(msgspec.Struct, frozen=True):
    """The peer knows the key. Messages can arrive from now on."""

    verifier: bytes
    """What people may compare (`BaseWormhole.verifier`)."""
    versions: dict[str, Any]
    """The versions that the peer's application sent (`BaseWormhole.versions`)."""


class MessageReceived(msgspec.Struct, frozen=True):
    """The next message of the peer's application."""

    number: int
    plaintext: bytes


class MessageStored(msgspec.Struct, frozen=True):
    """The server has a message of this side on its disk. Each is reported once."""

    number: int
    """Its number among the messages of this side, from 0."""


class MessageDelivered(msgspec.Struct, frozen=True):
    """The peer's application has processed a message of this side. Only a wormhole that wants receipts reports it."""

    number: int
    """Its number among the messages of this side, from 0."""


class WaitingForPeer(msgspec.Struct, frozen=True):
    """The mailbox is open, and no peer has ever sent anything. It is reported on each connection until one has."""


class ReplayEnded(msgspec.Struct, frozen=True):
    """All messages that the server had stored have come on this connection."""


class Failed(msgspec.Struct, frozen=True):
    """The wormhole cannot succeed, and is being closed. It is not reported if the server cannot be reached."""

    error: WormholeError
    """What the wormhole's methods raise from now on."""


class Closed(msgspec.Struct, frozen=True):
    """The wormhole is closed: its nameplate is released, and its mailbox is closed. It is the last event.

    It is not reported if the server did not answer in time.
    """

    mood: str
    """How it went: what `BaseWormhole.close` was given, or the mood of an error."""


Output = (
    SendFrame
    | Reconnect
    | ShowWork
    | Welcomed
    | NameplatesListed
    | CodeKnown
    | KeyAgreed
    | PeerConfirmed
    | MessageReceived
    | MessageStored
    | MessageDelivered
    | WaitingForPeer
    | ReplayEnded
    | Failed
    | Closed
)
