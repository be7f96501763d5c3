"""The trace: when each command came, was durable, and was answered, as JSON lines for a timing tool.

    {"connection": 7, "command": "add", "id": "a3f1", "server_rx": …, "commit": …, "server_tx": …}

One line per command. `connection` counts connections since the server started, `id` is the command's own; times are
seconds since 1970. `commit` is null for what changed nothing. `server_tx` is that of its ack, its response, and
its deliveries: the wire's `server_tx`, so that both ends' logs can be joined with it. No names, no bodies; but an id
is the client's own choice.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from restante.common.errors import Misuse
from restante.common.logs import log
from restante.mailbox.protocol.messages import Malformed, Received

MAX_ID_CHARACTERS: Final = 100
"""Characters of an id that are written: clients' are four."""


class TraceLine(msgspec.Struct):
    """One line."""

    connection: int
    command: str | None
    """The message's type; "" for one that is not known, None for what had none."""
    id: str | int | float | None
    server_rx: float
    commit: float | None = None
    server_tx: float | None = None


class TraceFile:
    """A trace, appended to a file. Raises Misuse where that cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[TraceLine] = []
        self._failing = False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise Misuse(f"cannot write {path}: {error.strerror} (--trace)") from error

    def took(self, connection: int, message: Received | Malformed | None, server_rx: float) -> None:
        if message is not None:
            kind = message.kind if isinstance(message, Malformed) else str(message.__struct_config__.tag)
            self._lines.append(TraceLine(connection, kind, _plain(message.id), server_rx))

    def said(self, commit: float | None, server_tx: float) -> None:
        if not self._lines:
            return
        for line in self._lines:
            line.commit, line.server_tx = commit, server_tx
        text = b"".join(self._encode(line) + b"\n" for line in self._lines)
        self._lines = []
        try:
            self._file.write(text)
        except OSError as error:
            if not self._failing:
                log.warning("the trace could not be written; some of it is missing", error=error.strerror)
            self._failing = True
        else:
            self._failing = False

    def reopen(self) -> None:
        """Go on in a new file, where the old one was moved away."""
        try:
            fresh = self._path.open("ab", buffering=0)
        except OSError as error:
            log.warning("the trace could not be opened anew", error=error.strerror)
            return
        old, self._file = self._file, fresh
        with contextlib.suppress(OSError):
            old.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _plain(said: Raw) -> str | int | float | None:
    """Give an id that is text or a number, as clients' are; anything else could be anything, on many lines."""
    try:
        value = msgspec.json.decode(said, type=str | int | float)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return value if not isinstance(value, str) or len(value) <= MAX_ID_CHARACTERS else None
