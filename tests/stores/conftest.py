"""A store of either server in a data directory, and what a test does behind its back."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import pytest

from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import SqliteStore
from restante.waku.archive.sqlite import Archive
from support.disk import crashing
from support.sqlite import LOCK, beside, select

LIVE = ("mailboxes", "nameplates", "messages")
USAGE = ("usage_nameplates", "usage_mailboxes", "usage_client_versions")


S = TypeVar("S", SqliteStore, Archive)


class DataDirectory(Generic[S]):
    """A data directory in which one store is open at a time."""

    def __init__(self, open_store: Callable[[Path], S], file: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._open: Callable[[Path], S] = open_store
        self.data = Path(self._folder.name) / "data"
        self.file = self.data / file
        self.store: S = open_store(self.data)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()
        self._folder.cleanup()

    async def restart(self) -> None:
        await self.store.close()
        self.store = self._open(self.data)

    async def crash(self) -> None:
        """Open what a process finds that starts now, while the store has not been closed."""
        with crashing(self.data):
            await self.store.close()
        self.store = self._open(self.data)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        pages = self.store.database.execute("PRAGMA page_count").fetchone()[0]
        self.store.database.execute(f"PRAGMA max_page_count = {pages}")
        yield
        self.store.database.execute(f"PRAGMA max_page_count = {1 << 30}")


class MailboxData(DataDirectory[SqliteStore]):
    def __init__(self) -> None:
        super().__init__(SqliteStore.open, FILE)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return select(self.file, sql)

    def count(self, *tables: str) -> dict[str, int]:
        counts = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        return {table: number for table, number in counts.items() if number}

    def refusing(self) -> contextlib.AbstractContextManager[None]:
        """Refuse whatever is to be written meanwhile: somebody else is writing, and does not stop."""
        return beside(self.file, LOCK)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Fail at the first message, for good, when other rows of the batch are written already."""
        self.store.database.execute(
            "CREATE TEMP TRIGGER failing BEFORE INSERT ON main.messages BEGIN SELECT RAISE(ABORT, 'not this'); END"
        )
        yield
        self.store.database.execute("DROP TRIGGER failing")


@pytest.fixture
async def engine() -> AsyncIterator[MailboxData]:
    async with MailboxData() as engine:
        yield engine
