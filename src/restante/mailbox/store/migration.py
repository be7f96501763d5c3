"""`restante migrate`: copies all data between a data directory and a PostgreSQL database.

The target gets all of it in one transaction, in which it is also read back and compared. So whatever ends the
command, the target is complete or as it was before. No server uses either side meanwhile.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import asyncpg
import msgspec

from restante.common.data_directory import LOCK_FILE, give_to_owner, lock_data_directory
from restante.common.errors import InUse, Misuse, StoreDamaged, StoreError
from restante.common.postgres import DRIVER_ERRORS, connect, reason_of
from restante.common.progress import Advance
from restante.common.settings import without_password
from restante.common.sqlite import execute_rows, write_failure_reason
from restante.mailbox.settings import is_postgres_url
from restante.mailbox.store.postgres import is_cancelled_wait, not_owner, without_servers
from restante.mailbox.store.rows import check_rows
from restante.mailbox.store.schema import FILE, SCHEMA

USAGE: Final = ("usage_nameplates", "usage_mailboxes", "usage_client_versions")

RECORDS: Final = ("nameplates", "mailboxes", "messages", *USAGE, "imports")
"""Tables that are empty in a new database, also when a server has run on it and nobody has used it."""

TABLES: Final = ("service", "usage_current", *RECORDS)

JSON_TEXTS: Final = {"phase", "body", "msg_id"}
"""Columns that are TEXT in SQLite and bytea in PostgreSQL."""

ROWS_PER_CHUNK: Final = 2000
"""Rows that are in memory at once."""

MESSAGES_PER_CHUNK: Final = 16
"""The same for messages, which may have 2 MiB each."""

Rows = list[tuple[Any, ...]]


class Migration(msgspec.Struct):
    """What the target has, which is what the source has."""

    copied: bool
    """False: the target had it before."""
    rows: dict[str, int]
    """Number of rows by table."""
    sha256: str
    """Digest of all rows."""


class _Table(NamedTuple):
    name: str
    columns: list[str]
    key: str
    """The column of the primary key."""

    @property
    def rows_per_chunk(self) -> int:
        return MESSAGES_PER_CHUNK if self.name == "messages" else ROWS_PER_CHUNK


class _Database(Protocol):
    """The source or the target, in a transaction."""

    name: str
    """For people."""

    def chunks(self, table: _Table) -> AsyncGenerator[Rows]:
        """Yield the rows of a table in the order of its key."""

    async def clear(self, table: _Table) -> None:
        """Delete the rows of a table."""

    async def write(self, table: _Table, rows: Rows) -> None:
        """Add rows to a table."""

    async def last_id(self, table: str) -> int:
        """Return the last id that a table of usage records has given; 0: none."""

    async def set_last_id(self, table: str, last_id: int) -> None:
        """Let the ids of a table go on behind this one."""


async def migrate(source: str, target: str, advance: Advance) -> Migration:
    """Copy all data. One of both is a data directory, the other the URL of a PostgreSQL database.

    If the target has the data already, nothing is done. Raises Misuse if a side cannot be used or the source is
    empty, InUse if a server serves either side, another StoreError if the target has other data, the copy fails, or
    it may not have reached a standby of the target.
    """
    if not source or not target or is_postgres_url(source) == is_postgres_url(target):
        raise Misuse("name a data directory and a URL like postgresql://USER@HOST/DATABASE with --from and --to")
    tables = _tables()
    async with _opened(source, "--from") as reader:
        if not await _has_records(reader, tables):  # no target is made then
            raise Misuse(f"{reader.name} has nothing to copy: name another data directory or database with --from")
        return await _copy(reader, target, tables, advance)


async def _copy(reader: _Database, target: str, tables: list[_Table], advance: Advance) -> Migration:
    async with _opened(target, "--to") as writer:
        existing = await _read(writer, tables)
        if any(existing.rows[name] for name in RECORDS):
            if existing != await _read(reader, tables):
                raise StoreError(f"{writer.name} has other data: name a new data directory or database with --to")
            return existing
        content = await _read(reader, tables, writer, advance)
        for name in USAGE:
            await writer.set_last_id(name, await reader.last_id(name))
        if await _read(writer, tables) != content:
            raise StoreError(f"{writer.name} does not have what {reader.name} has; nothing was changed")
    return msgspec.structs.replace(content, copied=True)


def _tables() -> list[_Table]:
    """Return the tables with their columns, which are the same in both databases."""
    with closing(SCHEMA.connect(":memory:")) as database:
        columns = {
            name: database.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall() for name in TABLES
        }
    return [
        _Table(name, [column for column, _ in rows], next(column for column, pk in rows if pk))
        for name, rows in columns.items()
    ]


async def _has_records(database: _Database, tables: list[_Table]) -> bool:
    """Return whether somebody has used a server on a database."""
    for table in tables:
        if table.name in RECORDS:
            async with aclosing(database.chunks(table)) as chunks:
                async for _ in chunks:
                    return True
    return False


async def _read(
    database: _Database, tables: list[_Table], writer: _Database | None = None, advance: Advance = lambda _: None
) -> Migration:
    """Count the rows of a database, and compute their digest. Put them in place of those of `writer`, too."""
    digest, counts = hashlib.sha256(), dict.fromkeys(TABLES, 0)
    for table in tables:
        if writer is not None:
            await writer.clear(table)
        async for rows in database.chunks(table):
            digest.update(msgspec.msgpack.encode(rows))
            counts[table.name] += len(rows)
            if writer is not None:
                await writer.write(table, rows)
                advance(len(rows))
    digest.update(msgspec.msgpack.encode([await database.last_id(name) for name in USAGE]))
    return Migration(copied=False, rows=counts, sha256=digest.hexdigest())


def _opened(name: str, flag: str) -> AbstractAsyncContextManager[_Database]:
    """Open what a flag names in a transaction, and let no server use it meanwhile."""
    return _opened_url(name, flag) if is_postgres_url(name) else _opened_directory(Path(name), flag)


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _opened_directory(data: Path, flag: str) -> AsyncIterator[_Database]:
    file = data / FILE
    try:
        if flag == "--from":
            with SCHEMA.reading(data):
                pass
        lock = lock_data_directory(data)
    except (Misuse, InUse) as error:
        raise type(error)(str(error).replace("--data", flag)) from error
    with lock:
        SCHEMA.connect(str(file)).close()  # creates it
        give_to_owner(data, LOCK_FILE, FILE)  # as root, SQLite then gives its -wal and -shm to the same owner
        with closing(SCHEMA.connect(str(file))) as database:
            try:
                check_rows(database)
            except StoreDamaged as error:
                raise StoreDamaged(f"{file} is damaged ({error}): restore a backup; nothing was copied") from error
            try:
                database.execute("BEGIN IMMEDIATE")
                yield _Sqlite(database, str(data))
                database.execute("COMMIT")
            except sqlite3.Error as error:  # closing the connection rolls back
                raise StoreError(f"{file}: {write_failure_reason(error, data)}; run the command again") from error


class _Sqlite:
    """The database of a data directory."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self.name = name

    async def chunks(self, table: _Table) -> AsyncGenerator[Rows]:
        columns = (f"CAST({name} AS BLOB)" if name in JSON_TEXTS else name for name in table.columns)
        cursor = self._database.execute(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY {table.key}")  # noqa: S608
        while rows := cursor.fetchmany(table.rows_per_chunk):
            yield [tuple(map(_storable, row)) for row in rows]

    async def clear(self, table: _Table) -> None:
        self._database.execute(f"DELETE FROM {table.name}")  # noqa: S608

    async def write(self, table: _Table, rows: Rows) -> None:
        values = ("CAST(? AS TEXT)" if name in JSON_TEXTS else "?" for name in table.columns)
        sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES {{}}"  # noqa: S608
        execute_rows(self._database, sql, f"({', '.join(values)})", rows)

    async def last_id(self, table: str) -> int:
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return 0 if row is None else int(row[0])

    async def set_last_id(self, table: str, last_id: int) -> None:
        self._database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        self._database.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last_id))


