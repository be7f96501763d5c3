"""The SQLite engine: memory is the authority, the database is written behind it by group commit.

A batch's statements run on the event loop, where they cost microseconds; only COMMIT, which waits for the disk,
goes to a thread. WAL with synchronous=FULL: a commit that returned is on disk
(sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from restante.errors import StoreBusy, StoreError
from restante.mailbox.model import Change, Now
from restante.mailbox.state import State
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows
from restante.mailbox.store.schema import FILE, connect, lock

BUSY_SECONDS: Final = 5.0
"""How long a batch waits for another program that is writing to the file. Longer, and clients time out."""

_USAGE_TIMES: Final = (
    ("usage_nameplates", "started"),
    ("usage_mailboxes", "started"),
    ("usage_client_versions", "connect_time"),
)


class SqliteStore:
    """One process, one data directory. See Store for the promises."""

    def __init__(self, database: sqlite3.Connection, held: int | None = None) -> None:
        self.database = database
        self._held = held
        # Statements run on the loop, COMMIT in this one thread; never both at once.
        self._committer = ThreadPoolExecutor(1, "commit")
        self.service: float = self._one("SELECT seconds FROM service")

    @classmethod
    def open(cls, data: Path) -> SqliteStore:
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
        return load(self.database)

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        rows = Rows(changes)
        try:
            await self._begin()
            for statement, parameters in rows.statements():
                self.database.executemany(statement, parameters)
            self.database.execute("UPDATE service SET seconds = ?, saved = ?", (now.service, now.wall))
        except sqlite3.Error as error:
            raise self._roll_back(error) from error
        await asyncio.get_running_loop().run_in_executor(self._committer, self._commit)

    async def _begin(self) -> None:
        """Take the write lock; wait for it, if somebody has it, but not on the loop."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            await asyncio.get_running_loop().run_in_executor(self._committer, self._wait_and_begin)

    async def forget_usage(self, before: float, most: int) -> int:
        await self._begin()
        try:
            gone = sum(
                self.database.execute(
                    f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {column} < ? LIMIT ?)",  # noqa: S608
                    (before, most),
                ).rowcount
                for table, column in _USAGE_TIMES
            )
        except sqlite3.Error as error:
            raise self._roll_back(error) from error
        await asyncio.get_running_loop().run_in_executor(self._committer, self._commit)
        return gone

    def _wait_and_begin(self) -> None:
        self.database.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        try:
            self.database.execute("BEGIN IMMEDIATE")
        finally:
            self.database.execute("PRAGMA busy_timeout = 0")

    def _roll_back(self, cause: sqlite3.Error) -> StoreError:
        """Undo the transaction; say whether the senders may try again (busy, full) or nobody may (ours, damage)."""
        try:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
        except sqlite3.Error as error:
            return StoreError(f"cannot roll back ({error}) after: {cause}")
        kind = StoreBusy if isinstance(cause, sqlite3.OperationalError) else StoreError
        return kind(f"the database refused: {cause}")

    def _commit(self) -> None:
        try:
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            # Part of it may be on disk: whoever retries may answer what never happened (fsyncgate).
            raise StoreError(f"commit failed: {error}") from error

    async def close(self) -> None:
        self._committer.shutdown(wait=True)
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.database.close()
        if self._held is not None:
            os.close(self._held)
