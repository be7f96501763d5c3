"""Events of a client's timing log, and lines of a server's trace. Pure.

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

NOT_JSON: Final = "not JSON"
NOT_A_LOG: Final = "not a timing log"
MISSING_VALUE: Final = "missing value"
WRONG_TYPE: Final = "wrong type"

EVENT_NAMES: Final = frozenset(
    (
        "import",
        "command dispatch",
        "exit",
        "print",
        "input code",
        "permission",
        "ws_send",
        "ws_receive",
        "pake1",
        "pake2",
        "get ack",
        "send ack",
        "tx file",
        "rx file",
        "unpack zip",
        "transit",
        "transit connect",
        "transit connected",
        "find tor",
        "launch tor",
    )
)
"""The names of events (magic-wormhole 0.24.0, all calls of `timing.add`)."""

COMMAND_TYPES: Final = frozenset(
    (
        "submit-permissions",
        "submit-permission",
        "bind",
        "list",
        "allocate",
        "claim",
        "release",
        "open",
        "add",
        "close",
        "ping",
    )
)
"""The types of commands (restante.mailbox.protocol.messages)."""

REPLY_TYPES: Final = frozenset(
    (
        "welcome",
        "ack",
        "nameplates",
        "allocated",
        "claimed",
        "released",
        "closed",
        "pong",
        "message",
        "error",
    )
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


class _RawTraceLine(msgspec.Struct):
    connection: int
    command: str | None
    id: Raw
    server_rx: float
    commit_began: float | None = None
    commit: float | None = None
    server_tx: float | None = None


class _RawEvent(msgspec.Struct):
    name: str
    start: float
    stop: float | None = None
    details: Raw = Raw(b"{}")


class _RawDetails(msgspec.Struct):
    waiting: Raw = JSON_NULL
    which: Raw = JSON_NULL
    side: Raw = msgspec.field(default=JSON_NULL, name="_side")


class _RawMessage(msgspec.Struct):
    """A message that was sent or received."""

    type: Raw = JSON_NULL
    id: Raw = JSON_NULL
    phase: Raw = JSON_NULL
    side: Raw = JSON_NULL
    server_rx: float | None = None
    server_tx: float | None = None


class _RawReceived(msgspec.Struct):
    message: _RawMessage


READ_ERRORS: Final = (ValueError, RecursionError)
"""The exceptions that a bad event or line raises; msgspec's errors are ValueErrors."""

_decode_line: Final = msgspec.json.Decoder(_RawTraceLine).decode
_decode_event: Final = msgspec.json.Decoder(_RawEvent).decode
_decode_details: Final = msgspec.json.Decoder(_RawDetails).decode
_decode_sent: Final = msgspec.json.Decoder(_RawMessage).decode
_decode_received: Final = msgspec.json.Decoder(_RawReceived).decode
_decode_scalar: Final = msgspec.json.Decoder(str | int | float).decode


def read_line(line: bytes) -> TraceLine:
    """Return a line of a trace. Raises READ_ERRORS."""
    raw = _decode_line(line)
    command = raw.command if raw.command is None or raw.command in COMMAND_TYPES else ""
    times = raw.server_rx, raw.commit_began, raw.commit, raw.server_tx
    return TraceLine(raw.connection, command, _id_text(raw.id), *times)


def read_event(item: bytes | Raw) -> Event:
    """Return an event of a log. Raises READ_ERRORS."""
    event = _decode_event(item)
    details = _decode_details(event.details)
    message, known_types = _RawMessage(), REPLY_TYPES
    side = author = role = None
    if event.name in {"import", "command dispatch"}:
        role = ROLE_OF_COMMAND.get(_text_or_none(details.which) or "")
    if event.name == "ws_send":
        message, known_types = _decode_sent(event.details), COMMAND_TYPES
        message.server_rx = message.server_tx = None  # a client cannot know them
        side = _text_or_none(details.side)
    elif event.name == "ws_receive":
        message = _decode_received(event.details).message
        side, author = _text_or_none(details.side), _text_or_none(message.side)
    return Event(
        event.name if event.name in EVENT_NAMES else UNLISTED,
        event.start,
        event.stop,
        _listed_word(details.waiting, lambda word: word in WAITS_FOR),
        _message_type(message.type, known_types),
        _id_text(message.id),
        _listed_word(message.phase, lambda word: MESSAGE_PHASE.fullmatch(word) is not None),
        side,
        author,
        message.server_rx,
        message.server_tx,
        role,
    )


