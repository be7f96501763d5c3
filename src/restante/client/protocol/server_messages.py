"""The messages of a server, as a client that does not trust it parses them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

MAX_NAME_CHARACTERS: Final = 500
"""Characters of a side, a phase, a nameplate or a mailbox id. Real ones have at most 50."""

MAX_NAMEPLATES: Final = 100_000
"""Nameplates of a list. It is used for completion only."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]


class ListedNameplate(msgspec.Struct, frozen=True):
    """An entry of a list of nameplates."""

    id: Name


class Hashcash(msgspec.Struct, frozen=True):
    """The work that a server demands."""

    bits: Annotated[int, msgspec.Meta(ge=0)]
    resource: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]


class Permissions(msgspec.Struct, frozen=True):
    """The kinds of permission that a server accepts. A kind that is null or missing is not accepted."""

    none: dict[str, Any] | None = None
    hashcash: Hashcash | None = None


class Greeting(msgspec.Struct, frozen=True):
    """The keys of a welcome that the client uses."""

    error: str | None = None
    motd: str | None = None
    current_cli_version: str | None = None
    permissions: Permissions | UnsetType = msgspec.field(name="permission-required", default=UNSET)


class ServerMessage(msgspec.Struct, frozen=True):
    """Any message from a server. Other keys are ignored."""

    type: str
    welcome: Greeting | UnsetType = UNSET
    nameplates: Annotated[list[ListedNameplate], msgspec.Meta(max_length=MAX_NAMEPLATES)] | UnsetType = UNSET
    nameplate: Name | UnsetType = UNSET
    mailbox: Name | UnsetType = UNSET
    side: Name | UnsetType = UNSET
    phase: Name | UnsetType = UNSET
    body: str | UnsetType = UNSET
    pong: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    retry: bool = False
    """Whether an error is over soon (docs/mailbox/protocol.md, "Errors")."""
    orig: Raw = Raw(b"null")
    """The message that an error answers."""


CONNECTION_LIMIT_PREFIX: Final = "too many connections"
"""How an error of a server of this project begins, or the reason of its close with 1008, if the client's address has
too many connections, or makes them too fast (docs/mailbox/protocol.md, "Errors")."""

REQUIRED: Final[dict[str, str]] = {
    "welcome": "welcome",
    "nameplates": "nameplates",
    "allocated": "nameplate",
    "claimed": "mailbox",
    "pong": "pong",
    "error": "error",
}
"""The key that a message must have. A `message` must have `side`, `phase` and `body`."""


class _Original(msgspec.Struct):
    type: str


_decode_original: Final = msgspec.json.Decoder(_Original).decode


def asks_to_return(error: ServerMessage) -> bool:
    """Return whether an error asks the client to connect again later."""
    return error.retry or str(error.error).startswith(CONNECTION_LIMIT_PREFIX)


def refused_command(error: ServerMessage) -> str | None:
    """Return the type of the message that an error answers, or None if the error does not say it."""
    try:
        return _decode_original(error.orig).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_decode: Final = msgspec.json.Decoder(ServerMessage).decode


def parse_message(text: str | bytes) -> ServerMessage:
    """Return the message in a frame.

    Raises:
        ValueError: the frame is not JSON, or a key that is used here is missing or of a wrong type.

    """
    try:
        message = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the server sent a message that cannot be read: {error}") from error
    names = ("side", "phase", "body") if message.type == "message" else (REQUIRED.get(message.type, "type"),)
    for name in names:
        if getattr(message, name) is UNSET:
            raise ValueError(f"the server sent a message of type {message.type} without {name!r}")
    return message
