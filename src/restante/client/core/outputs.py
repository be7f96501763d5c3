"""What a wormhole wants its caller to do, and what it reports."""

from __future__ import annotations

import msgspec

from restante.client.events import Event


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


class NameplatesListed(msgspec.Struct, frozen=True):
    """The nameplates that are in use, for completion."""

    nameplates: list[str]


class MessageReceived(msgspec.Struct, frozen=True):
    """The next message of the peer's application."""

    number: int
    plaintext: bytes


Output = SendFrame | Reconnect | ShowWork | NameplatesListed | MessageReceived | Event
