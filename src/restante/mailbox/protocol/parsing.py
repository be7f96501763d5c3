"""Parses the text of a frame into a message, or finds what is wrong with it.

A short message is decoded at once. What is slower than that is not on the fast path: finding out why a message is
invalid, and messages of many characters, of which only `add` and `ping` are allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from restante.common.errors import PeerError
from restante.mailbox.protocol.frame_text import FrameText
from restante.mailbox.protocol.messages import KINDS, MAX_NAME_CHARACTERS, NULL, Add, Name, Ping, Received
from restante.mailbox.protocol.refusals import TOO_EXPENSIVE

MAX_SHORT_MESSAGE_CHARACTERS: Final = 64 * 1024
"""Maximum length of a message other than `add` and `ping`, which carry JSON of the client. Real ones have about 200
characters."""

MAX_LONG_MESSAGE_SIGNS: Final = 32 * 1024
"""Commas, opening brackets, backslashes and white space together in a message of more than
MAX_SHORT_MESSAGE_CHARACTERS, also within strings. A comma or bracket takes up to 50 ns, a backslash in a key 7 ns, a
space between values 4 ns, so that 2 MiB of any would take 8 ms and more. Clients send hex, which has none."""

NUL_ESCAPE: Final[dict[type, Any]] = {str: "\\u0000", bytes: b"\\u0000"}
"""How U+0000 is written in a text: JSON has no other form (RFC 8259 section 7). Names may not have it, because
PostgreSQL does not store it (postgresql.org/docs/18/datatype-character.html)."""

_BACKSLASH: Final[dict[type, Any]] = {str: "\\", bytes: b"\\"}
"""To look for one character takes a tenth of the time."""

_SLOW_SIGNS: Final = b",[{\\ \t\r\n"


_FEWER_SIGNS: Final = (
    f"a long message has at most {MAX_LONG_MESSAGE_SIGNS} commas, opening brackets, backslashes and spaces together"
)

MAX_DECODED_BYTES: Final = 6 * MAX_NAME_CHARACTERS + 2
"""Maximum size of a JSON value that the server decodes: a name of MAX_NAME_CHARACTERS in which each character is a
\\uXXXX escape. A longer value is either passed on undecoded or of a wrong type. Decoding nested lists of 2 MiB would
take 200 ms."""


class _Mistyped:
    """The type of MISTYPED, which stands for a value of a wrong type and equals no other value."""

    def __repr__(self) -> str:
        return "MISTYPED"


MISTYPED: Final = _Mistyped()


class _Fields(msgspec.Struct, gc=False):
    """The values of all keys that any message type has.

    This is a struct, because the decoder then skips unknown keys: decoding 200,000 keys into a dictionary takes 60
    ms.
    """

    type: Raw | UnsetType = UNSET
    id: Raw = NULL
    method: Raw | UnsetType = UNSET
    stamp: Raw | UnsetType = UNSET
    appid: Raw | UnsetType = UNSET
    side: Raw | UnsetType = UNSET
    client_version: Raw | UnsetType = UNSET
    nameplate: Raw | UnsetType = UNSET
    mailbox: Raw | UnsetType = UNSET
    phase: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET
    mood: Raw | UnsetType = UNSET
    ping: Raw | UnsetType = UNSET


class _LongFields(msgspec.Struct, gc=False):
    """The values of the keys of `add` and `ping`. Decoding is slower the more keys the struct has."""

    id: Raw = NULL
    type: Raw | UnsetType = UNSET
    phase: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET
    ping: Raw | UnsetType = UNSET


@final
class Malformed:
    """A JSON object that is not a valid message. The server answers it with an error and keeps the connection open.

    `kind` is the message type, "" for an unknown type, None if the key is missing. `missing` is the error for the
    first required key that is absent, `mistyped` the error for the first value of a wrong type. `nameplate` and
    `mailbox` are strings, UNSET or MISTYPED, for the checks that compare them.
    """

    __slots__ = ("id", "kind", "mailbox", "missing", "mistyped", "nameplate")

    def __init__(self, kind: str | None, fields: _Fields) -> None:
        self.kind = kind
        self.id = fields.id
        self.nameplate = _name(fields.nameplate)
        self.mailbox = _name(fields.mailbox)
        self.missing: str | None = None
        self.mistyped: str | None = None
        for name, required, decode in _FIELDS_OF[kind] if kind else ():
            value = getattr(fields, name)
            if value is UNSET:
                if required and self.missing is None:
                    # The reference's errors (server_websocket.py:203-303, 0.8.0): "missing" for `add` only.
                    form = "missing '{1}'" if kind == "add" else "{0} requires '{1}'"
                    self.missing = form.format(kind, name)
            elif self.mistyped is None and not _fits(value, decode):
                expected = "a string of 1 to 40 digits" if kind == "claim" else _expected(value)
                self.mistyped = f"{kind}: '{name}' must be {expected}"


def _expected(raw: Raw) -> str:
    if bytes(memoryview(raw)[:1]) != b'"':
        return "a string"
    without = " without NUL" if NUL_ESCAPE[bytes] in bytes(raw) else ""
    return f"a string of at most {MAX_NAME_CHARACTERS} characters{without}"


_Decode = Callable[[Raw], Any]
_F = TypeVar("_F", _Fields, _LongFields)

_decode: Final = msgspec.json.Decoder(Received).decode
_decode_fields: Final = msgspec.json.Decoder(_Fields).decode
_decode_long: Final = msgspec.json.Decoder(_LongFields).decode
_decode_any: Final = msgspec.json.Decoder(Any).decode
_decode_string: Final = msgspec.json.Decoder(str).decode
_decode_name: Final = msgspec.json.Decoder(Name).decode

_FIELDS_OF: Final[dict[str, tuple[tuple[str, bool, _Decode | None], ...]]] = {
    tag: tuple(
        (
            field.name,
            field.required,
            None if field.type in (Raw, Raw | UnsetType) else msgspec.json.Decoder(field.type).decode,
        )
        for field in msgspec.structs.fields(kind)
    )
    for tag, kind in KINDS.items()
}
"""For each message type its keys. For each key: whether it is required, and the decoder of its value (None: any value
is valid)."""


def value_of(raw: Raw, decode: _Decode = _decode_any) -> Any:
    """Decode a short value. Raises ValueError if it is longer than MAX_DECODED_BYTES or of a wrong type."""
    if len(raw) > MAX_DECODED_BYTES:
        raise ValueError("the value is too long")
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:  # also for numbers out of range, such as 1e999
        raise ValueError(str(error)) from None


def _fits(raw: Raw, decode: _Decode | None) -> bool:
    if decode is None:
        return True
    try:
        value = value_of(raw, decode)
    except ValueError:
        return False
    return type(value) is not str or "\0" not in value


def _name(raw: Raw | UnsetType) -> str | UnsetType | _Mistyped:
    if raw is UNSET:
        return UNSET
    try:
        name: str = value_of(raw, _decode_name)
    except ValueError:
        return MISTYPED
    return name


def parse(text: FrameText) -> Received | Malformed:
    """Parse the text of one frame.

    Raises PeerError(1007) if it is not JSON, PeerError(1003) if it is JSON but not an object.
    """
    if len(text) > MAX_SHORT_MESSAGE_CHARACTERS:
        return _parse_long(text)
    try:
        message: Received = _decode(text)
    except msgspec.ValidationError:
        # JSON, but not a valid message. Finding out why is slower, so it is not on the fast path.
        return _malformed(_decoded(text, _decode_fields))
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(1007, f"not JSON: {error}") from None
    if NUL_ESCAPE[type(text)] in text:
        malformed = _malformed(_decoded(text, _decode_fields))
        if malformed.mistyped:
            return malformed
    return message


def attempt(text: FrameText) -> Received | Malformed | PeerError:
    """Parse a text. Return its message, or the error if it is not a message."""
    if len(text) <= MAX_SHORT_MESSAGE_CHARACTERS:
        try:
            message: Received = _decode(text)
        except (msgspec.DecodeError, RecursionError):
            pass  # `parse` finds out why
        else:
            if _BACKSLASH[type(text)] not in text or NUL_ESCAPE[type(text)] not in text:
                return message
    try:
        return parse(text)
    except PeerError as error:  # a new one, because the traceback of this one holds the text
        return PeerError(error.code, error.text, hint=error.hint, reason=error.reason)


def _parse_long(text: FrameText) -> Received | Malformed:
    """Parse a text of more than MAX_SHORT_MESSAGE_CHARACTERS in one pass: 2 MiB take at most 5 ms.

    Raises PeerError(1009) for a text with many signs that are expensive to decode, whatever it says.
    """
    payload = text.encode() if isinstance(text, str) else text
    signs = len(payload) - len(payload.translate(None, _SLOW_SIGNS))  # to count each would take twice as long
    if signs > MAX_LONG_MESSAGE_SIGNS:
        raise TOO_EXPENSIVE.error(1009, _FEWER_SIGNS)
    long = _decoded(payload, _decode_long)
    fields = _Fields(type=long.type, id=long.id, phase=long.phase, body=long.body, ping=long.ping)
    malformed = _malformed(fields)
    if malformed.kind == "add" and not malformed.missing:
        return Add(id=fields.id, phase=cast(Raw, fields.phase), body=cast(Raw, fields.body))
    if malformed.kind == "ping" and not malformed.missing:
        return Ping(id=fields.id, ping=cast(Raw, fields.ping))
    if malformed.kind and malformed.kind not in ("add", "ping"):
        malformed.missing = None  # _LongFields does not have this message's keys
        malformed.mistyped = (
            f"{malformed.kind}: only 'add' and 'ping' may have more than {MAX_SHORT_MESSAGE_CHARACTERS} characters"
        )
    return malformed


def _decoded(text: FrameText, decode: Callable[[FrameText], _F]) -> _F:
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise PeerError(1003, "not a JSON object") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(1007, f"not JSON: {error}") from None


def _malformed(fields: _Fields) -> Malformed:
    if fields.type is UNSET:
        return Malformed(None, fields)
    try:
        kind = value_of(fields.type, _decode_string)
    except ValueError:
        kind = ""
    return Malformed(kind if kind in KINDS else "", fields)
