"""A probe of a disk: it writes and flushes a small file."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from restante.common.errors import plain

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
        self._under_way: asyncio.Future[str] | None = None
        self._ended = float("-inf")
        self._found = ""

    async def problem(self, timeout: float) -> str:  # noqa: ASYNC109 - a timeout is a finding
        """Write and flush a block, and return what is wrong with the disk, "" if it works.

        Only one write is under way at a time, so a disk that hangs holds one thread.
        """
        if self._under_way is None:
            if time.monotonic() - self._ended < INTERVAL_SECONDS:
                return self._found
            self._under_way = _in_thread(self._write)
        try:
            async with asyncio.timeout(timeout):
                self._found = await asyncio.shield(self._under_way)
        except TimeoutError:
            return f"the disk hangs: a write has not finished for {timeout:g} s"
        self._under_way, self._ended = None, time.monotonic()
        return self._found

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


def _in_thread(work: Callable[[], str]) -> asyncio.Future[str]:
    """Run `work` in a daemon thread: one that hangs does not keep the process from ending, as a pool's would."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()

    def run() -> None:
        result = work()
        try:
            loop.call_soon_threadsafe(_set, future, result)
        except RuntimeError:  # the loop was closed meanwhile
            return

    threading.Thread(target=run, name="disk probe", daemon=True).start()
    return future


def _set(future: asyncio.Future[str], result: str) -> None:
    if not future.done():
        future.set_result(result)
