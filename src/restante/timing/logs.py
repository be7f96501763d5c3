"""Reads one event of a client's timing log, or one line of a server's trace. Pure.

A client's log contains everything that both sides sent: sides, nameplates, the mailbox, the messages and, if the user
typed it, the code. Only times, ids of commands, sides and the words listed below are read. Any other word is replaced
by UNLISTED, an unknown message type by "". Formats: magic-wormhole 0.24.0, timing.py; restante.mailbox.server.trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

# ── Cuts a client's timing log into its events. The log is a JSON list, and may be damaged or cut off ───
# The list is cut at its commas, and each piece is parsed by itself, so that a bad event does not affect the others.


_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string (RFC 8259 section 7), a string that does not end, or a structural character."""

_SPACE: Final = b" \t\n\r"
"""The whitespace of JSON (RFC 8259 section 2)."""


class EventItem(NamedTuple):
    """An event, or the bytes in the place of one."""

    at: int
    """Offset in the file."""
    raw: bytes
    fault: str | None = None


def log_items(log: bytes) -> Iterator[EventItem]:
    """Yield the events of a log, and the bytes that cannot be one, to its end. Events are not parsed."""
    start = len(log) - len(log.lstrip(_SPACE))
    if log[start : start + 1] != b"[":
        yield EventItem(start, log[start:], NOT_A_LOG)
        return
    depth, start, first = 0, start + 1, True
    for token in _TOKEN.finditer(log, start - 1):
        match token[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}" if depth > 1:
                depth -= 1
            case b"]":
                if not first or log[start : token.start()].strip(_SPACE):
                    yield _cut(log, start, token.start())
                rest = _cut(log, token.end(), len(log))
                if rest.raw:
                    yield rest._replace(fault=NOT_A_LOG)
                return
            case b"," if depth == 1:
                yield _cut(log, start, token.start())
                start, first = token.end(), False
            case b'"' | b"}":
                break
    yield _cut(log, start, len(log))._replace(fault=NOT_A_LOG)


def _cut(log: bytes, start: int, stop: int) -> EventItem:
    raw = log[start:stop]
    return EventItem(start + len(raw) - len(raw.lstrip(_SPACE)), raw.strip(_SPACE))


# ── records ───────────────────────────────────────────────────────────────────────────────────────


NOT_JSON: Final = "not JSON"
NOT_A_LOG: Final = "not a timing log"
MISSING_VALUE: Final = "missing value"
WRONG_TYPE: Final = "wrong type"

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

ROLE_OF_COMMAND: Final = {"cmd_send": "sender", "cmd_receive": "receiver"}
"""What a client is, by the `which` of its events `import` (wormhole) and `command dispatch` (restante)."""

MAX_ID_CHARACTERS: Final = 100
"""Characters that an id may have, as in a trace (restante.mailbox.server.trace); longer ids are dropped. Clients' ids
have four."""

JSON_NULL: Final = Raw(b"null")


class TraceLine(msgspec.Struct):
    """A command in a server's trace. Times are seconds since 1970 by the server's clock."""

    connection: int
    command: str | None
    """The message's type; "" if it is unknown, None if it is missing."""
    id: str | None
    """The command's id, which its client chose. None: it has none, or it is not a short text or a number."""
    server_rx: float
    commit_began: float | None
    """When the commit of the change began. None: the command changed nothing, or the trace does not say it."""
    commit: float | None
    """When the change was on disk. None: the command changed nothing."""
    server_tx: float | None
    """When the server sent the answer. None: it sent none."""


