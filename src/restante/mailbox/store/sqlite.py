"""The store: the live data is in memory, and group commits write each batch of changes to the database.

Most statements of a batch run on the event loop, where they take microseconds. Heavy statements, and COMMIT, which
waits for the disk, run in a thread. With WAL and synchronous=FULL, a commit that has returned is on disk
(sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from restante.common.data_directory import lock_data_directory
from restante.common.lock_file import Locks
from restante.common.sqlite import checkpoint, execute_rows, roll_back, roll_back_commit
from restante.common.worker import Worker
from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State
from restante.mailbox.store.rows import Rows, load_state
from restante.mailbox.store.schema import FILE, connect

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""How long a batch waits for another program that holds the write lock. If it waited longer, clients would time
out."""

MAX_ROWS_COMMITTED_ON_LOOP: Final = 8
"""Maximum number of rows of a batch that is committed on the event loop if the disk is fast: those of one or two
commands. Switching to the thread and back takes longer than a flush of 0.1 ms, and behind a batch this small no
client waits."""

FAST_FLUSH_SECONDS: Final = 0.0005
"""A commit below this many seconds means that the disk is fast. For a slow disk the thread waits, and the event loop
goes on reading."""

ROWS_PER_CHECKPOINT: Final = 1000
"""Rows between checkpoints, which move the write-ahead log into the database: 4 to 16 MiB of log. A checkpoint runs
in the thread after a batch is answered; the next batch waits for it."""

LOG_BYTES: Final = 16 << 20
"""Size to which the log (`-wal`) is truncated after a reader or a large batch has made it grow: what 1,000 rows take,
so that a usual log is not truncated and extended again."""

_USAGE_TIMES: Final = (
    ("usage_nameplates", "started"),
    ("usage_mailboxes", "started"),
    ("usage_client_versions", "connect_time"),
)


class SqliteStore:
    """The `Store` of one data directory, which one process uses at a time."""

    def __init__(self, database: sqlite3.Connection, directory_lock: Locks | None = None) -> None:
        self.database = database
        database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")  # when the log begins anew
        self.directory_lock = directory_lock
        # Statements run on the event loop or in this thread, COMMIT mostly in the thread, and never two at once.
        self._committer = Worker("commit")
        self._last_commit_seconds = FAST_FLUSH_SECONDS
        """Seconds that the last commit took. The first commit runs in the thread, because the disk's speed is
        unknown."""
        self.flushing: float | None = None
        """The time (time.monotonic) since which the store waits for the disk; None: it does not wait."""
        self._rows_since_checkpoint = 0
        """Rows written since the last checkpoint."""
        self.service: float = database.execute("SELECT seconds FROM service").fetchone()[0]
        """Service time when the database was last written, as read when it was opened."""
        self._saved = float("-inf")
        """Service time of the last commit that wrote the row of `service`."""

    @classmethod
    def open(cls, data: Path, left: Sequence[int] = ()) -> SqliteStore:
        """Lock the data directory and open its database. Create both if they do not exist.

        `left`: as in `lock_data_directory`.

        Raises StoreError if another process uses the directory, or the database is another program's or newer than
        this program.
        """
        directory_lock = lock_data_directory(data, left)
        try:
            database = connect(str(data / FILE))
            try:
                return cls(database, directory_lock)
            except BaseException:
                database.close()
                raise
        except BaseException:
            directory_lock.close()
            raise

    async def view(self) -> State:
        """Read and return the stored state."""
        return load_state(self.database)

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        """Write changes that the state has already folded in. Returns when they are on disk.

        Raises StoreBusy if nothing was written, StoreError if it is unknown whether the commit succeeded.
        """
        rows = Rows(changes)
        try:
            await self._begin()
            for sql, row, parameters, heavy in rows.statements():
                if heavy:
                    await self._committer.do(partial(execute_rows, self.database, sql, row, parameters))
                else:
                    execute_rows(self.database, sql, row, parameters)
            writes_service = not 0.0 <= now.service - self._saved < 1.0  # so most commits write one page less
            if writes_service:
                self.database.execute("UPDATE service SET seconds = ?, saved = ?", (now.service, now.wall))
        except sqlite3.Error as error:
            raise roll_back(self.database, error) from error
        count = rows.count
        self._rows_since_checkpoint += count
        await self._commit(small=count <= MAX_ROWS_COMMITTED_ON_LOOP)
        if writes_service:
            self._saved = now.service

    async def confirm(self) -> None:
        """Do nothing: no other process can have written."""

    async def hold(self) -> None:
        """Wait for ever: the lock of the data directory holds as long as the process."""
        await asyncio.get_running_loop().create_future()

    async def tend(self) -> None:
        """Make a checkpoint if one is due. The commit loop calls this after a batch is answered."""
        if self._rows_since_checkpoint >= ROWS_PER_CHECKPOINT:
            self._rows_since_checkpoint = 0
            await self._committer.do(self._checkpoint)

    async def _begin(self) -> None:
        """Begin a transaction with the write lock. If another program holds the lock, wait in the thread."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            await self._committer.do(self._wait_and_begin)

    async def forget_usage(self, before: float, limit: int) -> int:
        """Delete usage records older than a wall time, up to `limit` of each kind. Return the number deleted."""
        try:
            await self._begin()
            deleted = sum(
                self.database.execute(
                    f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {column} < ? LIMIT ?)",  # noqa: S608
                    (before, limit),
                ).rowcount
                for table, column in _USAGE_TIMES
            )
        except sqlite3.Error as error:
            raise roll_back(self.database, error) from error
        self._rows_since_checkpoint += deleted
        await self._commit(small=False)
        return deleted

    def _wait_and_begin(self) -> None:
        self.database.execute(f"PRAGMA busy_timeout = {int(LOCK_TIMEOUT_SECONDS * 1000)}")
        try:
            self.database.execute("BEGIN IMMEDIATE")
        finally:
            self.database.execute("PRAGMA busy_timeout = 0")

    async def _commit(self, *, small: bool) -> None:
        """Commit in the thread, or on the event loop if the batch is small and the disk is fast."""
        if small and self._last_commit_seconds < FAST_FLUSH_SECONDS:
            self._timed_commit()
        else:
            await self._committer.do(self._timed_commit)

    def _timed_commit(self) -> None:
        start = self.flushing = time.monotonic()
        try:
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            raise roll_back_commit(self.database, error) from error
        finally:
            self.flushing = None
        self._last_commit_seconds = time.monotonic() - start

    def _checkpoint(self, mode: str = "PASSIVE") -> None:
        self.flushing = time.monotonic()
        try:
            checkpoint(self.database, mode)
        finally:
            self.flushing = None

    async def close(self) -> None:
        """Make a last checkpoint, close the database, and release the data directory."""
        self._committer.end()
        self._checkpoint("TRUNCATE")
        self.database.close()
        if self.directory_lock is not None:
            self.directory_lock.close()
