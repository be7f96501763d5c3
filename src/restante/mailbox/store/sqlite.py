"""The SQLite engine: memory is the authority, the database is written behind it by group commit.

A batch's statements run on the event loop, where they cost microseconds; only COMMIT, which waits for the disk,
goes to a thread. WAL with synchronous=FULL: a commit that returned is on disk
(sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Final

from restante.errors import StoreBusy, StoreError
from restante.mailbox.model import Change, Now
from restante.mailbox.state import State
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows

FILE: Final = "restante.sqlite"
LOCK: Final = "lock"

APPLICATION_ID: Final = 0x52657374
"""Marks the file as ours ("Rest"; sqlite.org/pragma.html#pragma_application_id)."""

BUSY_SECONDS: Final = 5.0
"""How long a batch waits for another program that is writing to the file. Longer, and clients time out."""

_USAGE_TIMES: Final = (
    ("usage_nameplates", "started"),
    ("usage_mailboxes", "started"),
    ("usage_client_versions", "connect_time"),
)


def migrations() -> list[str]:
    """Give the numbered migrations; a database's version is how many of them it has had."""
    folder = resources.files("restante.mailbox.store") / "sql"
    files = sorted(file.name for file in folder.iterdir() if file.name.startswith("sqlite-"))
    return [(folder / name).read_text() for name in files]


class SqliteStore:
    """One process, one data directory. See Store for the promises."""

    def __init__(self, database: sqlite3.Connection, lock: int | None = None) -> None:
        self.database = database
        self._lock = lock
        # Statements run on the loop, COMMIT in this one thread; never both at once.
        self._committer = ThreadPoolExecutor(1, "commit")
        self.service: float = self._one("SELECT seconds FROM service")

    @classmethod
    def open(cls, data: Path) -> SqliteStore:
        """Lock the data directory, making it if need be, and open what is in it."""
        lock = _lock(data)
        try:
            database = connect(str(data / FILE))
            try:
                return cls(database, lock)
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
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
        if self._lock is not None:
            os.close(self._lock)


def _lock(data: Path) -> int:
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"another process is using the data directory {data}: stop it, or name another with --data"
        ) from None
    return lock


def connect(path: str) -> sqlite3.Connection:
    """Open the database of a data directory, bringing its schema up to date. `:memory:` is for tests."""
    database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        raise StoreError(f"cannot open {path}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: str) -> None:
    def pragma(name: str) -> int:
        value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    scripts = migrations()
    version = pragma("user_version")
    if pragma("schema_version") and pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is not a database of this mailbox server; it was left as it is")
    if version > len(scripts):
        raise StoreError(
            f"{path} has schema {version}, this program knows up to {len(scripts)}: use the newer restante"
        )
    mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal" and path != ":memory:":
        raise StoreError(f"{path} is on a file system without WAL (shared memory): use a local disk")
    database.execute("PRAGMA synchronous = FULL")
    for number, script in enumerate(scripts[version:], version + 1):
        database.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {number}; COMMIT;"
        )
