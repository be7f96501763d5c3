"""A probe of a disk: it writes and flushes a small file; and how much room the disk has."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Final

from restante.common.errors import plain
from restante.common.worker import Worker

PROBE_FILE: Final = ".probe"
"""The file that is written in the data directory."""

INTERVAL_SECONDS: Final = 0.5
"""A probe that ended within this time is not repeated, so that requests cannot wear out the disk. With the second
after which a write counts as hanging, this makes less than two seconds."""

SPACE_TIMEOUT: Final = 1.0
"""Seconds within which the disk must say how much is free. It takes microseconds, unless the disk hangs."""

CONTENT: Final = os.urandom(4096)
"""A block that cannot be compressed: a full disk has no room for it."""


class DiskSpace:
    """How much is free on the disk of a folder. A thread asks the disk, because it may hang."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker = Worker("disk space")
        self._reading: asyncio.Task[float] | None = None

    async def free(self) -> float:
        """Return how many bytes this process can still write; NaN if the disk does not say that in time."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._worker.do(partial(free_bytes, self._folder)))
        await asyncio.wait((self._reading,), timeout=SPACE_TIMEOUT)
        return self._reading.result() if self._reading.done() else math.nan


def free_bytes(folder: Path) -> float:
    """Return how many bytes this process can still write on the disk of a folder; NaN if the disk does not say."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return math.nan
    return float(status.f_bavail * status.f_frsize)


class DiskProbe:
    """Tests whether a data directory can be written. Use it in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / PROBE_FILE
        self._worker: Worker | None = None
        self._probe: asyncio.Task[str] | None = None
        self._ended_at = float("-inf")
        self._problem = ""

    async def problem(self, timeout: float) -> str:  # noqa: ASYNC109 - a timeout is a finding
        """Write and flush a block, and return what is wrong with the disk, "" if it works.

        Only one write is under way at a time, so a disk that hangs holds one thread.
        """
        probe = self._probe
        if probe is None:
            if time.monotonic() - self._ended_at < INTERVAL_SECONDS:
                return self._problem
            self._worker = self._worker or Worker("disk probe")
            probe = self._probe = asyncio.create_task(self._worker.do(self._write))
            probe.add_done_callback(self._end)
        done, _ = await asyncio.wait({probe}, timeout=timeout)
        return probe.result() if done else f"the disk hangs: a write has not finished for {timeout:g} s"

    def _end(self, probe: asyncio.Task[str]) -> None:
        """Keep the result of a probe. One that hung may end while nobody waits: its result soon says nothing."""
        if not probe.cancelled():
            self._problem, self._ended_at, self._probe = probe.result(), time.monotonic(), None

    def close(self) -> None:
        """End the thread when its write has ended."""
        if self._worker is not None:
            self._worker.end(wait=False)

    def _write(self) -> str:
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, CONTENT) < len(CONTENT):
                    return f"the disk cannot be written: {os.strerror(errno.ENOSPC)}"
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
                self._file.unlink(missing_ok=True)
        except OSError as error:
            return f"the disk cannot be written: {plain(error)}"
        return ""
