"""All messages of the mailbox protocol, in both directions.

    client to server                                   server to client
    submit-permissions        method, stamp?
    bind      appid, side, client_version?             welcome     welcome
    list                                               nameplates  nameplates: [{id}]
    allocate                                           allocated   nameplate
    claim     nameplate                                claimed     mailbox
    release   nameplate?                               released
    open      mailbox                                  message     side, phase, body, id, server_rx (all stored ones)
    add       phase, body                              message     (to each connection that has the mailbox open)
    close     mailbox?, mood?                          closed
    ping      ping                                     pong        pong
                                                       ack         id (first answer to each message with a type)
                                                       error       error, orig, hint?, retry?

Source: spec 000 "All Message Types", spec 002 for permissions. docs/mailbox/protocol.md says what shipped clients
need beyond these. The server keeps and returns `id`, `phase`, `body` and `ping` as the exact JSON text that the
client sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

# ── client to server ─────────────────────────────────────────────────────────────────────────────

NULL: Final = Raw(b"null")


class Message(msgspec.Struct, tag_field="type", tag=str.lower, frozen=True, gc=False, kw_only=True):
    """A message from a client. Its `id` is echoed in its ack and its response. Unknown keys are ignored."""

    id: Raw = NULL


MAX_NAME_CHARACTERS: Final = 500
"""Maximum length of an app id, a side, a mailbox id or a mood. The server stores them with every mailbox and every
usage record. The longest known ones, app ids with a domain name, have about 50 characters."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]


class Submit(Message, frozen=True, gc=False, kw_only=True, tag="submit-permissions"):
    """Proof of the work that the welcome demanded."""

    method: Raw | UnsetType = UNSET
    stamp: Raw | UnsetType = UNSET


class SubmitOne(Submit, frozen=True, gc=False, kw_only=True, tag="submit-permission"):
    """A Submit with the tag in the singular.

    The specification has the plural. magic-wormhole.rs, the only client that submits work, sends the singular.
    """


class Bind(Message, frozen=True, gc=False, kw_only=True):
    """Names the application and the side of the connection. It comes before all others."""

    appid: Name
    side: Name
    client_version: Raw | UnsetType = UNSET


class List(Message, frozen=True, gc=False, kw_only=True):
    """Asks for the nameplates of the application."""


class Allocate(Message, frozen=True, gc=False, kw_only=True):
    """Asks for a nameplate that nobody uses."""


class Claim(Message, frozen=True, gc=False, kw_only=True):
    """Joins a nameplate and its mailbox, and asks for the id of the mailbox."""

    # ASCII digits only: the reference's ^\d+$ also accepts "1\n" and Arabic digits (server.py:9, 0.8.0).
    nameplate: Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,40}\Z")]


class Release(Message, frozen=True, gc=False, kw_only=True):
    """Leaves the nameplate."""

    nameplate: Name | UnsetType = UNSET


class Open(Message, frozen=True, gc=False, kw_only=True):
    """Joins a mailbox, and asks for all its messages, those to come included."""

    mailbox: Name


class Add(Message, frozen=True, gc=False, kw_only=True):
    """Adds a message to the open mailbox."""

    phase: Raw
    body: Raw


class Close(Message, frozen=True, gc=False, kw_only=True):
    """Leaves a mailbox, and says how the wormhole ended."""

    mailbox: Name | UnsetType = UNSET
    mood: Name | None = None


class Ping(Message, frozen=True, gc=False, kw_only=True):
    """Asks for a pong with the same value."""

    ping: Raw


Received = Submit | SubmitOne | Bind | List | Allocate | Claim | Release | Open | Add | Close | Ping
KINDS: Final[dict[str, type[Message]]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Received)}
"""Each type of message that a client sends, by the name that it has on the wire."""


# ── server to client ─────────────────────────────────────────────────────────────────────────────


class Reply(msgspec.Struct, tag_field="type", tag=str.lower, gc=False):
    """A message to a client, without `server_tx`: `stamp` adds it when the frame leaves."""


class Welcome(Reply, gc=False):
    """The first message on a connection: what to show the user, and which work is demanded."""

    welcome: dict[str, Any]


class Ack(Reply, gc=False):
    """The first answer to a message with a type."""

    id: Raw


class Direct(Reply, gc=False):
    """A direct response: it has the command's `id` and the time at which it was received (spec 000, the Hint)."""

    id: Raw
    server_rx: float


class Nameplates(Direct, gc=False):
    """The response to `list`."""

    nameplates: Raw


class Allocated(Direct, gc=False):
    """The response to `allocate`."""

    nameplate: str


class Claimed(Direct, gc=False):
    """The response to `claim`."""

    mailbox: str


class Released(Direct, gc=False):
    """The response to `release`."""


class Closed(Direct, gc=False):
    """The response to `close`."""


class Pong(Direct, gc=False):
    """The response to `ping`."""

    pong: Raw


class Delivery(Reply, tag="message", gc=False):
    """A stored message, for connections that have the mailbox open. `id` and `server_rx` are those of the `add`."""

    side: str
    phase: Raw
    body: Raw
    server_rx: float
    id: Raw


class Error(Reply, gc=False):
    """Says why a message was refused."""

    error: str
    orig: Raw
    hint: str | UnsetType = UNSET
    """What the user can do, for people. The text of `error` is for programs and never varies."""
    retry: bool | UnsetType = UNSET
    """Whether the command would succeed later, without any change of its own."""


_encode: Final = msgspec.json.Encoder().encode


ACK: Final = b'{"type":"ack","id":'
"""The encoded ack of a message, before its `id` as JSON. Each command has one, and an encoder takes twice as long."""


def encode(reply: Reply) -> bytes:
    """Encode a reply without its closing brace: `encode(r) + stamp(tx)` is the frame's payload."""
    return _encode(reply)[:-1]


def stamp(server_tx: float) -> bytes:
    """Return the end of an encoded reply: `server_tx`, in seconds since 1970, and the closing brace."""
    return b',"server_tx":%.6f}' % server_tx
