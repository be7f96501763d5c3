"""A store of either server in a data directory, and what a test does behind its back."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import pytest

from restante.common.postgres import connect
from restante.mailbox.core.state import State
from restante.mailbox.store.interface import Store
from restante.mailbox.store.postgres import PostgresStore, prepare, read_lease
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import SqliteStore
from restante.mailbox.store.status import Where
from restante.waku.archive.sqlite import Archive
from support.disk import crashing
from support.mailbox.ledger import Ledger
from support.mailbox.picture import picture
from support.postgres import Cluster
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

    @property
    def where(self) -> Path:
        return self.data

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


class PostgresData:
    """A schema in which one server at a time has the lease."""

    store: PostgresStore

    def __init__(self, server: Cluster) -> None:
        self._server = server
        self.where = server.url

    async def open(self) -> None:
        connection = await connect(self._server.url)
        await prepare(connection, self._server.url)
        store = await PostgresStore.take_over(connection, await read_lease(connection), "a")
        assert store is not None
        self.store = store

    async def restart(self) -> None:
        await self.store.close()
        await self.open()

    async def crash(self) -> None:
        self.store.abandon()
        await self.open()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._server.rows(sql.replace(" FROM ", " FROM restante."))

    def count(self, *tables: str) -> dict[str, int]:
        counts = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        return {table: number for table, number in counts.items() if number}


class StoreData(Protocol):
    """What the contract of a store needs of its database."""

    @property
    def store(self) -> Store: ...

    @property
    def where(self) -> Where: ...

    async def restart(self) -> None: ...

    async def crash(self) -> None:
        """Open what a process finds that starts now, while the store has not been closed."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...

    def count(self, *tables: str) -> dict[str, int]:
        """Return how many rows tables have, of those that have any."""


@pytest.fixture(params=["sqlite", "postgres"])
async def data(request: pytest.FixtureRequest) -> AsyncIterator[StoreData]:
    if request.param == "sqlite":
        async with MailboxData() as sqlite_data:
            yield sqlite_data
        return
    postgres_data = PostgresData(request.getfixturevalue("postgres"))
    await postgres_data.open()
    yield postgres_data
    await postgres_data.store.close()


async def assert_shown(store: Store, ledger: Ledger) -> State:
    """A view shows what was applied, and nothing else; gives it."""
    view, state = await store.view(), ledger.state
    assert picture(view, touches=False) == picture(state, touches=False)
    for mailbox in view.mailboxes():
        assert mailbox.touched <= ledger.mailbox(mailbox.mailbox_id, mailbox.app_id).touched
    keys = [mailbox.key for mailbox in view.mailboxes()]
    keys += [nameplate.key for app in view.apps.values() for nameplate in app.nameplates.values()]
    assert len(keys) == len(set(keys))
    assert max(keys, default=0) < view.next_key <= state.next_key
    sequences = [message.sequence for mailbox in view.mailboxes() for message in mailbox.messages]
    assert max(sequences, default=0) < view.next_sequence <= state.next_sequence
    assert view.stored == state.stored
    assert not view.unsaved
    return view
