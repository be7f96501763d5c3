"""An SQLite database in a data directory: how it is opened, how its schema grows, what its refusals mean."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

from restante.common.data_directory import running
from restante.common.errors import Misuse, StoreBusy, StoreError, StoreFull

PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""Errors that an operator may clear away while the server runs. Any other means a bug, or a damaged disk."""

ROOMLESS: Final = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
"""What it may be called that there is no room."""

LITTLE: Final = 1 << 20
"""Bytes on a disk with less than which there is no room: SQLite takes 32 KiB before the first row is written."""


class Schema(NamedTuple):
    """A kind of database of ours."""

    package: str
    """Whose folder `sql` has the numbered migrations."""
    file: str
    """In the data directory."""
    application_id: int
    """Marks the file (sqlite.org/pragma.html#pragma_application_id)."""
    whose: str
    """For people: a database of this …"""

    def migrations(self) -> list[str]:
        """Give the numbered migrations; a database's version is how many of them it has had."""
        folder = resources.files(self.package) / "sql"
        files = sorted(file.name for file in folder.iterdir() if file.name.startswith("sqlite-"))
        return [(folder / name).read_text() for name in files]

    def connect(self, path: str) -> sqlite3.Connection:
        """Open a database to write, bringing its schema up to date. `:memory:` is for tests.

        WAL with synchronous=FULL: a commit that returned is on disk (sqlite.org/pragma.html#pragma_synchronous).
        Nothing is moved out of the log by SQLite itself; its engine does it, when everything is said. Raises
        StoreError where the file is not ours, is newer than this program, or cannot be used.
        """
        try:
            database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}") from error
        try:
            self._prepare(database, path)
        except sqlite3.DatabaseError as error:
            database.close()
            raise StoreError(f"cannot open {path}: {_words(error, Path(path).parent)}") from error
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection, path: str) -> None:
        scripts = self.migrations()
        version = _pragma(database, "user_version")
        if _pragma(database, "schema_version") and _pragma(database, "application_id") != self.application_id:
            raise StoreError(f"{path} is not a database of this {self.whose}; it was left as it is")
        if version > len(scripts):
            raise StoreError(
                f"{path} has schema {version}, this program knows up to {len(scripts)}: use the newer restante"
            )
        mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal" and path != ":memory:":
            raise StoreError(f"{path} is on a file system without WAL (shared memory): use a local disk")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        for number, script in enumerate(scripts[version:], version + 1):
            database.executescript(
                f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {self.application_id};"
                f" PRAGMA user_version = {number}; COMMIT;"
            )

    @contextmanager
    def reading(self, data: Path) -> Iterator[sqlite3.Connection]:
        """Open the database for reading, beside a running server and without disturbing it.

        Raises Misuse where there is none, StoreError where it is not ours or cannot be read.
        """
        path = data / self.file
        if not path.exists():
            raise Misuse(f"there is no {self.whose}'s data in {data} (--data names another directory)")
        try:
            # SQLite makes its files beside it, which a server that starts meanwhile needs. Where it may not, nobody
            # can write, and there is no log, it is told that nothing will change.
            log = path.with_name(f"{self.file}-wal")
            still = not os.access(data, os.W_OK) and not running(data) and not log.exists()
            uri = f"{path.absolute().as_uri()}?{'immutable=1' if still else 'mode=ro'}"
            with closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as database:
                if _pragma(database, "application_id") != self.application_id:
                    raise StoreError(f"{path} is not a database of this {self.whose}")
                if _pragma(database, "user_version") > len(self.migrations()):
                    raise StoreError(f"{path} is newer than this program: use the newer restante")
                yield database
        except sqlite3.DatabaseError as error:
            raise StoreError(f"cannot read {path}: {error}") from error


def _words(error: sqlite3.DatabaseError, folder: Path) -> str:
    """Say why a database cannot be opened. Without room for its log and index, that is "disk I/O error" to SQLite."""
    if primary(error) in ROOMLESS and shutil.disk_usage(folder).free < LITTLE:
        return f"the disk is full; make room in {folder}, and start again"
    return str(error)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def passing(error: sqlite3.Error) -> bool:
    """Tell whether what was refused may be tried again."""
    return primary(error) in PASSING


def primary(error: sqlite3.Error) -> int:
    """Give the primary code of an error (sqlite.org/rescode.html)."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def roll_back(database: sqlite3.Connection, cause: sqlite3.Error) -> StoreError:
    """Undo the transaction; say whether the senders may try again (busy, full) or nobody may (ours, damage)."""
    try:
        if database.in_transaction:
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        return StoreError(f"cannot roll back ({error}) after: {cause}")
    kind = StoreFull if primary(cause) == sqlite3.SQLITE_FULL else StoreBusy if passing(cause) else StoreError
    return kind(f"the database refused: {cause}")
