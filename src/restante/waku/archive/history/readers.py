"""Connections for reading an archive, each used by one thread at a time. Requests are served in order."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from restante.common.errors import StoreError
from restante.common.worker import Worker
from restante.waku.archive.schema import unreadable

ReadResult = TypeVar("ReadResult")

READER_COUNT: Final = 2
"""Number of concurrent searches, so that a walk past 200,000 rows does not block a short page. A third one finds no
free processor on most hosts, and takes the interpreter lock from the event loop (docs/decisions/history-query.md)."""

READERS_CACHE_BYTES: Final = 16 << 20
"""Page cache of all readers in bytes: the upper pages of table and index, and the pages that a search passes."""


class Readers:
    """The connections, and a thread for each."""

    def __init__(self, databases: Sequence[sqlite3.Connection]) -> None:
        self.free = list(databases)
        """Unused connections. The last one used is the next one taken."""
        self._threads = Worker("archive-read", len(databases))

    @classmethod
    def open(cls, path: Path, count: int = READER_COUNT) -> Readers:
        """Open `count` connections to an existing database. Raises StoreError."""
        with contextlib.ExitStack() as opened:
            try:
                databases = [
                    opened.enter_context(contextlib.closing(_connect(path, READERS_CACHE_BYTES // count)))
                    for _ in range(count)
                ]
            except sqlite3.Error as error:
                raise StoreError(f"cannot open {path}: {error}") from error
            opened.pop_all()
        return cls(databases)

    async def read(self, work: Callable[[sqlite3.Connection], ReadResult]) -> ReadResult:
        """Run a read in a thread and return its result. Cancelling it stops the statement. Raises StoreError."""
        turn = ReaderTurn(self.free)
        try:
            return await self._threads.do(lambda: turn.take(work))
        except asyncio.CancelledError:
            turn.stop()
            raise

    def close(self) -> None:
        """Wait for all requested reads, then close the connections."""
        self._threads.end()
        for each in self.free:
            each.close()


class ReaderTurn:
    """One use of a connection. The requester may end it from another thread."""

    def __init__(self, free: list[sqlite3.Connection]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._over = False

    def take(self, work: Callable[[sqlite3.Connection], ReadResult]) -> ReadResult:
        """Run the work on a free connection. There are as many connections as threads, so one is free."""
        reader = self._free.pop()
        try:
            with self._lock:
                if self._over:
                    raise StoreError("the search was cancelled")
                self._reader = reader
            try:
                return work(reader)
            except sqlite3.Error as error:
                raise unreadable(error) from error
            finally:
                with self._lock:
                    self._reader = None
        finally:
            self._free.append(reader)

    def stop(self) -> None:
        """Interrupt the statement that runs in this turn, and none of another turn.

        A statement that begins at this very moment runs to its end, which takes a bounded time.
        """
        with self._lock:
            self._over = True
            if self._reader is not None:
                self._reader.interrupt()


def _connect(path: Path, cache: int) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    reader = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    reader.execute(f"PRAGMA cache_size = {-cache // 1024}")
    return reader
