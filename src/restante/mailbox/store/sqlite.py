"""The store: memory is the authority, the database is written behind it by group commit.

A batch's statements run on the event loop, where they cost microseconds; what takes longer goes to a thread: heavy
statements, and COMMIT, which waits for the disk. WAL with synchronous=FULL: a commit that returned is on disk
(sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from restante.common.data_directory import lock
from restante.common.errors import StoreError
from restante.common.logs import log
from restante.common.sqlite import roll_back
from restante.common.worker import Worker
from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows
from restante.mailbox.store.schema import FILE, connect

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""How long a batch waits for another program that is writing to the file. Longer, and clients time out."""

MAX_ROWS_COMMITTED_ON_LOOP: Final = 8
"""Rows in a batch that is committed on the loop where the disk is fast: one or two commands'. A hand-over to the
thread and back costs more than a flush that takes 0.1 ms, and a batch this small has nobody waiting behind it."""

FAST_FLUSH_SECONDS: Final = 0.0005
"""Seconds of a fast flush. A slow disk is waited for in the thread, and the loop goes on reading."""

ROWS_PER_CHECKPOINT: Final = 1000
"""Rows after which the log is moved into the database: some 4 to 16 MiB of it. After the batch is answered, and
never on the loop; the next batch waits for it."""

_USAGE_TIMES: Final = (
    ("usage_nameplates", "started"),
    ("usage_mailboxes", "started"),
    ("usage_client_versions", "connect_time"),
)


def open_store(data: Path) -> Store:
    """Open the store in a data directory, making both if need be.

    Raises StoreError when another process has it, or it is not ours, or it is newer than this program.
    """
    return Store.open(data)


class Store:
    """What the rules decided, on disk: one process, one data directory.

    `view` shows all that was applied before. `apply` makes the changes of one batch durable in one transaction, or
    raises StoreBusy having changed nothing, or raises StoreError, after which nothing more may be said to anybody.
    A store never decides, and a rule never keeps.
    """

    def __init__(self, database: sqlite3.Connection, held: int | None = None) -> None:
        self.database = database
        self._held = held
        # Statements run on the loop or in this one thread, COMMIT mostly in the thread; never two at once.
        self._committer = Worker("commit")
        self._flush = FAST_FLUSH_SECONDS
        """Seconds that the last commit took; the first is made in the thread, who knows the disk."""
        self.flushing: float | None = None
        """Since when (time.monotonic) the disk is being waited for; None: it is not."""
        self._unchecked = 0
        """Rows written since the last checkpoint."""
        self.service: float = self._one("SELECT seconds FROM service")
        """Seconds the service had run when the store was last written, as read at opening."""
        self._saved = float("-inf")
        """Service time of the last commit that saved it."""

    @classmethod
    def open(cls, data: Path) -> Store:
        """Lock the data directory, making it if need be, and open what is in it."""
        held = lock(data)
        try:
            database = connect(str(data / FILE))
            try:
                return cls(database, held)
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(held)
            raise

    def _one(self, sql: str) -> float:
        value: float = self.database.execute(sql).fetchone()[0]
        return value

    async def view(self) -> State:
        """Return the state; called again after StoreBusy, it is read anew."""
        return load(self.database)

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        """Make changes durable that were folded into the view already; return when they are on disk.

        Raises StoreBusy if nothing was written, StoreError if nobody can tell.
        """
        rows = Rows(changes)
        try:
            await self._begin()
            for sql, parameters, heavy in rows.statements():
                if heavy:
                    await self._in_thread(partial(self.database.executemany, sql, parameters))
                else:
                    self.database.executemany(sql, parameters)
            if not 0.0 <= now.service - self._saved < 1.0:  # a page less to flush, most of the time
                self.database.execute("UPDATE service SET seconds = ?, saved = ?", (now.service, now.wall))
                self._saved = now.service
        except sqlite3.Error as error:
            raise roll_back(self.database, error) from error
        self._unchecked += rows.count
        await self._commit(alone=rows.count <= MAX_ROWS_COMMITTED_ON_LOOP)

    async def tend(self) -> None:
        """Do what can wait until everything is said: move the log into the database."""
        if self._unchecked >= ROWS_PER_CHECKPOINT:
            self._unchecked = 0
            await self._in_thread(self._checkpoint)

    async def _begin(self) -> None:
        """Take the write lock; wait for it, if somebody has it, but not on the loop."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            await self._in_thread(self._wait_and_begin)

    async def forget_usage(self, before: float, most: int) -> int:
        """Drop usage records older than a wall time, at most so many of each kind; return how many went."""
        try:
            await self._begin()
            gone = sum(
                self.database.execute(
                    f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {column} < ? LIMIT ?)",  # noqa: S608
                    (before, most),
                ).rowcount
                for table, column in _USAGE_TIMES
            )
        except sqlite3.Error as error:
            raise roll_back(self.database, error) from error
        self._unchecked += gone
        await self._commit(alone=False)
        return gone

    def _wait_and_begin(self) -> None:
        self.database.execute(f"PRAGMA busy_timeout = {int(LOCK_TIMEOUT_SECONDS * 1000)}")
        try:
            self.database.execute("BEGIN IMMEDIATE")
        finally:
            self.database.execute("PRAGMA busy_timeout = 0")

    async def _commit(self, *, alone: bool) -> None:
        """Commit: in the thread, or on the loop where little was written and the disk is fast."""
        if alone and self._flush < FAST_FLUSH_SECONDS:
            self._timed_commit()
        else:
            await self._in_thread(self._timed_commit)

    def _timed_commit(self) -> None:
        begun = self.flushing = time.monotonic()
        try:
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            # Part of it may be on disk: whoever retries may answer what never happened (fsyncgate).
            raise StoreError(f"commit failed: {error}") from error
        finally:
            self.flushing = None
        self._flush = time.monotonic() - begun

    def _checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move the log into the database, as far as readers elsewhere allow; what is left waits for the next time."""
        self.flushing = time.monotonic()
        try:
            self.database.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error as error:
            log.warning(
                "the database's log could not be moved into it; nothing is lost, but it grows", error=str(error)
            )
        finally:
            self.flushing = None

    async def _in_thread(self, work: Callable[[], object]) -> None:
        await self._committer.do(work)

    async def close(self) -> None:
        """Leave everything on disk in good order."""
        self._committer.end()
        self._checkpoint("TRUNCATE")
        self.database.close()
        if self._held is not None:
            os.close(self._held)
