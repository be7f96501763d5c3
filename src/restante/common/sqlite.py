"""SQLite databases in a data directory: opening, migrations, and the meaning of errors."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from restante.common.data_directory import is_running
from restante.common.errors import CommitFailed, Misuse, StoreBusy, StoreDamaged, StoreError, StoreFull

PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""Errors that an operator can remedy while the server runs: the statement may be tried again. Any other is a bug or a
damaged disk."""

CERTAINLY_UNDONE: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL}
"""Error codes of COMMIT that prove that nothing was committed. SQLITE_FULL means that a write of a page to the log
found no space (os_unix.c, unixWrite), before the write that commits the transaction. A failed flush has another
code."""

NO_SPACE_CODES: Final = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
"""Errors that SQLite may report when the disk is full."""

LITTLE_FREE_BYTES: Final = 1 << 20
"""Free bytes below which a disk counts as full. SQLite needs 32 KiB before it writes the first row."""

# sqlite3 binds an int, a float and a str as they are. Of a value of another type it asks the type and the value for
# methods that adapt it, and raises and drops an exception for each that is missing (CPython 3.11,
# Modules/_sqlite/microprotocols.c). That takes 2,500 instructions a value, with an adapter 800.
# Adapters are of the whole process. These change no value.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), lambda _: None)


ROWS_PER_STATEMENT: Final = (1024, 256, 64, 16, 4, 1)
"""Rows of a statement. The driver keeps a prepared statement of each size."""


def execute_rows(database: sqlite3.Connection, statement: str, row: str, rows: Sequence[Sequence[Any]]) -> int:
    """Execute a statement for many rows, and return how many rows it has changed.

    {} in the statement stands for the rows, and `row` has the placeholders of one. A statement for each row
    (`executemany`) takes twice the time, and as often releases the interpreter lock.
    """
    start = changed = 0
    end = len(rows)
    for size in ROWS_PER_STATEMENT:
        while end - start >= size:
            parameters = tuple(chain.from_iterable(rows[start : start + size]))
            changed += database.execute(_for_rows(statement, row, size), parameters).rowcount
            start += size
    return changed


@lru_cache
def _for_rows(statement: str, row: str, count: int) -> str:
    return statement.format(", ".join([row] * count))


