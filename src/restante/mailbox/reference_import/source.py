"""Reads a database of the reference server from a copy. The original is never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from restante.common.errors import Misuse, StoreError
from restante.common.sqlite import refuse_pipe
from restante.mailbox.reference_import.reference import CHANNEL, USAGE, DatabaseKind, Row

_SUFFIXES = ("", "-journal", "-wal")
"""Suffixes of the files that make up a database. SQLite uses -journal to roll back an interrupted transaction, and
-wal to add committed ones (sqlite.org/tempfiles.html)."""


class Source:
    """An open copy of a database of the reference server."""

    def __init__(self, kind: DatabaseKind, path: Path, database: sqlite3.Connection) -> None:
        self.kind = kind
        self.name = os.fsencode(path.name).decode(errors="replace")
        self.called = f"{kind.flag} {path}"
        self._database = database
        self._present = _columns(database)

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table in the order in which they were written."""
        if table not in self._present:  # a later version added it
            return
        columns = ", ".join(f'"{column}"' for column in _fields(self.kind, table))
        try:
            yield from self._database.execute(f'SELECT {columns} FROM "{table}" ORDER BY rowid')  # noqa: S608
        except sqlite3.Error as error:
            raise StoreError(f"{self.called} is damaged ({error}): restore an undamaged copy") from error

    def digest(self) -> str | None:
        """Return a hash of the content, or None if there is none.

        It is a hash of the rows that are read here, not of the file. The same rows may be on other pages (after a
        VACUUM), in a -wal, or in a file of a later version, and must not be imported twice.
        """
        content, count = hashlib.sha256(self.kind.name.encode()), 0
        for table in self.kind.tables:
            content.update(f"\n{table}\n".encode())
            for row in self.rows(table):
                content.update(ascii(row).encode())
                count += 1
        return content.hexdigest() if count else None

    def check(self) -> None:
        """Raise StoreError if this is not a database of the kind that the flag names, or is damaged."""
        try:
            present = self._present
            if not present:
                raise StoreError(f"{self.called} is empty: name the file that the reference server has written")
            for other in (CHANNEL, USAGE):
                if other is not self.kind and _has_tables_of(present, other):
                    raise StoreError(f"{self.called} is a {other.name} database: name it with {other.flag}")
            versions = (
                self._database.execute("SELECT version FROM version").fetchall()
                if _has_tables_of(present, self.kind)
                else []
            )
            if len(versions) != 1:  # the reference writes the version when it creates the tables
                raise StoreError(f"{self.called} is not a {self.kind.name} database of the reference server")
            [(version,)] = versions
            if version not in self.kind.versions:
                known = " and ".join(map(str, self.kind.versions))
                raise StoreError(
                    f"{self.called} has version {version}, this program knows {known}: use a newer restante"
                )
            for table, since in self.kind.since.items():
                if version >= since and table not in present:
                    raise StoreError(f"{self.called} has version {version}, but no table {table}")
            [problem] = self._database.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.Error as error:
            problem = str(error)
        if problem != "ok":
            raise StoreError(f"{self.called} is damaged ({_one_line(problem)}): restore an undamaged copy")


@contextmanager
def opened(kind: DatabaseKind, path: Path, folder: Path) -> Iterator[Source]:
    """Copy a database into a private folder and open the copy.

    Raises StoreError if it is not of this kind or is damaged.
    """
    copy = folder / f"{kind.name}.sqlite"
    _copy(f"{kind.flag} {path}", path, copy)
    try:
        database = sqlite3.connect(copy, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreError(f"{kind.flag} {path} cannot be opened: {error}") from error
    with closing(database):
        database.text_factory = _text
        try:
            database.execute("PRAGMA trusted_schema = OFF")  # do not run functions that a hostile schema names
            source = Source(kind, path, database)  # this reads the copy, and thereby recovers it
        except sqlite3.Error as error:
            raise StoreError(f"{kind.flag} {path} is not an SQLite database, or is damaged ({error})") from error
        source.check()
        yield source


def must_exist(kind: DatabaseKind, path: Path) -> None:
    """Raise Misuse if the file does not exist, is a pipe, or cannot be read."""
    try:
        refuse_pipe(path, f"{kind.flag}: ")
        with path.open("rb"):
            pass
    except OSError as error:
        raise Misuse(f"{kind.flag}: cannot read {path}: {error.strerror}") from None


def _copy(called: str, path: Path, copy: Path) -> None:
    """Copy a database with its -journal and -wal. Raises StoreError if they change meanwhile."""
    path = Path(os.path.realpath(path))  # if it is a link, the others are beside its target
    before = _fingerprints(path)
    try:
        for end in before:
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    except OSError as error:
        raise StoreError(f"{called} cannot be copied to {copy.parent}: {error.strerror}") from error
    if _fingerprints(path) != before:
        raise StoreError(f"{called} was being written: stop the server that uses it, then try again")


def _fingerprints(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of each of a database's files, by suffix."""
    found = {}
    for end in _SUFFIXES:
        try:
            there = Path(f"{path}{end}").stat()
        except OSError:
            continue
        found[end] = (there.st_ino, there.st_size, there.st_mtime_ns)
    return found


def _text(value: bytes) -> str | bytes:
    """Decode a text. Text that is not UTF-8 stays bytes, which are not valid in any column that is read."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _columns(database: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {
        table: {row[0] for row in database.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        for table in tables
    }


def _fields(kind: DatabaseKind, table: str) -> tuple[str, ...]:
    fields: tuple[str, ...] = kind.tables[table]._fields  # type: ignore[attr-defined]
    return fields


def _has_tables_of(present: dict[str, set[str]], kind: DatabaseKind) -> bool:
    """Return whether tables and columns are those of a database of this kind."""
    wanted = {table: set(_fields(kind, table)) for table in kind.tables} | {"version": {"version"}}
    return all(
        columns <= present[table] if table in present else table in kind.since for table, columns in wanted.items()
    )


def _one_line(words: str) -> str:
    return " ".join(words.split())
