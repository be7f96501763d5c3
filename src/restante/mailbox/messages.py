"""Every message of the mailbox protocol, both directions: the protocol page that compiles.

    client to server                                   server to client
    submit-permissions        method, stamp?
    bind      appid, side, client_version?             welcome     welcome
    list                                               nameplates  nameplates: [{id}]
    allocate                                           allocated   nameplate
    claim     nameplate                                claimed     mailbox
    release   nameplate?                               released
    open      mailbox                                  message     side, phase, body, id, server_rx (all stored ones)
    add       phase, body                              message     (to everyone who has the mailbox open)
    close     mailbox?, mood?                          closed
    ping      ping                                     pong        pong
                                                       ack         id (first answer to whatever has a type)
                                                       error       error, orig, hint?

Source: spec 000 "All Message Types", spec 002 for permissions; what shipped clients need beyond it stands in
docs/protocol-mailbox.md.
`id`, `phase`, `body` and `ping` are kept as the very JSON text the client sent, and returned so.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from restante.errors import PeerError

# ── client to server ─────────────────────────────────────────────────────────────────────────────

NULL: Final = Raw(b"null")


class Message(msgspec.Struct, tag_field="type", tag=str.lower, frozen=True, gc=False, kw_only=True):
    """What every command may carry: an `id` that its ack and its response echo. Unknown keys are ignored."""

    id: Raw = NULL


LONGEST: Final = 500
"""Characters of an app id, a side, a mailbox id, a mood: they are kept with every mailbox and every usage record. The
longest that are known, app ids with a domain name, have some 50."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST)]


class Submit(Message, frozen=True, gc=False, kw_only=True, tag="submit-permissions"):
    method: Raw | UnsetType = UNSET
    stamp: Raw | UnsetType = UNSET


class SubmitOne(Submit, frozen=True, gc=False, kw_only=True, tag="submit-permission"):
    """The same: the specification has the plural, the client that does it (magic-wormhole.rs) the singular."""


class Bind(Message, frozen=True, gc=False, kw_only=True):
    appid: Name
    side: Name
    client_version: Raw | UnsetType = UNSET


class List(Message, frozen=True, gc=False, kw_only=True):
    pass


class Allocate(Message, frozen=True, gc=False, kw_only=True):
    pass


class Claim(Message, frozen=True, gc=False, kw_only=True):
    # ASCII digits only: the reference's ^\d+$ also takes "1\n" and Arabic digits (server.py:9, 0.8.0).
    nameplate: Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,40}\Z")]


class Release(Message, frozen=True, gc=False, kw_only=True):
    nameplate: str | UnsetType = UNSET


class Open(Message, frozen=True, gc=False, kw_only=True):
    mailbox: Name


class Add(Message, frozen=True, gc=False, kw_only=True):
    phase: Raw
    body: Raw


class Close(Message, frozen=True, gc=False, kw_only=True):
    mailbox: Name | UnsetType = UNSET
    mood: Name | None = None


class Ping(Message, frozen=True, gc=False, kw_only=True):
    ping: Raw


Received = Submit | SubmitOne | Bind | List | Allocate | Claim | Release | Open | Add | Close | Ping
KINDS: Final[dict[str, type[Message]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Submit, SubmitOne, Bind, List, Allocate, Claim, Release, Open, Add, Close, Ping)
}


class _Mistyped:
    """Stands for a value of a wrong type; equal to nothing."""

    def __repr__(self) -> str:
        return "MISTYPED"


MISTYPED: Final = _Mistyped()