class Schema(NamedTuple):
    """One kind of database."""

    package: str
    """The package whose folder `sql` has the numbered migrations."""
    file: str
    """Name of the file in the data directory."""
    application_id: int
    """Marks the file (sqlite.org/pragma.html#pragma_application_id)."""
    program: str
    """Its name in error messages: "a database of this …"."""

    def migrations(self) -> list[str]:
        """Return the numbered migrations. A database's version is the number of those it has had."""
        folder = resources.files(self.package) / "sql"
        files = sorted(file.name for file in folder.iterdir() if file.name.startswith("sqlite-"))
        return [(folder / name).read_text("utf-8") for name in files]

    def connect(self, path: str) -> sqlite3.Connection:
        """Open a database for writing and run the migrations it lacks. `:memory:` has only the tables.

        WAL with synchronous=FULL: a commit that returned is on disk (sqlite.org/pragma.html#pragma_synchronous).
        Automatic checkpoints are off; the store makes them when no client is waiting. Raises StoreError if the file
        is another program's, is newer than this program, or cannot be used.
        """
        existed = Path(path).exists()
        try:
            database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}") from error
        try:
            self._prepare(database, path, existed=existed)
        except sqlite3.DatabaseError as error:
            database.close()
            raise StoreError(f"cannot open {path}: {write_failure_reason(error, Path(path).parent)}") from error
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection, path: str, *, existed: bool) -> None:
        scripts = self.migrations()
        version = schema_of(database)
        if _pragma(database, "schema_version") and _pragma(database, "application_id") != self.application_id:
            raise StoreError(f"{path} is not a database of this {self.program}; nothing was changed")
        self._refuse_newer(version, path)
        mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal" and path != ":memory:":
            raise StoreError(f"{path} is on a file system that does not support SQLite's WAL mode: use a local disk")
        if existed and version < len(scripts):
            _announce(path, version, len(scripts))
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        for number, script in enumerate(scripts[version:], version + 1):
            database.executescript(
                f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {self.application_id};"
                f" PRAGMA user_version = {number}; COMMIT;"
            )

    def _refuse_newer(self, version: int, path: str | Path) -> None:
        newest = len(self.migrations())
        if version > newest:
            raise StoreError(
                f"{path} has schema {version}, this program knows up to {newest}: use the newer restante"
            )

    @contextmanager
    def reading(self, data: Path) -> Iterator[sqlite3.Connection]:
        """Open the database of a data directory for reading, even while a server runs.

        Raises Misuse if there is no database, or a pipe, StoreError if it is another program's or cannot be read.
        """
        path = data / self.file
        try:
            refuse_pipe(path)
            # SQLite creates -wal and -shm beside the database. It cannot if the directory is read-only. Then it reads
            # the file alone, which is complete if no server runs and there is no log.
            alone = not os.access(data, os.W_OK) and not is_running(data) and not _log(path).exists()
        except FileNotFoundError:
            raise Misuse(f"there is no {self.program}'s data in {data} (--data names another directory)") from None
        except NotADirectoryError:
            raise Misuse(f"{data} is not a directory: name a directory with --data") from None
        except OSError as error:
            raise Misuse(f"cannot read {path}: {error.strerror}") from error
        with self._reading(path, alone=alone) as database:
            yield database

    @contextmanager
    def reading_copy(self, path: Path) -> Iterator[sqlite3.Connection]:
        """Open a copy of a database for reading. No process may be writing to it.

        A log beside it (-wal) is read, too. Without one, the file may be on a medium that is read-only. Raises Misuse
        if there is no such file or it is a pipe, StoreError if it is another program's or cannot be read.
        """
        try:
            refuse_pipe(path)
            with path.open("rb"):
                alone = not _log(path).exists()
        except (FileNotFoundError, NotADirectoryError):
            raise Misuse(f"there is no file {path}") from None
        except IsADirectoryError:
            raise Misuse(f"{path} is a directory: name the file of a backup") from None
        except OSError as error:
            raise Misuse(f"cannot read {path}: {error.strerror}") from error
        with self._reading(path, alone=alone) as database:
            yield database

    @contextmanager
    def _reading(self, path: Path, *, alone: bool) -> Iterator[sqlite3.Connection]:
        """Open a database for reading: with its log and locks, or the file alone (sqlite.org/uri.html, immutable)."""
        uri = f"{path.absolute().as_uri()}?{'immutable=1' if alone else 'mode=ro'}"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as database:
                if _pragma(database, "application_id") != self.application_id:
                    raise StoreError(f"{path} is not a database of this {self.program}")
                self._refuse_newer(schema_of(database), path)
                yield database
        except sqlite3.DatabaseError as error:
            raise StoreError(f"cannot read {path}: {error}") from error


def refuse_pipe(path: Path, prefix: str = "") -> None:
    """Raise Misuse if a path leads to a pipe or a device, which SQLite would wait for. Raises OSError, too."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Misuse(f"{prefix}{path} is a pipe or a device: name a file")


def schema_of(database: sqlite3.Connection) -> int:
    """Return the version of a database's schema."""
    return _pragma(database, "user_version")


def _log(path: Path) -> Path:
    """Return the path of a database's log. If the database is a link, its log is beside the target."""
    return Path(f"{os.path.realpath(path)}-wal")


def _announce(path: str, version: int, newest: int) -> None:
    """Log what the operator should know before migrations run, which take minutes on a large database.

    A command that does not log writes a sentence to standard error.
    """
    from restante.common.logs import is_log_started, log  # not for every command: structlog takes 30 ms

    if not is_log_started():
        text = (
            f"converting {path} from schema {version} to {newest}"
            if version
            else f"{path} was empty: creating a new database in it"
        )
        sys.stderr.write(f"restante: {text}\n")
    elif version:
        size = Path(path).stat().st_size
        log.info("converting the database", file=path, bytes=size, schema=version, to_schema=newest)
    else:
        log.warning("the database file was empty: creating a new database in it", file=path)


