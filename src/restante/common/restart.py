"""A restart that clients do not notice: how a command asks a server for it, and how the server answers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from restante.common.atomic_file import draft_of
from restante.common.data_directory import LOCK_FILE
from restante.common.errors import Misuse, StoreError
from restante.common.lock_file import lock_holders

SIGNAL: Final = signal.SIGUSR2

ANSWER_FILE: Final = "last-restart"
"""The file in the data directory with the last answer."""

ANSWER_SECONDS: Final = 90.0
"""Seconds that a command waits for the answer."""

POLL_SECONDS: Final = 0.02

VARIABLE: Final = "_RESTANTE_RUNNING"
"""The environment variable with the running server, for the installed version that checks whether it can go on. A
version that does not know it checks less."""


class Running(msgspec.Struct, frozen=True):
    """A server that is about to restart."""

    directory: tuple[int, int]
    """The device and the inode of its data directory."""
    listen: tuple[str, ...]
    admin: str
    """Where it listens, as in its settings."""

    def environment(self) -> dict[str, str]:
        """Return the variable that says it."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    def check_directory(self, data: Path) -> None:
        """Raise Misuse if this is another data directory."""
        status = data.stat()
        if (status.st_dev, status.st_ino) != self.directory:
            raise Misuse(f"{data} is not the data directory of the running server: stop that, and start it again")


def running_server(environment: Mapping[str, str]) -> Running | None:
    """Return the server that asks this process for a check. None: there is none."""
    try:
        return msgspec.json.decode(environment[VARIABLE], type=Running)
    except (KeyError, ValueError):
        return None


class Answer(msgspec.Struct, frozen=True):
    """How a restart ended."""

    version: str
    """Of the process that runs now."""
    error: str = ""
    """That the server goes on as it is, or that it has closed all connections, and why; "" if neither is so."""
    connections: int = 0
    """Connections that stayed."""
    seconds: float = 0.0
    """Seconds for which they waited."""


def write_answer(data: Path, answer: Answer) -> None:
    """Write how a restart ended. Raises OSError."""
    with draft_of(data / ANSWER_FILE, locked=True) as draft:
        draft.write_bytes(msgspec.json.encode(answer) + b"\n")


def ask(data: Path, database: str) -> Answer:
    """Ask the server that uses a data directory with a database to restart, and return how that ended.

    Raises Misuse if no server uses it, StoreError if the server ends or does not answer.
    """
    pids = {path: lock_holders(path) for path in (data, data / LOCK_FILE)}
    pid = next((pid for path, holders in pids.items() for pid in holders if pid > 0 and _has_open(pid, path)), None)
    if pid is None or not (data / database).exists():
        raise Misuse(
            f"no server of this machine uses {data}: name its directory with --data. Stop and start a server that has"
            " --database"
        )
    if not _awaits_signal(pid):
        raise Misuse(f"process {pid}, which uses {data}, is no server that can restart: stop it, and start one")
    before = _written(data)
    try:
        os.kill(pid, SIGNAL)
    except OSError as error:
        raise Misuse(f"cannot send a signal to process {pid}: {error.strerror}") from error
    deadline = time.monotonic() + ANSWER_SECONDS
    while _written(data) == before:
        if not Path(f"/proc/{pid}").exists():
            raise StoreError("the server has ended: its log says why")
        if time.monotonic() > deadline:
            raise StoreError("the server has not answered: its log says what it does")
        time.sleep(POLL_SECONDS)
    try:
        return msgspec.json.decode((data / ANSWER_FILE).read_bytes(), type=Answer)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"cannot read {data / ANSWER_FILE}: {error}") from error


def _has_open(pid: int, path: Path) -> bool:
    """Return whether a process has opened a file or directory, and not one of another device with the same inode."""
    try:
        status = path.stat()
        descriptors = [*Path(f"/proc/{pid}/fd").iterdir()]
    except PermissionError as error:
        raise Misuse(f"cannot look at process {pid}, which may use {path}: run this as its user or root") from error
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # it is closed by now
            if os.path.samestat(descriptor.stat(), status):
                return True
    return False


def _awaits_signal(pid: int) -> bool:
    """Return whether a process catches or blocks the signal, which would end it otherwise (proc_pid_status(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk:", "SigCgt:"))]
    return any(mask >> (SIGNAL - 1) & 1 for mask in masks)


def _written(data: Path) -> tuple[int, int]:
    """Return what changes with each answer."""
    try:
        status = (data / ANSWER_FILE).stat()
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise Misuse(f"cannot read {data / ANSWER_FILE}: {error.strerror}") from error
    return status.st_ino, status.st_mtime_ns
