"""The databases of worlds: one that a store writes, which may refuse batches, and into which a test looks."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncpg
import pytest

from restante.common.postgres import connect
from restante.mailbox.core.model import Change, Now, Pruned
from restante.mailbox.core.state import State
from restante.mailbox.store import schema
from restante.mailbox.store.interface import Store, TermOver
from restante.mailbox.store.postgres import PostgresStore, prepare, read_lease
from restante.mailbox.store.sqlite import SqliteStore
from support.mailbox.picture import picture
from support.mailbox.tables import Usage, usage_rows

T = TypeVar("T")

Clock = Callable[[], float]


class Database(ABC):
    """The database of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read: dict[str, Any] = {}
        """What was read at `_version`."""
        self._version: object = None

    @abstractmethod
    async def select(self, sql: str) -> Sequence[Sequence[Any]]: ...

    @abstractmethod
    def refuse(self, *, refuses: bool) -> None:
        """Let it refuse all batches from now on, or none."""

    @abstractmethod
    async def restarted(self, *, crash: bool) -> Database:
        """Return what a process finds that starts now. After a crash the store is not closed yet."""

    async def usage(self) -> Usage:
        return await self._once("usage", partial(usage_rows, self.select))

    async def check(self, state: State, now: Now) -> None:
        """A restart would find what is in memory, but for late touches, and of service time all but a second."""
        view, touched, (mailboxes, messages, service) = await self._once("view", self._view)
        assert view == picture(state, touches=False)
        sizes = [len(mailbox.messages) for mailbox in state.mailboxes()]
        assert (mailboxes, messages) == (len(sizes), sum(sizes))
        assert touched - 1.0 < service <= now.service

    async def _view(self) -> tuple[dict[str, Any], float, Sequence[Any]]:
        """Return what a restart finds, its latest touch, and counts and the service time."""
        view = await self.store.view()
        touched = max((mailbox.touched for mailbox in view.mailboxes()), default=0.0)
        counts = "SELECT (SELECT count(*) FROM mailboxes), (SELECT count(*) FROM messages), seconds FROM service"
        return picture(view, touches=False), touched, (await self.select(counts))[0]

    async def _once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read what nobody alters, unless something was written since the last time."""
        if await self._latest() != self._version:
            self._read.clear()
        if name not in self._read:
            self._read[name] = await read()
            self._version = await self._latest()  # PostgreSQL's `view` renews the lease
        result: T = self._read[name]
        return result

    @abstractmethod
    async def _latest(self) -> object:
        """Return another value after each write."""


class MemoryDatabase(Database):
    """SQLite in memory."""

    store: SqliteStore

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        super().__init__(SqliteStore(database or schema.connect(":memory:")))

    @classmethod
    async def begin(cls, _: Clock) -> MemoryDatabase:
        return cls()

    async def select(self, sql: str) -> Sequence[Sequence[Any]]:
        return self.store.database.execute(sql).fetchall()

    def refuse(self, *, refuses: bool) -> None:
        self.store.database.execute(f"PRAGMA query_only = {int(refuses)}")

    async def restarted(self, *, crash: bool) -> MemoryDatabase:
        copy = schema.connect(":memory:")
        self.store.database.backup(copy)
        if not crash:
            await self.store.close()
        return MemoryDatabase(copy)

    async def _latest(self) -> object:
        return self.store.database.total_changes


EMPTY = """
    DELETE FROM restante.mailboxes;
    DELETE FROM restante.nameplates;
    DELETE FROM restante.messages;
    DELETE FROM restante.usage_mailboxes;
    DELETE FROM restante.usage_nameplates;
    DELETE FROM restante.usage_client_versions;
    DELETE FROM restante.usage_current;
    UPDATE restante.service SET seconds = 0, saved = 0, pruned = NULL;
"""

REFUSE = """
    CREATE FUNCTION restante.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100';
    END $$;
    DO $$
    DECLARE
        name text;
    BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'restante' AND tablename <> 'lease' LOOP
            EXECUTE format(
                'CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON restante.%I'
                ' DEFERRABLE INITIALLY DEFERRED FOR EACH ROW'
                ' WHEN (current_setting(''restante.refuses'', true) = ''on'')'
                ' EXECUTE FUNCTION restante.refuse()', name
            );
        END LOOP;
    END $$;
"""
"""A full disk that shows at the COMMIT of a connection, if this has chosen so. All rows are written then.
Renewals succeed: a term whose renewal is refused is over."""


class RefusedStore(PostgresStore):
    refuses = False
    _chosen = False
    """What the connection has chosen. Nobody may use it while a batch does."""

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        if self._chosen != self.refuses:
            self._chosen = self.refuses
            chosen = "on" if self.refuses else "off"
            await self._connection.execute(f"SELECT set_config('restante.refuses', '{chosen}', false)")
        await super().apply(changes, now)


class PostgresDatabase(Database):
    """One of PostgreSQL, in which a store has the lease."""

    store: RefusedStore

    def __init__(self, url: str, clock: Clock, store: RefusedStore) -> None:
        super().__init__(store)
        self._url = url
        self._clock = clock

    @classmethod
    async def begin(cls, url: str, clock: Clock) -> PostgresDatabase:
        """Begin with an empty database."""
        connection = await connect(url)
        await prepare(connection, url)
        if await connection.fetchval("SELECT to_regproc('restante.refuse') IS NULL"):
            await connection.execute(REFUSE)
        await connection.execute(EMPTY)
        return await cls._of_next_term(connection, url, clock)

    @classmethod
    async def _of_next_term(cls, connection: asyncpg.Connection, url: str, clock: Clock) -> PostgresDatabase:
        store = await RefusedStore.take_over(connection, await read_lease(connection), "a", clock)
        assert store is not None
        return cls(url, clock, store)

    async def select(self, sql: str) -> Sequence[Sequence[Any]]:
        rows: list[Any] = await self.store._connection.fetch(sql.replace(" FROM ", " FROM restante."))
        return rows

    def refuse(self, *, refuses: bool) -> None:
        self.store.refuses = refuses

    async def restarted(self, *, crash: bool) -> PostgresDatabase:
        """Another server takes over: at once if the lease is released, or else while the store could still write."""
        connection = await connect(self._url)
        if not crash:
            await self.store.close()
        assert (await read_lease(connection)).released is not crash
        after = await self._of_next_term(connection, self._url, self._clock)
        if crash:
            with pytest.raises(TermOver):
                await self.store.apply([Pruned(0.0)], Now(0.0, 0.0))
        return after

    async def _latest(self) -> object:
        return await self.store._connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
