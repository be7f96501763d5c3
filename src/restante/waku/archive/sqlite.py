"""The archive in SQLite: one connection writes and some connections read, each in its own thread.

With WAL and synchronous=FULL, a commit that has returned is on disk. A reader sees the archive as of the start of its
transaction and takes no lock (sqlite.org/wal.html#concurrency).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from restante.common.data_directory import lock_data_directory
from restante.common.errors import CommitFailed, StoreBusy, StoreError
from restante.common.sqlite import checkpoint, transaction
from restante.common.worker import Worker
from restante.waku.archive import history, statements
from restante.waku.archive.query import DEFAULT_BOUNDS, Bounds, Page, PageQuery
from restante.waku.archive.records import Archived, Counts, TopicCount
from restante.waku.archive.schema import ARCHIVE_FILE, SCHEMA, unreadable
from restante.waku.archive.statements import PruneResult
from restante.waku.envelope.envelope import Envelope

# ── Readers ───────────────────────────────────────────────────────────────────────────────────────
# One thread at a time uses a connection. Requests are served in order.

ReadResult = TypeVar("ReadResult")

READER_COUNT: Final = 2
"""Number of concurrent searches, so that a walk past 200,000 rows does not block a short page. A third one finds no
free processor on most hosts, and takes the interpreter lock from the event loop (docs/decisions/history-query.md)."""

READERS_CACHE_BYTES: Final = 16 << 20
"""Page cache of all readers in bytes: the upper pages of table and index, and the pages that a search passes."""


class Readers:
    """Connections that read an archive, and a thread for each."""

    def __init__(self, databases: Sequence[sqlite3.Connection]) -> None:
        self.free = list(databases)
        """Unused connections. The last one used is the next one taken."""
        self._threads = Worker("archive-read", len(databases))

    @classmethod
    def open(cls, path: Path, count: int = READER_COUNT) -> Readers:
        """Open `count` connections to an existing database. Raises StoreError."""
        with ExitStack() as stack:
            try:
                databases = [
                    stack.enter_context(closing(_open_reader(path, READERS_CACHE_BYTES // count)))
                    for _ in range(count)
                ]
            except sqlite3.Error as error:
                raise StoreError(f"cannot open {path}: {error}") from error
            stack.pop_all()
        return cls(databases)

    async def read(self, work: Callable[[sqlite3.Connection], ReadResult]) -> ReadResult:
        """Run a read in a thread and return its result. Cancelling it stops the statement. Raises StoreError."""
        turn = ReaderTurn(self.free)
        try:
            return await self._threads.do(lambda: turn.run(work))
        except asyncio.CancelledError:
            turn.cancel()
            raise

    def close(self) -> None:
        """Wait for all requested reads, then close the connections."""
        self._threads.end()
        for reader in self.free:
            reader.close()


class ReaderTurn:
    """One use of a connection. The requester may end it from another thread."""

    def __init__(self, free: list[sqlite3.Connection]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._cancelled = False

    def run(self, work: Callable[[sqlite3.Connection], ReadResult]) -> ReadResult:
        """Run the work on a free connection. There are as many connections as threads, so one is free."""
        reader = self._free.pop()
        try:
            with self._lock:
                if self._cancelled:
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

    def cancel(self) -> None:
        """Interrupt the statement that runs in this turn, and none of another turn.

        A statement that begins at this very moment runs to its end, which takes a bounded time.
        """
        with self._lock:
            self._cancelled = True
            if self._reader is not None:
                self._reader.interrupt()


def _open_reader(path: Path, cache_bytes: int) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    reader = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    reader.execute(f"PRAGMA cache_size = {-cache_bytes // 1024}")
    return reader


# ── Archive ───────────────────────────────────────────────────────────────────────────────────────

WriteResult = TypeVar("WriteResult")

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""How long a batch waits for another program that holds the write lock."""

WRITER_CACHE_BYTES: Final = 64 << 20
"""Page cache of the writer in bytes: the last pages of about a thousand topics in the index, and of the table."""

CHECKPOINT_BYTES: Final = 64 << 20
"""Approximate bytes of log between checkpoints. A page that changes often is then written to the database once."""

DATABASE_PAGE_BYTES: Final = 4096
"""Size of a page in bytes. Each envelope changes its own page in the index of topics."""


