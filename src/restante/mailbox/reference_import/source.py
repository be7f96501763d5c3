"""A database of the reference server, read in a copy: recovered there, recognised, and never touched itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from restante.common.errors import Misuse, StoreError
from restante.mailbox.reference_import.reference import CHANNEL, USAGE, DatabaseKind, Row

_BESIDE = ("", "-journal", "-wal")
"""What of a database is on disk. From its -journal SQLite takes back a transaction that was cut off, from its -wal it
adds what was committed (sqlite.org/tempfiles.html)."""


class Source:
    """An open copy."""

    def __init__(self, kind: DatabaseKind, path: Path, database: sqlite3.Connection) -> None:
        self.kind = kind
        self.name = os.fsencode(path.name).decode(errors="replace")
        self.called = f"{kind.flag} {path}"
        self._database = database
        self._present = _columns(database)

    def rows(self, table: str) -> Iterator[Row]:
        """Give the rows of a table in the order in which they were written."""
        if table not in self._present:  # it came with a later version
            return
        columns = ", ".join(f'"{column}"' for column in _fields(self.kind, table))
        try:
            yield from self._database.execute(f'SELECT {columns} FROM "{table}" ORDER BY rowid')  # noqa: S608
        except sqlite3.Error as error:
            raise StoreError(f"{self.called} is damaged ({error}): bring back a copy that is whole") from error

    def digest(self) -> str | None:
        """Name the content: the same for a copy, and after a VACUUM; None where there is none.

        It is taken of the rows that are read here, not of the file: the same rows may stand on other pages, in a
        -wal, or in the file's next version, and must not be taken over twice.
        """
        content, count = hashlib.sha256(self.kind.name.encode()), 0
        for table in self.kind.tables:
            content.update(f"\n{table}\n".encode())
            for row in self.rows(table):
                content.update(ascii(row).encode())
                count += 1
        return content.hexdigest() if count else None

    def check(self) -> None:
        """Raise StoreError where this is not what the flag says, or is damaged."""
        try:
            present = self._present
            if not present:
                raise StoreError(f"{self.called} is empty: name the file that the reference server has written")
            for other in (CHANNEL, USAGE):
                if other is not self.kind and _has(present, other):
                    raise StoreError(f"{self.called} is a {other.name} database: name it with {other.flag}")
            versions = (
                self._database.execute("SELECT version FROM version").fetchall() if _has(present, self.kind) else []
            )
            if len(versions) != 1:  # it is made together with the tables
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
            raise StoreError(f"{self.called} is damaged ({_line(problem)}): bring back a copy that is whole")


@contextmanager
def opened(kind: DatabaseKind, path: Path, folder: Path) -> Iterator[Source]:
    """Copy a database into a private folder and open it there.

    Raises StoreError where it is not of this kind or is damaged.
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
            database.execute("PRAGMA trusted_schema = OFF")  # whoever wrote it
            source = Source(kind, path, database)  # reading it is what recovers it
        except sqlite3.Error as error:
            raise StoreError(f"{kind.flag} {path} is no SQLite database, or damaged ({error})") from error
        source.check()
        yield source


def must_exist(kind: DatabaseKind, path: Path) -> None:
    """Raise Misuse where there is no file that could be read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise Misuse(f"{kind.flag}: cannot read {path}: {error.strerror}") from None


def _copy(called: str, path: Path, copy: Path) -> None:
    """Copy the file and what is beside it, as they are at one moment."""
    before = _stamps(path)
    try:
        for end in before:
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    except OSError as error:
        raise StoreError(f"{called} cannot be copied to {copy.parent}: {error.strerror}") from error
    if _stamps(path) != before:
        raise StoreError(f"{called} was being written: stop the server that uses it, then try again")


def _stamps(path: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for end in _BESIDE:
        try:
            there = Path(f"{path}{end}").stat()
        except OSError:
            continue
        found[end] = (there.st_ino, there.st_size, there.st_mtime_ns)
    return found


def _text(value: bytes) -> str | bytes:
    """Read a text; what is no UTF-8 stays bytes, which no column of theirs may hold."""
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


def _has(present: dict[str, set[str]], kind: DatabaseKind) -> bool:
    """Tell by tables and columns whether it is a database of this kind."""
    wanted = {table: set(_fields(kind, table)) for table in kind.tables} | {"version": {"version"}}
    return all(
        columns <= present[table] if table in present else table in kind.since for table, columns in wanted.items()
    )


def _line(words: str) -> str:
    return " ".join(words.split())
