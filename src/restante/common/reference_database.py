"""Databases of reference servers: those that are imported into a data directory, and those that exports write.

An import reads copies of them. The originals are never changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from restante.common.atomic_file import new_file
from restante.common.data_directory import LOCK_FILE, give_to_owner, lock_data_directory
from restante.common.errors import Misuse, StoreError
from restante.common.reference_rows import DatabaseKind, Row
from restante.common.sqlite import Schema, refuse_pipe

# ── a copy of a database of a reference server ───────────────────────────────────────────────────

_SUFFIXES: Final = ("", "-journal", "-wal")
"""Suffixes of the files that make up a database. SQLite uses -journal to roll back an interrupted transaction, and
-wal to add committed ones (sqlite.org/tempfiles.html)."""


class ReferenceDatabase:
    """An open copy of a database of a reference server."""

    def __init__(self, kind: DatabaseKind, path: Path, database: sqlite3.Connection) -> None:
        self.kind = kind
        self.name = os.fsencode(path.name).decode(errors="replace")
        self.label = f"{kind.flag} {path}"
        self._database = database
        self._present = _columns(database)

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table in the order in which they were written."""
        if table not in self._present:  # a later version added it
            return
        columns = ", ".join(f'"{column}"' for column in self.kind.columns[table])
        try:
            yield from self._database.execute(f'SELECT {columns} FROM "{table}" ORDER BY rowid')  # noqa: S608
        except sqlite3.Error as error:
            raise StoreError(f"{self.label} is damaged ({error}): restore an undamaged copy") from error

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

    def check(self, kinds: Collection[DatabaseKind]) -> None:
        """Raise StoreError if this is not a database of the kind that the flag names, or is damaged.

        If it is one of the other `kinds`, the error says so.
        """
        try:
            present = self._present
            if not present:
                raise StoreError(f"{self.label} is empty: name the file that the {self.kind.program} has written")
            for kind in kinds:
                if kind is not self.kind and _has_tables_of(present, kind):
                    raise StoreError(f"{self.label} is a {kind.name} database: name it with {kind.flag}")
            versions = (
                self._database.execute("SELECT version FROM version").fetchall()
                if _has_tables_of(present, self.kind)
                else []
            )
            if len(versions) != 1:  # the reference writes the version when it creates the tables
                raise StoreError(f"{self.label} is not a {self.kind.name} database of the {self.kind.program}")
            [(version,)] = versions
            if version not in self.kind.versions:
                supported = " and ".join(map(str, self.kind.versions))
                raise StoreError(
                    f"{self.label} has version {version}, this program knows {supported}: use a newer restante"
                )
            for table, since in self.kind.since.items():
                if version >= since and table not in present:
                    raise StoreError(f"{self.label} has version {version}, but no table {table}")
            [fault] = self._database.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.Error as error:
            fault = str(error)
        if fault != "ok":
            raise StoreError(f"{self.label} is damaged ({' '.join(fault.split())}): restore an undamaged copy")


@contextmanager
def _open_copy(
    kind: DatabaseKind, path: Path, folder: Path, kinds: Collection[DatabaseKind]
) -> Iterator[ReferenceDatabase]:
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
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, kind.row_bytes)
        try:
            database.execute("PRAGMA trusted_schema = OFF")  # do not run functions that a hostile schema names
            source = ReferenceDatabase(kind, path, database)  # this reads the copy, and thereby recovers it
        except sqlite3.Error as error:
            raise StoreError(f"{kind.flag} {path} is not an SQLite database, or is damaged ({error})") from error
        source.check(kinds)
        yield source


def _refuse_unreadable(kind: DatabaseKind, path: Path) -> None:
    """Raise Misuse if the file does not exist, is a pipe, or cannot be read."""
    try:
        refuse_pipe(path, f"{kind.flag}: ")
        with path.open("rb"):
            pass
    except OSError as error:
        raise Misuse(f"{kind.flag}: cannot read {path}: {error.strerror}") from None


def _copy(label: str, path: Path, copy: Path) -> None:
    """Copy a database with its -journal and -wal. Raises StoreError if they change meanwhile."""
    path = Path(os.path.realpath(path))  # if it is a link, the other files are beside its target
    before = _fingerprints(path)
    try:
        for suffix in before:
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    except OSError as error:
        raise StoreError(f"{label} cannot be copied to {copy.parent}: {error.strerror}") from error
    if _fingerprints(path) != before:
        raise StoreError(f"{label} was being written: stop the server that uses it, then try again")


