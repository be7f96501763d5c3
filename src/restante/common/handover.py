"""A hand-over: what a process leaves to the program by which it replaces itself (execve(2)).

The sockets stay open. The rest is in a file in memory (memfd_create(2)): a line that every version can read, and a
body that a version can read whose format is the same.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "_RESTANTE_HANDOVER"
"""The environment variable with the descriptor of the file. Its name is none that `restante` checks."""

NAME: Final = "restante-handover"
"""The name of the file in /proc."""

MFD_NOEXEC_SEAL: Final = 8
"""The flag of a file that can never be executed (Linux 6.3). The module os does not know it."""

MAX_HEAD_BYTES: Final = 64 << 20
"""Bytes of the first line. A million descriptors take 8 MB."""


class Head(msgspec.Struct, frozen=True):
    """The first line. Its fields never change."""

    pid: int
    """The process that stays the same."""
    format: int
    """The format of the body."""
    left: float
    """When the process left it (CLOCK_MONOTONIC)."""
    version: str
    """Of the program before."""
    listening: dict[str, list[int]]
    """The descriptors of listening sockets, by the address as the operator wrote it, or by `key_of_admin`."""
    descriptors: list[int]
    """Those of connections."""
    locks: list[int]
    """Those that lock the data directory."""

    @property
    def all_descriptors(self) -> list[int]:
        """All descriptors that stay open."""
        return [*itertools.chain(*self.listening.values()), *self.descriptors, *self.locks]


class Handover(msgspec.Struct, frozen=True):
    """What a process was left."""

    head: Head
    file: int
    """The descriptor of the file, of which the head was read."""

    def read_body(self) -> bytes:
        """Return the body, and close the file."""
        with open(self.file, "rb") as reader:  # noqa: PTH123 - a descriptor
            return reader.read()

    def close_connections(self) -> None:
        """Close the sockets of connections."""
        _close(self.head.descriptors)

    def close_listening(self, except_for: Collection[str]) -> None:
        """Close the sockets that listen elsewhere than at some addresses."""
        for text, descriptors in self.head.listening.items():
            if text not in except_for:
                _close(descriptors)


def key_of_admin(address: str) -> str:
    """Return the key of the admin port in `Head.listening`. It is no address of --listen."""
    return f"admin {address}"


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def replace_process(arguments: Sequence[str], head: Head, body: bytes, last: Callable[[], None]) -> None:
    """Replace this process by Python with these arguments, and leave it a hand-over. It returns only by an error.

    `last` is called when all is ready, and may raise an error. Raises OSError and MemoryError, too. After an error
    all is as before.
    """
    file = write(head, body)
    try:
        for descriptor in head.all_descriptors:
            os.set_inheritable(descriptor, True)
        last()
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, VARIABLE: str(file)})  # noqa: S606 - the same
    finally:
        for descriptor in head.all_descriptors:
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)
        os.close(file)


def waits_for_disk(threads: Path = Path("/proc/self/task")) -> bool:
    """Return whether a thread is in a system call that no signal ends (state D: proc_pid_stat(5)).

    execve(2) would wait for it.
    """
    for thread in threads.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                return True
    return False


def write(head: Head, body: bytes) -> int:
    """Return the descriptor of a new file with a hand-over. Raises OSError and MemoryError."""
    try:
        file = os.memfd_create(NAME, 0)
    except PermissionError:  # vm.memfd_noexec=2
        file = os.memfd_create(NAME, MFD_NOEXEC_SEAL)
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(msgspec.json.encode(head) + b"\n")
            writer.write(body)
    except BaseException:
        os.close(file)
        raise
    return file


def start_anew(arguments: Sequence[str], head: Head) -> None:
    """Replace this process again, whose program cannot go on with the connections of a hand-over.

    The next program is left all but these, in the format 0, which no version knows.
    """
    replace_process(arguments, msgspec.structs.replace(head, format=0, descriptors=[]), b"", lambda: None)


def take(environment: Mapping[str, str]) -> Handover | None:
    """Return what the process before has left. None: nothing, or not to this process.

    The descriptors are not inherited by other programs any more.
    """
    text = environment.get(VARIABLE, "")
    os.environ.pop(VARIABLE, None)
    if not (text.isascii() and text.isdigit()):
        return None
    try:
        file = int(text)
        if not str(Path(f"/proc/self/fd/{file}").readlink()).startswith(f"/memfd:{NAME}"):
            return None
        with open(file, "rb", closefd=False) as reader:
            reader.seek(0)
            line = reader.readline(MAX_HEAD_BYTES)
        head = msgspec.json.decode(line, type=Head)
        os.lseek(file, len(line), os.SEEK_SET)
    except (OSError, OverflowError, ValueError):  # too many digits; msgspec's errors are ValueErrors
        return None
    if head.pid != os.getpid():
        return None
    for descriptor in (file, *head.all_descriptors):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
    return Handover(head, file)


def seconds_since(head: Head) -> float:
    """Return the seconds since a hand-over was left."""
    return time.monotonic() - head.left