class Malformed:
    """A JSON object that is not a message: it is answered with an error, never cut.

    `kind` is the message type, "" for one we do not know, None where the key is missing. `missing` and
    `mistyped` are the words for the first required key that is absent and the first value of a wrong type.
    `nameplate` and `mailbox` are strings, UNSET or MISTYPED, for the checks that compare them.
    """

    __slots__ = ("id", "kind", "mailbox", "missing", "mistyped", "nameplate")

    def __init__(self, kind: str | None, fields: dict[str, Raw]) -> None:
        self.kind = kind
        self.id = fields.get("id", NULL)
        self.nameplate = _name(fields, "nameplate")
        self.mailbox = _name(fields, "mailbox")
        self.missing: str | None = None
        self.mistyped: str | None = None
        for field in msgspec.structs.fields(KINDS[kind]) if kind else ():
            if field.encode_name not in fields:
                if field.required and self.missing is None:
                    # The reference's words (server_websocket.py:203-303, 0.8.0): "missing" for add alone.
                    form = "missing '{1}'" if kind == "add" else "{0} requires '{1}'"
                    self.missing = form.format(kind, field.encode_name)
            elif self.mistyped is None and not _fits(fields[field.encode_name], field.type):
                wanted = "a string of 1 to 40 digits" if kind == "claim" else _wanted(fields[field.encode_name])
                self.mistyped = f"{kind}: '{field.encode_name}' must be {wanted}"


def _wanted(raw: Raw) -> str:
    return f"a string of at most {LONGEST} characters" if _fits(raw, str) else "a string"


_decode: Final = msgspec.json.Decoder(Received).decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any: Final = msgspec.json.decode


def _fits(raw: Raw, wanted: Any) -> bool:
    try:
        _decode_any(raw, type=wanted)
    except msgspec.ValidationError:
        return False
    return True


def _name(fields: dict[str, Raw], key: str) -> str | UnsetType | _Mistyped:
    if key not in fields:
        return UNSET
    return _decode_any(fields[key], type=str) if _fits(fields[key], str) else MISTYPED


def parse(text: str) -> Received | Malformed:
    """Read one frame.

    Raises PeerError(1007) for what is not JSON, PeerError(1003) for JSON that is not an object.
    """
    try:
        message: Received = _decode(text)
    except msgspec.ValidationError:
        pass  # a JSON value, but not one of our messages: find out why, off the fast path
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(1007, f"not JSON: {error}") from None
    else:
        return message
    try:
        fields = _decode_fields(text)
    except msgspec.ValidationError:
        raise PeerError(1003, "not a JSON object") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(1007, f"not JSON: {error}") from None
    if "type" not in fields:
        return Malformed(None, fields)
    try:
        kind = _decode_any(fields["type"], type=str)
    except msgspec.ValidationError:
        kind = ""
    return Malformed(kind if kind in KINDS else "", fields)


# ── server to client ─────────────────────────────────────────────────────────────────────────────


class Reply(msgspec.Struct, tag_field="type", tag=str.lower, gc=False):
    """What we say. `server_tx` is not here: `stamp` adds it when the frame leaves."""


class Welcome(Reply, gc=False):
    welcome: dict[str, Any]


class Ack(Reply, gc=False):
    id: Raw


class Direct(Reply, gc=False):
    """A direct response: repeats the command's `id` and says when it came (spec 000, the Hint)."""

    id: Raw
    server_rx: float


class Nameplates(Direct, gc=False):
    nameplates: Raw


class Allocated(Direct, gc=False):
    nameplate: str


class Claimed(Direct, gc=False):
    mailbox: str


class Released(Direct, gc=False):
    pass


class Closed(Direct, gc=False):
    pass


class Pong(Direct, gc=False):
    pong: Raw


class Delivery(Reply, tag="message", gc=False):
    """A stored message, to whoever has the mailbox open. `id` and `server_rx` are those of the `add`."""

    side: str
    phase: Raw
    body: Raw
    server_rx: float
    id: Raw


class Error(Reply, gc=False):
    error: str
    orig: Raw
    hint: str | UnsetType = UNSET
    """What to do about it, for people. The words of `error` are for programs, and are always the same."""


_encode: Final = msgspec.json.Encoder().encode


def encode(reply: Reply) -> bytes:
    """Encode a reply, all but its end: `encode(r) + stamp(tx)` is the frame's payload."""
    return _encode(reply)[:-1]


def stamp(server_tx: float) -> bytes:
    """Close an encoded reply with the time at which it leaves: seconds since 1970."""
    return b',"server_tx":%.6f}' % server_tx