class Archive:
    """The archive of one data directory, which one process uses at a time.

    When `save` returns, the envelopes are on disk. An envelope is stored once, however often it is saved. Readers see
    either a whole batch or none of it; they do not wait for the writer, nor the writer for them. Every method raises
    StoreError if the disk fails. Some raise StoreBusy if the disk refuses.
    """

    def __init__(self, database: sqlite3.Connection, readers: Readers, directory_lock: ExitStack) -> None:
        self.database = database
        self.readers = readers
        self.pruned_until = -1
        """Envelopes sent until this second may have been pruned since the archive was opened. -1: none was."""
        self._directory_lock = directory_lock
        self._writing = Worker("archive-write")
        self._log_bytes = 0
        """Approximate bytes of log since a checkpoint was queued. Only the writing thread uses it."""
        self._failed = False
        """Whether it is unknown if a commit succeeded. Nothing is written after that."""

    @classmethod
    def open(cls, data: Path) -> Archive:
        """Open the archive in a data directory, and create both if they do not exist.

        No other process can open it until it is closed. Raises StoreError if another process uses it, or it is
        another program's, newer than this program, or damaged.
        """
        with ExitStack() as stack:
            directory_lock = stack.enter_context(lock_data_directory(data))
            path = data / ARCHIVE_FILE
            database = stack.enter_context(closing(SCHEMA.connect(str(path))))
            database.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
            database.execute(f"PRAGMA journal_size_limit = {2 * CHECKPOINT_BYTES}")  # readers make the log grow
            database.execute(f"PRAGMA cache_size = {-WRITER_CACHE_BYTES // 1024}")
            try:
                statements.read_ends(database)
            except sqlite3.Error as error:
                raise unreadable(error) from error
            archive = cls(database, Readers.open(path), directory_lock)
            stack.pop_all()
        return archive

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    async def save(self, batch: Sequence[Envelope], arrived: int) -> None:
        """Save envelopes that arrived at `arrived`, all or none. Envelopes that are stored already stay unchanged.

        They are on disk when this returns. Raises StoreBusy if nothing was changed and the caller may retry: another
        program is writing, or the disk is full. After CommitFailed it is unknown whether they were saved, and nothing
        more is written. After any other StoreError nothing was changed.
        """
        await self._write(lambda: self._save(batch, arrived))

    async def prune(self, before: int, max_envelopes: int) -> int:
        """Delete envelopes sent before a time, oldest first, at most `max_envelopes`. Return the number deleted.

        Fewer than `max_envelopes` means that none are left. Raises StoreBusy like `save`.
        """
        return await self._write(
            lambda: self._prune(lambda: statements.prune_before(self.database, before, max_envelopes))
        )

    async def prune_bytes(self, limit: int, max_envelopes: int) -> int:
        """Delete the oldest envelopes, at most `max_envelopes`, until the rest has at most `limit` bytes.

        Return the number deleted.
        """
        return await self._write(
            lambda: self._prune(lambda: statements.prune_bytes(self.database, limit, max_envelopes))
        )

    async def _write(self, work: Callable[[], WriteResult]) -> WriteResult:
        try:
            return await self._writing.do(work)
        except StoreBusy:
            # If the disk is full, the database may have free pages for the log's contents, mainly after pruning. A
            # checkpoint then lets SQLite overwrite the log from its beginning.
            self._writing.later(lambda: checkpoint(self.database))
            raise

    def _save(self, batch: Sequence[Envelope], arrived: int) -> None:
        with self._transaction():
            saved = statements.save_envelopes(self.database, batch, arrived)
        self._add_log_bytes(saved * DATABASE_PAGE_BYTES + sum(len(envelope.raw) for envelope in batch))

    def _prune(self, work: Callable[[], PruneResult]) -> int:
        with self._transaction():
            pruned = work()
        self._add_log_bytes(pruned.envelopes * DATABASE_PAGE_BYTES)
        self.pruned_until = max(self.pruned_until, pruned.until)
        return pruned.envelopes

    def _add_log_bytes(self, count: int) -> None:
        self._log_bytes += count
        if self._log_bytes >= CHECKPOINT_BYTES:
            self._log_bytes = 0
            self._writing.later(lambda: checkpoint(self.database))  # the caller gets its result first

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._failed:
            raise StoreError("an earlier commit failed: nothing more is written")
        try:
            with transaction(self.database):
                yield
        except CommitFailed:
            self._failed = True
            raise

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def counts(self) -> Counts:
        """Return the archive's totals. The cost does not depend on its size."""
        return await self.readers.read(statements.read_counts)

    async def older(self, before: int) -> int:
        """Return the number of envelopes sent before a time. This reads an index entry for every envelope."""
        return await self.readers.read(lambda database: statements.count_older(database, before))

    async def topics(self) -> list[TopicCount]:
        """Return all topics with their counts, in no particular order."""
        return await self.readers.read(statements.read_topics)

    async def after(self, arrival: int, limit: int) -> list[Archived]:
        """Return the envelopes after an arrival number, in order of arrival. 0 is before all.

        Returns at most `limit`, fewer if they have more than about 8 MiB, but none only if there are none.
        """
        return await self.readers.read(lambda database: statements.read_after(database, arrival, limit))

    async def page(self, query: PageQuery, bounds: Bounds = DEFAULT_BOUNDS) -> Page:
        """Return a page of history. For the next page, repeat the query with `after` set to the page's cursor.

        An envelope that matches and stays stored is returned once and in order, whatever is saved and pruned between
        the pages. An envelope that is saved meanwhile may or may not be returned. Cancelling the call stops the
        search.
        """
        return await self.readers.read(lambda database: history.read_page(database, query, bounds))

    async def close(self) -> None:
        """Close the archive after a last checkpoint. No other call may be in progress."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self.readers.close()
        self._writing.end()
        checkpoint(self.database, "TRUNCATE")
        self.database.close()
        self._directory_lock.close()


open_archive = Archive.open
