"""A probe of a disk: it writes and flushes a small file."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import Final

from restante.common.errors import plain
from restante.common.worker import Worker

FILE: Final = ".probe"
"""The file that is written in the data directory."""

INTERVAL_SECONDS: Final = 1.0
"""A probe that ended within this time is not repeated, so that requests cannot wear out the disk."""

CONTENT: Final = bytes(4096)
"""A block: a full disk has no room for it."""


class DiskProbe:
    """Tests whether a data directory can be written. Use it in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._worker: Worker | None = None
        self._under_way: asyncio.Task[str] | None = None
        self._ended = float("-inf")
        self._found = ""

    async def problem(self, timeout: float) -> str:  # noqa: ASYNC109 - a timeout is a finding
        """Write and flush a block, and return what is wrong with the disk, "" if it works.

        Only one write is under way at a time, so a disk that hangs holds one thread.
        """
        task = self._under_way
        if task is None:
            if time.monotonic() - self._ended < INTERVAL_SECONDS:
                return self._found
            self._worker = self._worker or Worker("disk probe")
            task = self._under_way = asyncio.create_task(self._worker.do(self._write))
        try:
            async with asyncio.timeout(timeout):
                self._found = await asyncio.shield(task)
        except TimeoutError:
            return f"the disk hangs: a write has not finished for {timeout:g} s"
        if self._under_way is task:
            self._under_way, self._ended = None, time.monotonic()
        return self._found

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
