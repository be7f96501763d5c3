"""What a wormhole asks of its caller, and what it tells the application."""

from __future__ import annotations

from typing import Any

import msgspec

from restante.client.errors import WormholeError


class SendFrame(msgspec.Struct, frozen=True):
    """Send this text to the server."""

    text: bytes


class ShowWork(msgspec.Struct, frozen=True):
    """Find a stamp of hashcash for the server, and hand it to `Machine.permitted`."""

    bits: int
    resource: str


class Welcomed(msgspec.Struct, frozen=True):
    """The server greeted us, perhaps with a message of the day."""

    motd: str | None
    current_cli_version: str | None


class NameplatesListed(msgspec.Struct, frozen=True):
    """The nameplates that are in use, for completion."""

    nameplates: list[str]


class CodeKnown(msgspec.Struct, frozen=True):
    """The code is complete: tell it to the person at the other side."""

    code: str


class KeyAgreed(msgspec.Struct, frozen=True):
    """The peer's half of the key has come. The peer may still turn out to have used another code."""


class PeerConfirmed(msgspec.Struct, frozen=True):
    """The peer knows the key. People may compare the verifier."""

    verifier: bytes
    versions: dict[str, Any]


class MessageReceived(msgspec.Struct, frozen=True):
    """The next message of the peer's application."""

    number: int
    plaintext: bytes


class MessageStored(msgspec.Struct, frozen=True):
    """The server has a message of ours on its disk."""

    number: int


class MessageDelivered(msgspec.Struct, frozen=True):
    """The peer's application has processed a message of ours. Only wormholes that want receipts are told."""

    number: int


class WaitingForPeer(msgspec.Struct, frozen=True):
    """The mailbox is open, and nothing of a peer is in it."""


class ReplayEnded(msgspec.Struct, frozen=True):
    """All messages that the server has stored have come."""


class Failed(msgspec.Struct, frozen=True):
    """The wormhole cannot succeed. It is being closed."""

    error: WormholeError


class Closed(msgspec.Struct, frozen=True):
    """The server has nothing of ours any more. The connection can be closed."""

    mood: str


Output = (
    SendFrame
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
