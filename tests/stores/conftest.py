"""A store in a data directory, and what a test does behind its back."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import open_store
from support.disk import crashing

LIVE = ("mailboxes", "nameplates", "messages")
USAGE = ("usage_nameplates", "usage_mailboxes", "usage_client_versions")


class Engine:
    """One store at a time, and what outlives it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.data = Path(self._folder.name) / "data"
        self.store = open_store(self.data)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()
        self._folder.cleanup()

    async def restart(self) -> None:
        """Close the store and open what it left."""
        await self.store.close()
        self.store = open_store(self.data)

    async def crash(self) -> None:
        """Open what a process finds that starts now, while the store has not been closed."""
        with crashing(self.data):
            await self.store.close()
        self.store = open_store(self.data)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read what is committed."""
        with contextlib.closing(sqlite3.connect(f"file:{self.data / FILE}?mode=ro", uri=True)) as database:
            return database.execute(sql).fetchall()

    def count(self, *tables: str) -> dict[str, int]:
        """Return how many rows there are, of each table that has any."""
        counts = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        return {table: number for table, number in counts.items() if number}

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse whatever is to be written meanwhile: somebody else is writing, and does not stop."""
        with contextlib.closing(sqlite3.connect(self.data / FILE, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Fail at the first message, for good, when other rows of the batch are written already."""
        self.store.database.execute(
            "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.messages BEGIN SELECT RAISE(ABORT, 'not this'); END"
        )
        yield
        self.store.database.execute("DROP TRIGGER failing")

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Refuse whatever needs more room meanwhile."""
        pages = self.store.database.execute("PRAGMA page_count").fetchone()[0]
        self.store.database.execute(f"PRAGMA max_page_count = {pages}")
        yield
        self.store.database.execute(f"PRAGMA max_page_count = {1 << 30}")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An empty store."""
    async with Engine() as engine:
        yield engine