def write_failure_reason(error: sqlite3.Error, folder: Path) -> str:
    """Return why a database cannot be written in a folder. On a full disk SQLite may say "disk I/O error"."""
    if primary_code(error) in NO_SPACE_CODES and shutil.disk_usage(folder).free < LITTLE_FREE_BYTES:
        return f"the disk is full; make room in {folder}, and try again"
    return str(error)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    value: int = database.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def primary_code(error: sqlite3.Error) -> int:
    """Return the primary code of an error (sqlite.org/rescode.html)."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def roll_back(database: sqlite3.Connection, cause: sqlite3.Error) -> StoreError:
    """Roll back and return the error to raise: StoreBusy or StoreFull if it may be tried again, else StoreError."""
    try:
        if database.in_transaction:
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        return StoreError(f"cannot roll back ({error}) after: {cause}")
    code = primary_code(cause)
    kind = StoreFull if code == sqlite3.SQLITE_FULL else StoreBusy if code in PASSING else StoreError
    return kind(f"the database refused: {cause}")


def roll_back_commit(database: sqlite3.Connection, cause: sqlite3.Error) -> StoreError:
    """Roll back after a failed COMMIT and return the error to raise: StoreBusy or StoreFull if it may be tried again.

    After any other error, CommitFailed, part of the transaction may be on disk. A retry could succeed although the
    data is lost (fsyncgate), so nothing may be tried again.
    """
    undone = roll_back(database, cause)
    if isinstance(undone, StoreBusy) and primary_code(cause) in CERTAINLY_UNDONE:
        return undone
    return CommitFailed(f"commit failed: {cause}")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write in one transaction, which is on disk when the block ends.

    Raises StoreBusy or StoreFull if nothing was written and the same may be tried again, CommitFailed if it is
    unknown whether it was written, else StoreError.
    """
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
    except sqlite3.Error as error:
        raise roll_back(database, error) from error
    except BaseException:
        database.execute("ROLLBACK")
        raise
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise roll_back_commit(database, error) from error


def checkpoint(database: sqlite3.Connection, mode: str = "PASSIVE") -> None:
    """Move the write-ahead log into the database as far as readers allow. The rest stays for the next time."""
    try:
        database.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    except sqlite3.Error as error:
        from restante.common.logs import log

        log.warning("the checkpoint failed: nothing is lost, but the -wal file grows", error=str(error))


def check_pages(database: sqlite3.Connection) -> None:
    """Raise StoreDamaged if a page or an index of a database is damaged. It reads all of the database."""
    try:
        fault = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        fault = str(error)
    if fault != "ok":
        raise StoreDamaged(" ".join(fault.split()))


# ── copies of a database as it is at one moment, even while another process writes to it ─────────

PAGES_PER_STEP: Final = 1024
"""Pages that are copied per step. A signal or an error ends the copy between two steps."""


def copy_database(source: sqlite3.Connection, file: Path, advance: Callable[[int], None]) -> None:
    """Copy a database into an empty file. `advance` is called with the number of pages after each step.

    The copy is this file alone: it is not in WAL mode until a server opens it. It is not flushed to disk. Raises
    StoreError if it cannot be written.
    """
    # While this transaction is open, the connection sees the same moment, and the copy does not restart when the
    # server writes (sqlite.org/backup.html). With WAL the server does not wait for it, but its log grows.
    source.execute("BEGIN")
    try:
        source.execute("SELECT 1 FROM sqlite_schema").fetchone()
        with closing(sqlite3.connect(file, isolation_level=None)) as copy:
            copy.execute("PRAGMA locking_mode = EXCLUSIVE")  # so that it needs no shared memory (-shm)
            copy.execute("PRAGMA journal_mode = OFF")  # a copy that fails is removed
            source.backup(copy, pages=PAGES_PER_STEP, progress=lambda *_: advance(PAGES_PER_STEP), sleep=0)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"cannot copy the database: {write_failure_reason(error, file.parent)}") from error
    finally:
        source.execute("ROLLBACK")
