"""Reads databases where they are, while their servers run, and copies their new rows.

With a rollback journal (the reference server's) a reader blocks the writer's commit (sqlite.org/lockingv3.html). With
a write-ahead log (WAL, our servers') no one waits, but a read transaction keeps the log from being reset
(sqlite.org/wal.html). In PostgreSQL it keeps dead rows from being removed, of which a mailbox server makes many
(postgresql.org/docs/18/routine-vacuuming.html). So rows are copied in short statements, and the copy is read from
then on.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from restante.common.errors import Misuse, StoreError
from restante.pipeline.sources.source import Inode, PathPreview, SourceError, SourceSpec, refuse_special

if TYPE_CHECKING:
    from restante.common.postgres import Reader

BUSY_TIMEOUT: Final = 5.0
"""Seconds for which another program may have the database locked before we give up."""

SPARE_BYTES: Final = 64 << 20
"""Bytes that must be free beside the copy, because Spark usually writes to the same disk meanwhile."""

STEP_SECONDS: Final = 0.001
"""Seconds that a statement may take. With a rollback journal a commit waits for its end, and for the millisecond or
two until SQLite tries again (sqlite3.c, sqliteDefaultBusyCallback)."""

FIRST_STEP_ROWS: Final = 256
"""Rows of the first statement: half a millisecond if they are in memory."""

MAX_STEP_GROWTH: Final = 4
"""Factor by which a statement may copy more rows than the one before, from which its duration is estimated."""

MIN_REST_SECONDS: Final = 0.002
"""Seconds between two statements, or as many as the statement took, so that a commit seldom has to wait."""

POSTGRES_STEP_ROWS: Final = 20_000
"""Rows of a statement in PostgreSQL, which is a transaction: a tenth of a second."""


def database_path(spec: SourceSpec, preview: PathPreview, names: Sequence[str]) -> Path | None:
    """Return the path of a source's database: the file, or that of one of these names in a folder; None: neither."""
    if preview.files is not None:
        return next((spec.path / name for name in names if name in preview.files), None)
    return spec.path if preview.sqlite else None


@contextmanager
def reading(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """Yield a database opened for reading only; `name` is the source's.

    Bytes of a text that are invalid UTF-8 become lone surrogates. Raises SourceError if the path is a named pipe or a
    device, and for any SQLite error, also within the `with` block.
    """
    refuse_special(path, name)
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", BUSY_TIMEOUT, uri=True, isolation_level=None)
        ) as database:
            database.execute("PRAGMA trusted_schema = OFF")  # the file may come from anyone
            database.execute("PRAGMA cell_size_check = ON")  # notices more of the damage that it meets
            database.text_factory = _decode_text
            yield database
    except sqlite3.Error as error:
        raise SourceError(f"source {name}: {reason_of(error, path)}") from error
    except UnicodeDecodeError as error:  # of an error's text, which has a part of a damaged schema
        raise SourceError(f"source {name}: {path} is damaged or encrypted: name an undamaged copy") from error


@contextmanager
def reading_postgres(url: str, name: str) -> Iterator[Reader]:
    """Yield a database opened for reading only; `name` is the source's. Raises SourceError, also in the block."""
    from restante.common import postgres  # needs the extra

    try:
        with postgres.reading(url) as database:
            yield database
    except (Misuse, StoreError) as error:
        raise SourceError(f"source {name}: {error}") from error


def postgres_inodes(database: Reader) -> frozenset[Inode]:
    """Return what identifies a database, whatever the URL: its number, and when its server started."""
    rows = database.execute(
        "SELECT CAST(oid AS bigint), CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint)"
        " FROM pg_database WHERE datname = current_database()"
    )
    return frozenset((number, start) for number, start in rows)


class CopyFile:
    """A file in the scratch folder for copies of a database's new rows. A row's id is its rowid."""

    def __init__(self, name: str, file: Path) -> None:
        self.name, self.file = name, file

    def attach_to(self, database: sqlite3.Connection) -> None:
        """Open the file as the database `copy` of a connection."""
        database.execute("ATTACH ? AS copy", (f"{self.file.absolute().as_uri()}?mode=rwc",))
        database.execute("PRAGMA copy.journal_mode = OFF").fetchone()  # the copy need not survive a crash
        database.execute("PRAGMA copy.synchronous = OFF")

    def require_space(self, bytes_: int) -> None:
        """Raise SourceError if the disk has no room for so many bytes of new rows."""
        required = bytes_ + SPARE_BYTES
        free = shutil.disk_usage(self.file.parent).free
        if free < required:
            raise SourceError(
                f"source {self.name}: the copy of its new rows needs {required >> 20} MiB in"
                f" {self.file.parent}, where {free >> 20} MiB are free: make room there"
            )


