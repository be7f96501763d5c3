"""The engines that the contract holds for, and what a test must do behind their backs."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from restante.mailbox.store.schema import FILE, connect
from restante.mailbox.store.sqlite import Store, open_store
from support.disk import crashing

LIVE = ("mailboxes", "nameplates", "messages")
USAGE = ("usage_nameplates", "usage_mailboxes", "usage_client_versions")


class Engine(ABC):
    """One store at a time, and what outlives it."""

    store: Store

    @abstractmethod
    async def restart(self) -> None:
        """Close the store and open what it left."""

    @abstractmethod
    async def crash(self) -> None:
        """Open what a process finds that starts now, while the store has not been closed."""

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read what is committed."""

    def count(self, *tables: str) -> dict[str, int]:
        """Return how many rows there are, of each table that has any."""
        counts = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        return {table: number for table, number in counts.items() if number}

    @abstractmethod
    def watch(self) -> None:
        """Count what is written from now on."""

    @abstractmethod
    def written(self) -> dict[str, int]:
        """Return how many rows of each table were inserted, updated or deleted, without the service row."""

    @abstractmethod
    def refusing(self) -> contextlib.AbstractContextManager[None]:
        """Refuse whatever is to be written meanwhile."""

    @abstractmethod
    def failing(self) -> contextlib.AbstractContextManager[None]:
        """Fail at the first message, for good, when other rows of the batch are written already."""

    @abstractmethod
    def full(self) -> contextlib.AbstractContextManager[None]:
        """Refuse whatever needs more room meanwhile."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sqlite(Engine):
    """What both kinds of SQLite have in common."""

    def watch(self) -> None:
        triggers = (
            f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table}"
            f" BEGIN INSERT INTO written VALUES ('{table}'); END"
            for table in (*LIVE, *USAGE)
            for event in ("INSERT", "UPDATE", "DELETE")
        )
        self.store.database.executescript(";".join(("CREATE TEMP TABLE written (name)", *triggers)))

    def written(self) -> dict[str, int]:
        return dict(self.store.database.execute("SELECT name, count(*) FROM written GROUP BY name"))

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        self.store.database.execute(
            "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.messages BEGIN SELECT RAISE(ABORT, 'not this'); END"
        )
        try:
            yield
        finally:
            self.store.database.execute("DROP TRIGGER failing")

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        pages = self.store.database.execute("PRAGMA page_count").fetchone()[0]
        self.store.database.execute(f"PRAGMA max_page_count = {pages}")
        try:
            yield
        finally:
            self.store.database.execute(f"PRAGMA max_page_count = {1 << 30}")


class SqliteInMemory(Sqlite):
    """`:memory:`; a restart is a copy."""

    def __init__(self) -> None:
        self.store = Store(connect(":memory:"))

    async def restart(self) -> None:
        await self.crash()

    async def crash(self) -> None:
        database = connect(":memory:")
        self.store.database.backup(database)
        await self.store.close()
        self.store = Store(database)

    async def close(self) -> None:
        await self.store.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.store.database.execute(sql).fetchall()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """There is nobody else who could hold a lock: the database is made read-only."""
        self.store.database.execute("PRAGMA query_only = 1")
        try:
            yield
        finally:
            self.store.database.execute("PRAGMA query_only = 0")


class SqliteInAFile(Sqlite):
    """A data directory."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.data = Path(self._folder.name) / "data"
        self._open()

    def _open(self) -> None:
        self.store = open_store(self.data)

    async def restart(self) -> None:
        await self.store.close()
        self._open()

    async def crash(self) -> None:
        with crashing(self.data):
            await self.store.close()
        self._open()

    async def close(self) -> None:
        await self.store.close()
        self._folder.cleanup()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data / FILE}?mode=ro", uri=True)) as database:
            return database.execute(sql).fetchall()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Somebody else is writing, and does not stop."""
        with contextlib.closing(sqlite3.connect(self.data / FILE, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                database.execute("ROLLBACK")


ENGINES: tuple[type[Engine], ...] = (SqliteInMemory, SqliteInAFile)