def _fingerprints(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of each of a database's files, by suffix."""
    fingerprints = {}
    for suffix in _SUFFIXES:
        try:
            status = Path(f"{path}{suffix}").stat()
        except OSError:
            continue
        fingerprints[suffix] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return fingerprints


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


def _has_tables_of(present: dict[str, set[str]], kind: DatabaseKind) -> bool:
    """Return whether tables and columns are those of a database of this kind."""
    return all(
        present[table].issuperset(columns) if table in present else table in kind.since
        for table, columns in (*kind.columns.items(), ("version", ("version",)))
    )


# ── the import ───────────────────────────────────────────────────────────────────────────────────

COPIES_FOLDER: Final = "importing"
"""Folder in the data directory for the copies while an import runs. It is private: anyone who reads the mailbox
server's can join any live mailbox."""


class ImportReport(msgspec.Struct):
    """How many rows were imported and skipped. Each row that was read is counted once."""

    imported: dict[str, int]
    """Rows by kind."""
    skipped: dict[str, int]
    """Rows by kind and reason. Only reasons that occurred are listed."""


ImportRows = Callable[[sqlite3.Connection, Sequence[ReferenceDatabase], float], ImportReport]
"""Writes the rows of databases to ours, in the open transaction, and returns what was imported. The number is the
wall time of the import."""


def import_databases(
    schema: Schema,
    data: Path,
    files: Sequence[tuple[DatabaseKind, Path]],
    kinds: Collection[DatabaseKind],
    import_rows: ImportRows,
    record_tables: Collection[str] | None,
) -> ImportReport:
    """Import databases into that of a data directory. Both servers must be stopped.

    `kinds` are all kinds that this server imports. If one of the `record_tables` has rows, nothing is imported; None:
    it may have some. What root imports belongs to the owner of the directory. The schema has the table `imports`.

    Raises Misuse if a file cannot be opened, or the folder of the copies has other files; StoreError if the content
    of a file cannot be imported. Then nothing is changed.
    """
    copies = data / COPIES_FOLDER
    for kind, path in files:
        _refuse_unreadable(kind, path)
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(copies)):
            raise Misuse(f"{kind.flag}: {path} is in {copies}, which an import removes: move it to another folder")
    with lock_data_directory(data), _private_folder(data, kinds) as folder, ExitStack() as open_copies:
        sources = [open_copies.enter_context(_open_copy(kind, path, folder, kinds)) for kind, path in files]
        file = data / schema.file
        schema.connect(str(file)).close()  # creates it
        give_to_owner(data, LOCK_FILE, schema.file)  # as root, SQLite then gives its -wal and -shm to the same owner
        with closing(schema.connect(str(file))) as database:
            return _import_all(database, data, sources, import_rows, record_tables)


@contextmanager
def _private_folder(data: Path, kinds: Collection[DatabaseKind]) -> Iterator[Path]:
    """Create an empty folder for the copies, and remove it at the end.

    If a killed import left a folder behind, it is removed first. The caller must hold the lock of the data directory.
    Raises Misuse if the folder has files that no import makes.
    """
    folder = data / COPIES_FOLDER
    own_files = {f"{kind.name}.sqlite{suffix}" for kind in kinds for suffix in (*_SUFFIXES, "-shm")}
    try:
        foreign_files = sorted({path.name for path in folder.iterdir()} - own_files) if folder.exists() else []
        if foreign_files:
            raise Misuse(f"{folder} has files that no import makes, like {foreign_files[0]}: move them away")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import_all(
    database: sqlite3.Connection,
    data: Path,
    sources: Sequence[ReferenceDatabase],
    import_rows: ImportRows,
    record_tables: Collection[str] | None,
) -> ImportReport:
    try:
        database.execute("BEGIN IMMEDIATE")
        now = time.time()
        for source in sources:
            _register(database, source, now)
        if record_tables is not None:
            _require_empty(database, data, record_tables)
        report = import_rows(database, sources, now)
    except sqlite3.Error as error:
        raise StoreError(f"nothing was imported into {data}: {error}") from error  # closing the connection rolls back
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(
            f"the commit failed ({error}): repeat the import; it is refused if this one succeeded after all"
        ) from error
    return report


def _register(database: sqlite3.Connection, source: ReferenceDatabase, now: float) -> None:
    """Record an import. Raises StoreError if the same content was imported before."""
    digest = source.digest()
    if digest is None:
        return  # an empty file may be imported twice
    before = database.execute("SELECT name, at FROM imports WHERE digest = ?", (digest,)).fetchone()
    if before is not None:
        name, at = before
        imported_at = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
        raise StoreError(f"{source.label} was imported already ({imported_at} UTC, as {name}); nothing was changed")
    database.execute("INSERT INTO imports VALUES (?, ?, ?, ?)", (digest, source.kind.name, source.name, now))


def _require_empty(database: sqlite3.Connection, data: Path, record_tables: Collection[str]) -> None:
    exists = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in record_tables)  # noqa: S608
    if database.execute(f"SELECT {exists}").fetchone()[0]:
        raise StoreError(f"{data} is not empty: name a new directory with --data, or add to this one with --merge")


# ── the export ───────────────────────────────────────────────────────────────────────────────────


Select = Callable[[str], Iterable[tuple[Any, ...]]]
"""Returns the rows that a statement selects."""


@contextmanager
def snapshot(schema: Schema, data: Path) -> Iterator[Select]:
    """Open the database of a data directory for reading, in one state. Raises Misuse and StoreError as `reading`."""
    with schema.reading(data) as database:
        database.execute("BEGIN")
        yield database.execute


def export_database(
    source: AbstractContextManager[Select], file: Path, script: str, selects: Mapping[str, str]
) -> dict[str, int]:
    """Write a new database for programs that read the reference server's, and return how many rows each table has.

    The script makes the tables, and `selects` reads the rows of each from the source. The file appears when it is
    complete. Raises Misuse if it exists, StoreError if it cannot be written, and what the source raises.
    """
    with new_file(file) as unfinished, source as select:
        try:
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as target:
                target.executescript(f"BEGIN; {script}")
                counts = {table: _write(select(sql), target, table) for table, sql in selects.items()}
                target.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"cannot export to {file}: {error}") from error
    return counts


def _write(rows: Iterable[tuple[Any, ...]], target: sqlite3.Connection, table: str) -> int:
    columns = target.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    slots = ", ".join("?" * len(columns))
    return target.executemany(f"INSERT INTO {table} VALUES ({slots})", rows).rowcount  # noqa: S608
