"""The pipes through which sockets are spliced. A direction of a pair has one only while bytes are in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from pathlib import Path
from typing import Final

FIRST_PIPE_BYTES: Final = 64 * 1024
"""Size of a direction's first pipes, and of those that Linux makes (man 7 pipe)."""

MAX_PIPE_BYTES: Final = 1024 * 1024
"""Largest size of a pipe, for directions that fill smaller ones. A GiB through 1 MiB takes two thirds of the
processor time that it takes through 256 KiB, and half of that through 64 KiB."""

MIN_PIPE_BYTES: Final = 32 * 1024
"""Smallest size of a pipe. A GiB through 8 KiB takes half as much processor time again as copying it."""

MAX_BUDGET_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of all pipes together. 500 pairs that wait in both directions have 62.5 MiB at first."""

MAX_FREE_PIPES: Final = 16
"""Free pipes that are kept. Pairs whose readers are fast enough use one pipe after the other."""

RETRY_AFTER: Final = 1000
"""Pipes that are not opened, after the kernel has allowed none, before the next try."""

SOFT_LIMIT: Final = Path("/proc/sys/fs/pipe-user-pages-soft")
"""Pages of the pipes of all processes of a user. 0: no limit. Above it, new pipes have one or two pages, and none can
be enlarged (man 7 pipe)."""


def pipe_budget() -> int:
    """Return how many bytes the pipes of this process may have: three quarters of what the kernel allows the user."""
    try:
        pages = int(SOFT_LIMIT.read_text())
    except (OSError, ValueError):
        return MAX_BUDGET_BYTES
    return min(MAX_BUDGET_BYTES, pages * resource.getpagesize() * 3 // 4) if pages else MAX_BUDGET_BYTES


class Pipe:
    """A pipe that neither blocks a reader nor a writer."""

    __slots__ = ("reader", "size", "writer")

    def __init__(self) -> None:
        """Open a pipe. Raises OSError."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.size: int = fcntl.fcntl(self.writer, fcntl.F_GETPIPE_SZ)
        """Bytes that it may hold, if they fill its pages."""

    def resize(self, size: int) -> None:
        """Change its size, which stays as it is if the kernel's limits do not allow more."""
        with contextlib.suppress(OSError):
            self.size = fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, size)

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)


class PipePool:
    """The free pipes, and the size of all."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._skips = 0
        """Pipes that will not be opened before the next try, because the kernel has allowed none."""
        self.free: dict[int, list[Pipe]] = {}
        """Free pipes by their size."""
        self.free_pipes = 0
        """The number of free pipes."""
        self.pipes = 0
        """The number of all pipes, free or not."""
        self.size = 0
        """Bytes of all pipes."""

    def take(self, size: int) -> Pipe | None:
        """Return an empty pipe of about this size, or None if the budget or the kernel allows none.

        More than FIRST_PIPE_BYTES are given as long as half of the budget is left for the first pipes of others.
        """
        if size > FIRST_PIPE_BYTES and self.size + size > self._budget // 2 and not self.free.get(size):
            size = FIRST_PIPE_BYTES
        free = self.free.get(size)
        if free:
            self.free_pipes -= 1
            return free.pop()
        pipe = self._new() or self._any_free()
        if pipe is not None and pipe.size != size:
            self.size -= pipe.size
            pipe.resize(size)
            self.size += pipe.size
        return pipe

    def _any_free(self) -> Pipe | None:
        for free in self.free.values():
            if free:
                self.free_pipes -= 1
                return free.pop()
        return None

    def _new(self) -> Pipe | None:
        if self.size + FIRST_PIPE_BYTES > self._budget:
            return None
        if self._skips:
            self._skips -= 1
            return None
        try:
            pipe = Pipe()
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                raise
            self._skips = RETRY_AFTER
            return None
        if pipe.size < MIN_PIPE_BYTES:
            pipe.close()
            self._skips = RETRY_AFTER
            return None
        self.pipes += 1
        self.size += pipe.size
        return pipe

    def give(self, pipe: Pipe) -> None:
        """Take an empty pipe back."""
        if self.free_pipes < MAX_FREE_PIPES:
            self.free_pipes += 1
            self.free.setdefault(pipe.size, []).append(pipe)
        else:
            self.discard(pipe)

    def discard(self, pipe: Pipe) -> None:
        """Close a pipe, which need not be empty."""
        self.pipes -= 1
        self.size -= pipe.size
        pipe.close()

    def close(self) -> None:
        """Close the free pipes."""
        for free in self.free.values():
            while free:
                self.discard(free.pop())
        self.free_pipes = 0