class Event(msgspec.Struct):
    """An event in a client's timing log. `start` and `stop` are seconds since 1970 by the client's clock."""

    name: str
    start: float
    stop: float | None
    """None: the event has no duration, or did not end."""
    waiting: str | None
    """What the client waited for: user, crypto or UNLISTED. None: for nothing."""
    command: str | None
    """Type of the message that was sent or received, as in TraceLine. None: the event is not one."""
    id: str | None
    """Id of that message, as in TraceLine."""
    phase: str | None
    """Phase of that message. None: it has none."""
    side: str | None
    """The side of this client, for a message. It is for matching only, and is in no output."""
    author: str | None
    """The side that added the message, for one from a mailbox. It is for matching only, and is in no output."""
    server_rx: float | None
    """When the server received the message, by the server's clock, as the frame says. None: it does not say it."""
    server_tx: float | None
    """When the server sent the message, likewise."""
    role: str | None = None
    """A value of ROLE_OF_COMMAND, if the event says what the client is."""

    @property
    def own(self) -> bool | None:
        """Whether this client sent the received message. None: it is not a message from a mailbox."""
        return None if self.side is None or self.author is None else self.side == self.author


class _TraceLine(msgspec.Struct):
    connection: int
    command: str | None
    id: Raw
    server_rx: float
    commit_began: float | None = None
    commit: float | None = None
    server_tx: float | None = None


class _Event(msgspec.Struct):
    name: str
    start: float
    stop: float | None = None
    details: Raw = Raw(b"{}")


class _Details(msgspec.Struct):
    waiting: Raw = JSON_NULL
    which: Raw = JSON_NULL
    side: Raw = msgspec.field(default=JSON_NULL, name="_side")


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


READ_ERRORS: Final = (ValueError, RecursionError)
"""The exceptions that a bad event or line raises; msgspec's errors are ValueErrors."""

_line: Final = msgspec.json.Decoder(_TraceLine).decode
_event: Final = msgspec.json.Decoder(_Event).decode
_details: Final = msgspec.json.Decoder(_Details).decode
_sent: Final = msgspec.json.Decoder(_Message).decode
_received: Final = msgspec.json.Decoder(_Received).decode
_plain: Final = msgspec.json.Decoder(str | int | float).decode


def read_line(line: bytes) -> TraceLine:
    """Return a line of a trace. Raises READ_ERRORS."""
    read = _line(line)
    command = read.command if read.command is None or read.command in COMMAND_TYPES else ""
    return TraceLine(
        read.connection, command, _id(read.id), read.server_rx, read.commit_began, read.commit, read.server_tx
    )


def read_event(item: bytes | Raw) -> Event:
    """Return an event of a log. Raises READ_ERRORS."""
    read = _event(item)
    details = _details(read.details)
    said, known = _Message(), REPLY_TYPES
    side = author = role = None
    if read.name in {"import", "command dispatch"}:
        role = ROLE_OF_COMMAND.get(_text(details.which) or "")
    if read.name == "ws_send":
        said, known = _sent(read.details), COMMAND_TYPES
        said.server_rx = said.server_tx = None  # a client cannot know them
        side = _text(details.side)
    elif read.name == "ws_receive":
        said = _received(read.details).message
        side, author = _text(details.side), _text(said.side)
    return Event(
        read.name if read.name in EVENT_NAMES else UNLISTED,
        read.start,
        read.stop,
        _word(details.waiting, lambda word: word in WAITS_FOR),
        _kind(said.type, known),
        _id(said.id),
        _word(said.phase, lambda word: MESSAGE_PHASE.fullmatch(word) is not None),
        side,
        author,
        said.server_rx,
        said.server_tx,
        role,
    )


def fault_of(error: Exception) -> str:
    """Return what is wrong with an event or a line that raised one of READ_ERRORS."""
    if not isinstance(error, msgspec.ValidationError):
        return NOT_JSON
    return MISSING_VALUE if "missing required field" in str(error) else WRONG_TYPE


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
    return None if value is None or len(str(value)) > MAX_ID_CHARACTERS else str(value)


def _kind(said: Raw, known: frozenset[str]) -> str | None:
    """Return a message's type as the trace has it: "" if it is unknown, None if it is missing."""
    word = _text(said)
    return word if word is None or word in known else ""


def _word(said: Raw, known: Callable[[str], bool]) -> str | None:
    """Return a word if it is known, else UNLISTED; None if it is missing."""
    if said == JSON_NULL:
        return None
    word = str(_value(said))
    return word if known(word) else UNLISTED