def fault_of(error: Exception) -> str:
    """Return what is wrong with an event or a line that raised one of READ_ERRORS."""
    if not isinstance(error, msgspec.ValidationError):
        return NOT_JSON
    # msgspec 0.22 has one class for both, and its errors have nothing but a text.
    return MISSING_VALUE if "missing required field" in str(error) else WRONG_TYPE


def _scalar(raw: Raw) -> Any:
    """Return a text or a number; None for anything else."""
    try:
        return _decode_scalar(raw)
    except (ValueError, RecursionError):
        return None


def _text_or_none(raw: Raw) -> str | None:
    value = _scalar(raw)
    return value if isinstance(value, str) else None


def _id_text(raw: Raw) -> str | None:
    """Return an id as the trace has it: clients may send numbers."""
    value = _scalar(raw)
    return None if value is None or len(str(value)) > MAX_ID_CHARACTERS else str(value)


def _message_type(raw: Raw, known_types: frozenset[str]) -> str | None:
    """Return a message's type as the trace has it: "" if it is unknown, None if it is missing."""
    message_type = _text_or_none(raw)
    return message_type if message_type is None or message_type in known_types else ""


def _listed_word(raw: Raw, is_listed: Callable[[str], bool]) -> str | None:
    """Return a word if it is listed, else UNLISTED; None if it is missing."""
    if raw == JSON_NULL:
        return None
    word = str(_scalar(raw))
    return word if is_listed(word) else UNLISTED


# ── items ─────────────────────────────────────────────────────────────────────────────────────────
# A log is a JSON list, and may be damaged or cut off. It is cut at its commas, and each piece is parsed by itself, so
# that a bad event does not affect the others.


_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string (RFC 8259 section 7), a string that does not end, or a structural character."""

JSON_SPACE: Final = b" \t\n\r"
"""The whitespace of JSON (RFC 8259 section 2)."""


class EventItem(NamedTuple):
    """An event, or the bytes between two commas that are none."""

    offset: int
    """Offset in the file."""
    raw: bytes
    fault: str | None = None


def log_items(log: bytes) -> Iterator[EventItem]:
    """Yield the events of a log, and the bytes that cannot be one, to its end. Events are not parsed."""
    start = len(log) - len(log.lstrip(JSON_SPACE))
    if log[start : start + 1] != b"[":
        yield EventItem(start, log[start:], NOT_A_LOG)
        return
    depth, start, empty = 0, start + 1, True
    for token in _TOKEN.finditer(log, start - 1):
        match token[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}" if depth > 1:
                depth -= 1
            case b"]":
                if not empty or log[start : token.start()].strip(JSON_SPACE):
                    yield _cut_item(log, start, token.start())
                remainder = _cut_item(log, token.end(), len(log))
                if remainder.raw:
                    yield remainder._replace(fault=NOT_A_LOG)
                return
            case b"," if depth == 1:
                yield _cut_item(log, start, token.start())
                start, empty = token.end(), False
            case b'"' | b"}":
                break
    yield _cut_item(log, start, len(log))._replace(fault=NOT_A_LOG)


def _cut_item(log: bytes, start: int, stop: int) -> EventItem:
    raw = log[start:stop]
    return EventItem(start + len(raw) - len(raw.lstrip(JSON_SPACE)), raw.strip(JSON_SPACE))
