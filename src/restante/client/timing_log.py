"""A timing log: what a wormhole did, and when, in the form of `wormhole --dump-timing` (magic-wormhole timing.py).

    [{"name": "ws_send", "start": …, "stop": null, "details": {"_side": …, "type": "add", "id": …, "phase": …}}, …]

The Python client logs whole messages: nameplates, mailboxes, bodies, and the code if it was typed. This log has only
what tells messages apart: their type, id, phase and side, and the server's times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from restante.common.atomic_file import write_output
from restante.common.errors import Misuse, StoreError, plain

MAX_EVENTS: Final = 500_000
"""Events of a log. Further ones are counted. A transfer has some dozens, a chat of months has more."""

USER: Final = "user"
"""The value of `waiting` for a span in which the client waits for its user."""

CRYPTO: Final = "crypto"
"""The same, for the computations of the key exchange."""


class TimedEvent(msgspec.Struct):
    """One thing that happened, in seconds since 1970. `stop` is None if it has no duration, or did not end."""

    name: str
    start: float
    stop: float | None
    details: dict[str, Any]


class _LoggedMessage(msgspec.Struct, omit_defaults=True):
    """The keys of a message that the log has."""

    type: str | None = None
    id: str | None = None
    phase: str | None = None
    side: str | None = None
    server_rx: float | None = None
    server_tx: float | None = None


_decode: Final = msgspec.json.Decoder(_LoggedMessage).decode


class TimingLog:
    """What happened in one wormhole, and when. Give it to `Wormhole.create`, and call `write` at the end."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin a log. `clock` returns seconds since 1970."""
        self.clock: Callable[[], float] = clock
        """Returns the seconds since 1970."""
        self.left_out: int = 0
        """Events beyond the maximum, which are not in the log."""
        self._events: list[TimedEvent] = []

    def event(self, name: str, **details: Any) -> None:
        """Log that something happens now."""
        self.add(name, self.clock(), None, **details)

    @contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """Log how long the block takes, even if it raises an error."""
        start = self.clock()
        try:
            yield
        finally:
            self.add(name, start, self.clock(), **details)

    def add(self, name: str, start: float, stop: float | None, **details: Any) -> None:
        """Log something that is over. It may be called from any thread."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(TimedEvent(name, start, stop, details))
        else:
            self.left_out += 1

    def sent(self, side: str, frame: bytes, command_id: str) -> bytes:
        """Log a command. Return it with an id, which the server repeats in its answers and its trace."""
        frame = b'{"id":"' + command_id.encode() + b'",' + frame[1:]
        self.event("ws_send", _side=side, **_logged_keys(frame))
        return frame

    def received(self, side: str, frame: bytes) -> None:
        """Log what the server sent, which may be anything."""
        self.event("ws_receive", _side=side, message=_logged_keys(frame))

    def write(self, path: Path) -> None:
        """Replace a file by the log, in the order in which things began. Raises StoreError."""
        events = sorted(self._events, key=lambda event: event.start)
        try:
            write_output(path, b"[\n" + b",\n".join(map(msgspec.json.encode, events)) + b"\n]\n")
        except OSError as error:
            raise StoreError(f"cannot write the timing log {path}: {plain(error)}") from error


def check_timing_path(path: Path) -> None:
    """Raise Misuse if no timing log can be written at a path."""
    if path.is_dir():
        raise Misuse(f"{path} is a directory: name a file for the timing log")
    if not path.parent.is_dir():
        raise Misuse(f"there is no directory {path.parent} for the timing log")


def span(log: TimingLog | None, name: str, **details: Any) -> AbstractContextManager[None]:
    """Log how long the block takes, if there is a log."""
    return nullcontext() if log is None else log.span(name, **details)


def _logged_keys(frame: bytes) -> dict[str, Any]:
    try:
        message = _decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    keys: dict[str, Any] = msgspec.to_builtins(message)
    return keys
