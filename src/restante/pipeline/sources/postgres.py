"""Reads usage records of a mailbox server on PostgreSQL while it runs, and copies the new ones.

A long transaction would keep PostgreSQL from removing dead rows, of which a mailbox server makes many
(postgresql.org/docs/18/routine-vacuuming.html). So rows are copied in short ones, and the copy is read from then on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from restante.common import postgres
from restante.common.errors import Misuse, StoreError
from restante.common.postgres import Reader
from restante.pipeline.sources.databases import CopyFile, reason_of
from restante.pipeline.sources.source import Inode, SourceError

ROWS_PER_STEP: Final = 20_000
"""Rows of a statement, which is a transaction: a tenth of a second."""


@contextmanager
def reading(url: str, name: str) -> Iterator[Reader]:
    """Yield a database opened for reading only; `name` is the source's. Raises SourceError, also in the block."""
    try:
        with postgres.reading(url) as database:
            yield database
    except (Misuse, StoreError) as error:
        raise SourceError(f"source {name}: {error}") from error


def inodes(database: Reader) -> frozenset[Inode]:
    """Return what identifies a database, whatever the URL: its number, and when its server started."""
    rows = database.execute(
        "SELECT CAST(oid AS bigint), CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint)"
        " FROM pg_database WHERE datname = current_database()"
    )
    return frozenset((number, start) for number, start in rows)


@contextmanager
def open_usage(url: str, name: str, copies: CopyFile) -> Iterator[PostgresUsage]:
    """Yield a database, and the file for copies of its new rows. Raises SourceError."""
    try:
        with reading(url, name) as database, closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            copies.attach_to(copy)
            yield PostgresUsage(database, copy)
    except sqlite3.Error as error:  # of the file
        raise SourceError(f"source {name}: {reason_of(error, copies.file)}") from error


class PostgresUsage:
    """The `UsageDatabase` of a schema in PostgreSQL."""

    def __init__(self, database: Reader, copy: sqlite3.Connection) -> None:
        self._database, self.copy = database, copy
        self.execute, self.snapshot = database.execute, database.snapshot

    def insert(self, into: str, select: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Copy what a statement selects into a table of the file, and return it."""
        rows = self.execute(select, parameters)
        if rows:
            values = ", ".join("?" * len(rows[0]))
            self.copy.execute("BEGIN")
            self.copy.executemany(f"INSERT INTO copy.{into} VALUES ({values})", rows)  # noqa: S608
            self.copy.execute("COMMIT")
        return rows

    def copy_range(self, table: str, select: str, first_id: int, last_id: int) -> int:
        """Copy the rows of a range of ids, a part in each transaction."""
        copied = 0
        while rows := self.insert(table, select, (first_id, last_id, ROWS_PER_STEP)):
            copied += len(rows)
            first_id = rows[-1][0] + 1
        return copied
