"""The trace: when each command was received, was on disk, and was answered, as JSON lines for timing tools.

    {"connection": 7, "command": "add", "id": "a3f1", "server_rx": …, "commit_began": …, "commit": …, "server_tx": …}

One line per command. `connection` is the connection's number since the server started, `id` is the command's `id`.
Times are seconds since 1970. `commit_began` and `commit` are null if the command's batch changed nothing but usage
records of binds. `server_tx` is the stamp of the command's ack, response and deliveries, so that the trace can be
joined with both clients' logs. A trace contains no names and no bodies, but clients choose their ids.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from restante.common.errors import Misuse
from restante.common.line_writer import LineWriter
from restante.common.logs import log
from restante.mailbox.protocol.messages import Received
from restante.mailbox.protocol.parsing import Malformed

MAX_ID_CHARACTERS: Final = 100
"""Maximum length of an id in a trace; a longer one becomes null. Shipped clients use ids of four characters."""

_MAX_ID_BYTES: Final = 6 * MAX_ID_CHARACTERS + 2
"""Maximum size of such an id as JSON, if each character is a \\uXXXX escape. To decode 2 MiB would take 10 ms."""


class TraceLine(msgspec.Struct):
    """One line of the trace."""

    connection: int
    command: str | None
    """The message's type; "" for an unknown type, None for a missing one."""
    id: str | int | float | None
    server_rx: float
    commit_began: float | None = None
    commit: float | None = None
    server_tx: float | None = None


def check_path(path: Path, data: Path) -> None:
    """Raise Misuse if no trace can be written there. The data directory need not exist yet."""
    folder = path.parent
    if path.is_dir():
        fault = errno.EISDIR
    elif not folder.exists():
        fault = 0 if data.absolute() == folder.absolute() else errno.ENOENT
    elif not folder.is_dir():
        fault = errno.ENOTDIR
    else:
        fault = 0 if os.access(path if path.exists() else folder, os.W_OK) else errno.EACCES
    if fault:
        raise _unwritable(path, os.strerror(fault))


def _unwritable(path: Path, reason: str | None) -> Misuse:
    return Misuse(f"cannot write {path}: {reason} (--trace)")


class Trace:
    """Records when each command was handled, and writes the lines of each batch by one call of `write`."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[TraceLine] = []

    def add(self, connection: int, message: Received | Malformed | None, server_rx: float) -> None:
        """Record a command that was received; None is a frame that was no message."""
        if message is not None:
            kind = message.kind if isinstance(message, Malformed) else str(message.__struct_config__.tag)
            self._lines.append(TraceLine(connection, kind, _plain(message.id), server_rx))

    def write(self, commit_began: float | None, commit: float | None, server_tx: float) -> None:
        """Write the lines of all commands since the last call, which were answered at `server_tx`."""
        if not self._lines:
            return
        for line in self._lines:
            line.commit_began, line.commit, line.server_tx = commit_began, commit, server_tx
        self._write(b"".join(self._encode(line) + b"\n" for line in self._lines))
        self._lines = []


class TraceFile:
    """The file to which a server's trace is appended, by a thread. Raises Misuse if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._lines = LineWriter(self._open(), _report_dropped, owns=True)
        except OSError as error:
            raise _unwritable(path, error.strerror) from error

    def _open(self) -> int:
        # O_NONBLOCK: opening a pipe that has no reader fails, and does not wait for one.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o666)

    def write(self, lines: bytes) -> None:
        """Append lines. This never waits: lines are dropped and counted while the file cannot be written."""
        self._lines.write(lines)

    def reopen(self) -> None:
        """Open the file again, for log rotation: if the old file was moved, a new one is created.

        If it is the same file, its writer stays: two would write pieces of lines between each other's to a pipe.
        """
        try:
            opened = self._open()
        except OSError as error:
            log.warning("the trace could not be reopened; the old file stays in use", error=error.strerror)
            return
        with contextlib.suppress(OSError):  # the old file is on a network file system, and another machine removed it
            if os.path.sameopenfile(opened, self._lines.fileno()):
                os.close(opened)
                return
        old, self._lines = self._lines, LineWriter(opened, _report_dropped, owns=True)
        old.end(0)  # its thread writes what is queued

    def wait(self) -> bool:
        """Wait up to a second until all lines are written, and return whether they are."""
        return self._lines.wait()

    def close(self) -> None:
        """Close the file. Waits up to a second until the last lines are written."""
        self._lines.end()


def _report_dropped(error: str, dropped: int) -> None:
    if error:
        log.warning("the trace could not be written; lines are missing", error=error)
    else:
        log.warning("the trace is written again", dropped_lines=dropped)


def _plain(raw_id: Raw) -> str | int | float | None:
    """Return an id that is a short text or a number, as clients' ids are. Return None for any other JSON value."""
    if len(raw_id) > _MAX_ID_BYTES:
        return None
    try:
        value = msgspec.json.decode(raw_id, type=str | int | float)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return value if not isinstance(value, str) or len(value) <= MAX_ID_CHARACTERS else None