class Selects(Protocol):
    """A database that is open for reading."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Iterable[tuple[Any, ...]]:
        """Return the rows that a statement selects."""


class SqliteDatabase:
    """A database in a file."""

    def __init__(self, connection: sqlite3.Connection, sleep: Callable[[float], None]) -> None:
        self.copy = connection
        """The connection in which the tables of the file for copies are called copy.NAME."""
        self._sleep, self.execute = sleep, connection.execute

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let the statements meanwhile see one state of the database."""
        self.execute("BEGIN")
        yield
        self.execute("COMMIT")

    def insert(self, into: str, select: str, parameters: Sequence[Any]) -> None:
        """Copy what a statement selects into a table of the file, whose columns `into` may name."""
        self.execute(f"INSERT INTO copy.{into} {select}", parameters)

    def copy_range(self, table: str, select: str, first_id: int, last_id: int) -> int:
        """Copy the rows of a range of ids into a table of the file, and return their number.

        `select` selects the rows between two ids, in the order of their ids, up to a number. With a rollback journal
        a rest follows each statement.
        """
        size, copied = FIRST_STEP_ROWS, 0
        [(journal,)] = self.execute("PRAGMA main.journal_mode")
        while True:
            begun = time.monotonic()
            count = self.execute(f"INSERT INTO copy.{table} {select}", (first_id, last_id, size)).rowcount
            seconds = time.monotonic() - begun
            copied += count
            [(last_copied,)] = self.execute(f"SELECT max(rowid) FROM copy.{table}")  # noqa: S608 - constants
            if count < size or last_copied == last_id:
                return copied
            first_id = last_copied + 1
            size = max(1, min(MAX_STEP_GROWTH * size, int(size * STEP_SECONDS / max(seconds, 0.0001))))
            if journal != "wal":
                self._sleep(max(MIN_REST_SECONDS, seconds))


class PostgresDatabase:
    """A database in PostgreSQL."""

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
        while rows := self.insert(table, select, (first_id, last_id, POSTGRES_STEP_ROWS)):
            copied += len(rows)
            first_id = rows[-1][0] + 1
        return copied


UsageDatabase: TypeAlias = SqliteDatabase | PostgresDatabase
"""A database of usage records, and the file for copies of its new rows."""


@contextmanager
def open_sqlite(
    path: Path, copies: CopyFile, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[SqliteDatabase]:
    """Yield a database opened for reading, with the file for copies of its new rows. Raises SourceError."""
    with reading(path, copies.name) as connection:
        copies.attach_to(connection)
        yield SqliteDatabase(connection, sleep)


@contextmanager
def open_postgres(url: str, copies: CopyFile) -> Iterator[PostgresDatabase]:
    """Yield a database, and the file for copies of its new rows. Raises SourceError."""
    try:
        with (
            reading_postgres(url, copies.name) as database,
            closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
        ):
            copies.attach_to(copy)
            yield PostgresDatabase(database, copy)
    except sqlite3.Error as error:  # of the file
        raise SourceError(f"source {copies.name}: {reason_of(error, copies.file)}") from error


@contextmanager
def copy_file(scratch: Path, name: str) -> Iterator[CopyFile]:
    """Yield a file for copies in the run's folder, which no other user can read, and remove it afterwards."""
    scratch.mkdir(mode=0o700, exist_ok=True)
    copies = CopyFile(name, scratch / f"{name}.sqlite")
    try:
        yield copies
    finally:
        copies.file.unlink(missing_ok=True)


def task_ranges(
    database: sqlite3.Connection, table: str, first_id: int, last_id: int, rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the first and last ids of ranges with so many rows of a table each, whichever ids are missing."""
    step = f"SELECT rowid FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT 1 OFFSET {rows}"  # noqa: S608 - constants
    while (following := database.execute(step, (first_id,)).fetchone()) and following[0] <= last_id:
        yield first_id, following[0] - 1
        first_id = following[0]
    yield first_id, last_id


def reason_of(error: sqlite3.Error, path: Path) -> str:
    """Return why a database cannot be read, and what to do."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return f"{path} is damaged or encrypted ({error}): name an undamaged copy"
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return f"another program has locked it for {BUSY_TIMEOUT:.0f} s: stop that program, or ingest a copy"
    if code in {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY}:
        return f"{path} was left in the middle of a commit: start its server, which repairs that, then try again"
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        return f"SQLite must create files beside {path}, and may not: run this as its server's user, or name a copy"
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return f"the disk has no room for the copy of its new rows ({error}): make room"
    return f"cannot read {path}: {error}"


_decode_text: Final = partial(str, encoding="utf-8", errors="surrogateescape")
"""A `partial`, not a function of ours, for speed: it is called for every text."""
