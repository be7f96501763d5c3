"""Converts a line of a server's trace, or an event of a client's log, to the lake's values or its fault. Pure.

A client's log contains everything that both sides sent: sides, nameplates, the mailbox, the messages and, if the user
typed it, the code. Only times, ids of commands and the words listed below pass from it into the lake. Any other word
is replaced by UNLISTED, an unknown message type by "". Formats: magic-wormhole 0.24.0, timing.py;
restante.mailbox.server.trace.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from restante.pipeline.clean.rules import (
    MICROSECONDS_PER_DAY,
    MISSING_VALUE,
    OUT_OF_RANGE,
    WRONG_TYPE,
    CleanValues,
    Fault,
    Faulty,
    TimeLimits,
    text,
    time,
)

NOT_JSON: Final = "not JSON"
NOT_A_LOG: Final = "not a timing log"

TIMING_FAULTS: Final = (NOT_JSON, NOT_A_LOG, MISSING_VALUE, WRONG_TYPE, OUT_OF_RANGE)
"""All faults of timing. NOT_A_LOG is the fault of a whole file, or of the rest of one."""

EVENT_NAMES: Final = frozenset(
    (
        *("import", "command dispatch", "exit", "print", "input code", "permission"),
        *("ws_send", "ws_receive", "pake1", "pake2", "get ack", "send ack", "tx file", "rx file", "unpack zip"),
        *("transit", "transit connect", "transit connected", "find tor", "launch tor"),
    )
)
"""The names of events (magic-wormhole 0.24.0, all calls of `timing.add`)."""

COMMAND_TYPES: Final = frozenset(
    (
        *("submit-permissions", "submit-permission", "bind", "list", "allocate", "claim", "release", "open", "add"),
        *("close", "ping"),
    )
)
"""The types of commands (restante.mailbox.protocol.messages)."""

REPLY_TYPES: Final = frozenset(
    (*("welcome", "ack", "nameplates", "allocated", "claimed", "released", "closed", "pong", "message", "error"),)
)
"""The types of the server's replies (restante.mailbox.protocol.messages)."""

WAITS_FOR: Final = frozenset(("user", "crypto"))
"""What a client waits for."""

MESSAGE_PHASE: Final = re.compile(r"pake|version|(dilate-)?[0-9]{1,9}")
"""The phases of the messages of known clients. Other applications may choose any name."""

UNLISTED: Final = "other"
"""Replaces a name, a phase or a `waiting` that is not in those lists."""

MAX_ID_CHARACTERS: Final = 100
"""Characters that an id may have, as in a trace (restante.mailbox.server.trace); longer ids are dropped. Clients' ids
have four."""

_BIGINT_LIMIT: Final = 1 << 63
"""A BIGINT is less than this."""

JSON_NULL: Final = Raw(b"null")


class _TraceLine(msgspec.Struct):
    connection: int
    command: str | None
    id: Raw
    server_rx: float
    commit: float | None = None
    server_tx: float | None = None


class _Event(msgspec.Struct):
    name: str
    start: float
    stop: float | None = None
    details: Raw = Raw(b"{}")


class _Details(msgspec.Struct):
    waiting: Raw = JSON_NULL


class _Message(msgspec.Struct):
    """A message that was sent or received."""

    type: Raw = JSON_NULL
    id: Raw = JSON_NULL
    phase: Raw = JSON_NULL
    side: Raw = JSON_NULL
    server_rx: float | None = None
    server_tx: float | None = None


class _Received(msgspec.Struct):
    message: _Message
    side: Raw = msgspec.field(default=JSON_NULL, name="_side")


_CLEAN_ERRORS: Final = (Faulty, ValueError, RecursionError)
"""The exceptions that a bad item raises; msgspec's errors are ValueErrors."""

_line: Final = msgspec.json.Decoder(_TraceLine).decode
_event: Final = msgspec.json.Decoder(_Event).decode
_details: Final = msgspec.json.Decoder(_Details).decode
_sent: Final = msgspec.json.Decoder(_Message).decode
_received: Final = msgspec.json.Decoder(_Received).decode
_plain: Final = msgspec.json.Decoder(str | int | float).decode


def command(line: bytes, within: TimeLimits) -> CleanValues | Fault:
    """Return the columns of `server_commands` from `connection` on, and the day, or the line's fault."""
    try:
        read = _line(line)
        came = time(read.server_rx, within)
    except _CLEAN_ERRORS as error:
        return _fault(error)
    if not 0 <= read.connection < _BIGINT_LIMIT:
        return Fault(OUT_OF_RANGE)
    said = read.command if read.command is None or read.command in COMMAND_TYPES else ""
    return [
        read.connection,
        said,
        _id(read.id),
        read.server_rx,
        read.commit,
        read.server_tx,
        came // MICROSECONDS_PER_DAY,
    ]


def event(item: bytes, within: TimeLimits) -> CleanValues | Fault:
    """Return the columns of `client_events` from `name` on, and the day, or the event's fault."""
    try:
        read = _event(item)
        waiting = _details(read.details).waiting
        said, own = _said(read)
        began = time(read.start, within)
    except _CLEAN_ERRORS as error:
        return _fault(error)
    return [
        read.name if read.name in EVENT_NAMES else UNLISTED,
        read.start,
        read.stop,
        _word(waiting, lambda word: word in WAITS_FOR),
        _kind(said.type, COMMAND_TYPES if read.name == "ws_send" else REPLY_TYPES),
        _id(said.id),
        _word(said.phase, lambda word: MESSAGE_PHASE.fullmatch(word) is not None),
        own,
        said.server_rx,
        said.server_tx,
        began // MICROSECONDS_PER_DAY,
    ]


def _said(read: _Event) -> tuple[_Message, bool | None]:
    """Return the message of an event and, for one from a mailbox, whether this client sent it.

    Raises ValueError, RecursionError.
    """
    if read.name == "ws_send":
        said = _sent(read.details)
        said.server_rx = said.server_tx = None  # a client cannot know them
        return said, None
    if read.name == "ws_receive":
        received = _received(read.details)
        side, whose = _text(received.side), _text(received.message.side)
        return received.message, None if side is None or whose is None else side == whose
    return _Message(), None


def _fault(error: Exception) -> Fault:
    if isinstance(error, Faulty):
        return Fault(error.args[0])
    if not isinstance(error, msgspec.ValidationError):
        return Fault(NOT_JSON)
    return Fault(MISSING_VALUE if "missing required field" in str(error) else WRONG_TYPE)


def _value(said: Raw) -> Any:
    """Return a text or a number; None for anything else."""
    try:
        return _plain(said)
    except (ValueError, RecursionError):
        return None


def _text(said: Raw) -> str | None:
    value = _value(said)
    return value if isinstance(value, str) else None


def _id(said: Raw) -> str | None:
    """Return an id as the trace has it: clients may send numbers."""
    value = _value(said)
    return None if value is None or len(str(value)) > MAX_ID_CHARACTERS else text(str(value))


def _kind(said: Raw, known: frozenset[str]) -> str | None:
    """Return a message's type as the trace has it: "" if it is unknown, None if it is missing."""
    word = _text(said)
    return word if word is None or word in known else ""


def _word(said: Raw, known: Any) -> str | None:
    """Return a word if it is known, else UNLISTED; None if it is missing."""
    if said == JSON_NULL:
        return None
    word = str(_value(said))
    return word if known(word) else UNLISTED
