"""What the bench says to a mailbox server and hears from it."""

from __future__ import annotations

from typing import Any

import msgspec

APPID = "restante.invalid/bench"


class Reply(msgspec.Struct, tag_field="type", tag=str.lower, gc=False):
    """Anything a server says; direct responses of the reference carry no id."""

    id: str | None = None


class Ack(Reply, gc=False):
    pass


class Welcome(Reply, gc=False):
    pass


class Nameplates(Reply, gc=False):
    nameplates: msgspec.Raw = msgspec.Raw(b"[]")  # looked into only where it matters: lists are long


class Allocated(Reply, gc=False, kw_only=True):
    nameplate: str


class Claimed(Reply, gc=False, kw_only=True):
    mailbox: str


class Released(Reply, gc=False):
    pass


class Closed(Reply, gc=False):
    pass


class Pong(Reply, gc=False, kw_only=True):
    pong: int


class Message(Reply, gc=False, kw_only=True):
    side: str
    phase: str
    body: str


class Error(Reply, kw_only=True):
    error: str
    orig: Any = None


_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(
    Ack | Welcome | Nameplates | Allocated | Claimed | Released | Closed | Pong | Message | Error
)
_encoder = msgspec.json.Encoder()


def parse(payload: bytes) -> Reply:
    """Raise msgspec.DecodeError for what no mailbox server says."""
    return _decoder.decode(payload)


def command(type_: str, **keys: Any) -> bytes:
    return _encoder.encode({"type": type_, **keys})
