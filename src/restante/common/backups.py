"""Backups of a server's database: copies that are checked before they get a name."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from restante.common.atomic_file import new_file
from restante.common.data_directory import (
    LOCK_FILE,
    give_to_owner,
    is_running,
    lock_data_directory,
    refuse_unusable_directory,
)
from restante.common.disk_probe import PROBE_FILE
from restante.common.errors import Misuse, StoreDamaged, StoreError
from restante.common.sqlite import Schema, copy_database, schema_of, write_failure_reason

BACKUP_MARK: Final = "last-backup"
"""An empty file in the data directory. When it was modified, the last backup was complete."""


class BackupContents(msgspec.Struct):
    """What a backup has, or what was restored. A server adds the counts of its rows."""

    file: str
    bytes: int
    db_schema: int = msgspec.field(name="schema")
    """Version of the database's schema. A newer server converts it."""
    saved: float | None
    """When the server last committed before the backup, as a wall clock time; None: never."""


Contents = TypeVar("Contents", bound=BackupContents)

ReadContents = Callable[[sqlite3.Connection, str, int, int], Contents]
"""Checks an open copy, and returns what it has. Called with the connection, the name of its file, its size and the
version of its schema. Raises StoreDamaged if a server could not use it."""


LeaveOut = Callable[[sqlite3.Connection], None]
"""Deletes from an open copy what no backup is to have."""


def back_up(
    schema: Schema,
    data: Path,
    file: Path,
    read_contents: ReadContents[Contents],
    advance: Callable[[int], None],
    leave_out: LeaveOut | None = None,
) -> Contents:
    """Copy the database of a data directory into a new file, and return what it has. A server may be running.

    The copy shows one moment between two commits. The file appears when it was checked and is on disk. Raises Misuse
    if the file exists, its directory does not, or there is no database; StoreError if the database is another
    program's, newer than this program or damaged, or the copy cannot be written.
    """
    if os.path.realpath(file.parent) == os.path.realpath(data):
        raise Misuse(f"{file} is in the data directory: name a file in another directory")
    with schema.reading(data) as database, new_file(file) as unfinished:
        copy_database(database, unfinished, advance)
        try:
            contents = _check_copy(unfinished, file, read_contents)
        except StoreDamaged as error:
            raise StoreDamaged(
                f"no backup was made, because {data / schema.file} is damaged ({error}): stop the server and restore"
                " an earlier backup, or salvage what `sqlite3 FILE .recover` can read"
            ) from error
        if leave_out is not None:
            _delete(unfinished, file, leave_out)
    _mark_backup(data)
    return contents


def _delete(unfinished: Path, file: Path, leave_out: LeaveOut) -> None:
    """Delete rows of a copy so that their bytes are not in the file. Raises StoreError."""
    try:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
            copy.execute("PRAGMA secure_delete = ON")
            copy.execute("PRAGMA journal_mode = OFF")  # a copy that fails is removed
            leave_out(copy)
    except sqlite3.Error as error:
        raise StoreError(f"cannot write {file}: {write_failure_reason(error, file.parent)}") from error


def _mark_backup(data: Path) -> None:
    """Note in a data directory that a backup was made now, if this user may write there."""
    with suppress(OSError, StoreError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(data / BACKUP_MARK, flags, 0o600)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
        give_to_owner(data, BACKUP_MARK)


def last_backup(data: Path) -> float | None:
    """Return when the last backup of a data directory was complete; None: never, or it could not be noted."""
    try:
        return (data / BACKUP_MARK).stat().st_mtime
    except OSError:
        return None


def restore(
    schema: Schema, file: Path, data: Path, read_contents: ReadContents[Contents], advance: Callable[[int], None]
) -> Contents:
    """Copy a backup into a data directory that is new or empty, and return what it has.

    The database appears when it was checked and is on disk. What root restores belongs to the owner of the directory.
    Raises Misuse if there is no such file or the directory is not empty; StoreError if the file is another program's,
    newer than this program or damaged, if another process uses the directory, or if the copy cannot be written.
    """
    with schema.reading_copy(file) as backup:
        refuse_unusable_directory(data)
        if _in_use(data) and not is_running(data):
            raise Misuse(f"{data} is not empty: move its files away, or name another directory with --data")
        with lock_data_directory(data), new_file(data / schema.file) as unfinished:
            copy_database(backup, unfinished, advance)
            give_to_owner(data, LOCK_FILE, unfinished.name)
            try:
                return _check_copy(unfinished, data / schema.file, read_contents)
            except StoreDamaged as error:
                raise StoreDamaged(
                    f"nothing was restored, because {file} is damaged ({error}): use another backup, or salvage"
                    " what `sqlite3 FILE .recover` can read"
                ) from error


def _in_use(data: Path) -> bool:
    """Return whether a data directory has files."""
    try:
        return data.exists() and any(path.name not in {LOCK_FILE, PROBE_FILE} for path in data.iterdir())
    except OSError as error:
        raise Misuse(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error


def _check_copy(unfinished: Path, file: Path, read_contents: ReadContents[Contents]) -> Contents:
    """Open a copy that is complete, and return what it has. Raises StoreDamaged if a server could not use it."""
    with closing(sqlite3.connect(f"{unfinished.absolute().as_uri()}?mode=ro", uri=True)) as copy:
        return read_contents(copy, str(file), unfinished.stat().st_size, schema_of(copy))


def render_contents(contents: BackupContents) -> str:
    """Return what a copy has as lines of text."""
    saved = (
        "never" if contents.saved is None else f"{datetime.fromtimestamp(int(contents.saved), UTC):%Y-%m-%d %X} UTC"
    )
    general = ("file", "bytes", "db_schema", "saved")
    counts = {name: value for name, value in msgspec.structs.asdict(contents).items() if name not in general}
    lines = [
        ("file", contents.file),
        ("bytes", f"{contents.bytes:,}"),
        ("schema", str(contents.db_schema)),
        ("last commit", saved),
        *((name.replace("_", " "), f"{count:,}") for name, count in counts.items()),
    ]
    return "\n".join(f"{name:<13} {value}" for name, value in lines)