def _storable(value: Any) -> Any:
    """Return a value without U+0000, which PostgreSQL cannot store; only old and imported records have some."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _opened_url(url: str, flag: str) -> AsyncIterator[_Database]:
    name, cancelled = without_password(url), list[asyncpg.PostgresLogMessage]()
    connection = await connect(url)
    connection.add_log_listener(lambda _, message: cancelled.append(message) if is_cancelled_wait(message) else None)
    try:
        async with without_servers(connection, url):
            yield _Postgres(connection, name)
        if cancelled and flag == "--to":
            raise StoreError(f"{name} has all rows, which may not have reached its standby: run the command again")
    except asyncpg.InsufficientPrivilegeError as error:
        raise not_owner(url, error) from error
    except (asyncpg.PostgresError, *DRIVER_ERRORS) as error:
        raise StoreError(f"{name}: {reason_of(error)}; run the command again") from error
    finally:
        connection.terminate()


class _Postgres:
    """The schema of a PostgreSQL database."""

    def __init__(self, connection: asyncpg.Connection, name: str) -> None:
        self._connection = connection
        self.name = name

    async def chunks(self, table: _Table) -> AsyncGenerator[Rows]:
        cursor = await self._connection.cursor(
            f"SELECT {', '.join(table.columns)} FROM restante.{table.name} ORDER BY {table.key}"  # noqa: S608
        )
        while rows := await cursor.fetch(table.rows_per_chunk):
            yield [tuple(row) for row in rows]

    async def clear(self, table: _Table) -> None:
        await self._connection.execute(f"DELETE FROM restante.{table.name}")  # noqa: S608

    async def write(self, table: _Table, rows: Rows) -> None:
        await self._connection.copy_records_to_table(
            table.name, schema_name="restante", columns=table.columns, records=rows
        )

    async def last_id(self, table: str) -> int:
        last_id: int = await self._connection.fetchval(
            f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM restante.{table}_id_seq"  # noqa: S608
        )
        return last_id

    async def set_last_id(self, table: str, last_id: int) -> None:
        sequence = f"'restante.{table}_id_seq'"
        await self._connection.execute(f"SELECT setval({sequence}, {max(last_id, 1)}, {last_id > 0})")
