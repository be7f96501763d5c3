"""The archive in SQLite: one connection that writes, in a thread of its own, and some that read, in theirs.

WAL with synchronous=FULL: a commit that returned is on disk, and whoever reads sees the archive as it was when he
began, without a lock (sqlite.org/wal.html#concurrency).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from restante.common.data_directory import lock
from restante.common.errors import StoreBusy, StoreError
from restante.common.logs import log
from restante.common.sqlite import roll_back
from restante.common.worker import Worker
from restante.waku.archive import Archived, Counts, TopicCount, pruning, reading, rows
from restante.waku.archive.history import page
from restante.waku.archive.history.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.history.readers import Readers
from restante.waku.archive.schema import FILE, SCHEMA, unreadable
from restante.waku.envelope.envelope import Envelope

WriteResult = TypeVar("WriteResult")

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""How long a batch waits for another program that is writing to the file."""

WRITER_CACHE_BYTES: Final = 64 << 20
"""Bytes of pages that the writer keeps: the ends of some thousand topics, and the table's."""

CHECKPOINT_BYTES: Final = 64 << 20
"""Bytes to be moved from the log into the database at a time, about: a page that changes often is moved once."""

DATABASE_PAGE_BYTES: Final = 4096
"""Bytes of a page; an envelope changes one of its own in the index of topics."""

_CERTAINLY_UNDONE: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL}
"""What COMMIT may fail with and be known to have done nothing. SQLITE_FULL is a write of a page to the log that found
no room (os_unix.c, unixWrite), before the one that makes the transaction count; what a flush reports is another."""


class Archive:
    """One process, one data directory.

    What `save` returned from is on disk; an envelope is there once, however often it is saved; readers see a batch as
    a whole or not at all, and neither wait for the writer nor make it wait. Every method raises StoreError where the
    disk fails; some raise StoreBusy where it refuses.
    """

    def __init__(self, database: sqlite3.Connection, readers: Readers, held: int) -> None:
        self.database = database
        self.readers = readers
        self._held = held
        self._writing = Worker("archive-write")
        self._unmoved = 0
        """Bytes in the log since the last checkpoint, about."""
        self._failed = False
        """Whether a commit did: nothing is written after it."""

    @classmethod
    def open(cls, data: Path) -> Archive:
        """Lock the data directory, making it if need be, and open what is in it."""
        held = lock(data)
        try:
            path = data / FILE
            database = SCHEMA.connect(str(path))
            try:
                database.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
                database.execute(f"PRAGMA cache_size = {-WRITER_CACHE_BYTES // 1024}")
                _look(database)
                return cls(database, Readers.open(path), held)
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(held)
            raise

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        """Save envelopes that came at `arrived`, all or none; those that are there already are left as they are.

        On return they are on disk. Raises StoreBusy where nothing was changed and it may be tried again: somebody
        else is writing, or the disk is full. After any other StoreError nobody can tell: stop, never retry.
        """
        await self._write(lambda: self._save(batch, arrived))

    async def prune(self, before: int, most: int) -> int:
        """Drop envelopes sent before a time, oldest first, at most `most`; return how many went.

        It is over when fewer than `most` went. Raises StoreBusy as `save` does.
        """
        return await self._write(lambda: self._prune(lambda: pruning.prune(self.database, before, most)))

    async def prune_bytes(self, limit: int, most: int) -> int:
        """Drop the oldest by `sent` until all have at most `limit` bytes, at most `most`; return how many went."""
        return await self._write(lambda: self._prune(lambda: pruning.prune_bytes(self.database, limit, most)))

    async def _write(self, work: Callable[[], WriteResult]) -> WriteResult:
        try:
            done = await self._writing.do(work)
        except StoreBusy:
            # If the disk is full: what is in the log may have its room in the database already, pruned pages above
            # all, and then the log can be written anew from its beginning.
            self._writing.later(self._checkpoint)
            raise
        if self._unmoved >= CHECKPOINT_BYTES:
            self._unmoved = 0
            self._writing.later(self._checkpoint)  # who waits for this batch is answered meanwhile
        return done

    def _save(self, batch: Sequence[Envelope], arrived: int) -> None:
        with self._transaction():
            saved = rows.save(self.database, batch, arrived)
        self._unmoved += saved * DATABASE_PAGE_BYTES + sum(len(envelope.raw) for envelope in batch)

    def _prune(self, work: Callable[[], int]) -> int:
        with self._transaction():
            gone = work()
        self._unmoved += gone * DATABASE_PAGE_BYTES
        return gone

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._failed:
            raise StoreError("an earlier commit failed: nothing more is written")
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
        except sqlite3.Error as error:
            raise roll_back(self.database, error) from error
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self._commit()

    def _commit(self) -> None:
        try:
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            undone = roll_back(self.database, error)
            if isinstance(undone, StoreBusy) and error.sqlite_errorcode & 0xFF in _CERTAINLY_UNDONE:
                raise undone from error
            # Part of it may be on disk: whoever retries may confirm what never happened (fsyncgate).
            self._failed = True
            raise StoreError(f"commit failed: {error}") from error

    def _checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move the log into the database, as far as readers allow; what is left waits for the next time."""
        try:
            self.database.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error as error:
            log.warning(
                "the archive's log could not be moved into it; nothing is lost, but it grows", error=str(error)
            )

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def counts(self) -> Counts:
        """Count, at a small cost however much there is."""
        return await self.readers.read(reading.counts)

    async def older(self, before: int) -> int:
        """Count those sent before a time; looks at every one, if only for an instant."""
        return await self.readers.read(lambda database: reading.older(database, before))

    async def topics(self) -> list[TopicCount]:
        """Return each topic there is, in no particular order."""
        return await self.readers.read(reading.topics)

    async def after(self, arrival: int, limit: int) -> list[Archived]:
        """Return those that came after this arrival number, in that order; 0 is before all.

        At most `limit`; fewer where they are large (some 8 MiB), but none only where there is none.
        """
        return await self.readers.read(lambda database: reading.after(database, arrival, limit))

    async def page(self, query: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> Page:
        """Return a page of history; to go on, ask the same again after its cursor.

        Whatever is saved and pruned between the pages, an envelope that matches and is there all the time is given
        once, and in order. One that comes meanwhile may be given or not. Who stops waiting stops the search.
        """
        return await self.readers.read(lambda database: page.page(database, query, bounds))

    async def close(self) -> None:
        """Leave everything on disk in good order; nothing else may be under way."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self.readers.close()
        self._writing.end()
        self._checkpoint("TRUNCATE")
        self.database.close()
        os.close(self._held)


def _look(database: sqlite3.Connection) -> None:
    """Look whether an archive can be read at all. Raises StoreError."""
    try:
        reading.ends(database)
    except sqlite3.Error as error:
        raise unreadable(error) from error
