"""Connections that an archive is read through, each by one thread at a time; who asks first is served first."""

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
"""Searches at once: a walk past 200,000 rows holds up nobody's short page. A third finds no free processor on most
hosts, and takes the interpreter lock from the loop that answers (docs/decisions/history-query.md)."""

READERS_CACHE_BYTES: Final = 16 << 20
"""Bytes of pages that the readers keep together: the upper ones of table and index, and what a page passes."""


class Readers:
    """The connections, and a thread for each."""

    def __init__(self, databases: Sequence[sqlite3.Connection]) -> None:
        self.free = list(databases)
        """Those that nobody reads through now; the one that was used last is the next."""
        self._threads = Worker("archive-read", len(databases))

    @classmethod
    def open(cls, path: Path, count: int = READER_COUNT) -> Readers:
        """Open so many connections to a database that is there. Raises StoreError."""
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
        """Read something; who stops waiting for it ends it. Raises StoreError."""
        turn = ReaderTurn(self.free)
        try:
            return await self._threads.do(lambda: turn.take(work))
        except asyncio.CancelledError:
            turn.stop()
            raise

    def close(self) -> None:
        """Wait until all is read that was asked for, and close them."""
        self._threads.end()
        for each in self.free:
            each.close()


class ReaderTurn:
    """One use of a connection, which whoever asked for it may end from another thread."""

    def __init__(self, free: list[sqlite3.Connection]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._over = False

    def take(self, work: Callable[[sqlite3.Connection], ReadResult]) -> ReadResult:
        """Do the work. There are as many connections as threads, so one is free."""
        reader = self._free.pop()
        try:
            with self._lock:
                if self._over:
                    raise StoreError("nobody waits for it any more")
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
        """End the statement that is running in this turn, and none of another's.

        One that begins in this very moment goes on to its end, which is never far.
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
