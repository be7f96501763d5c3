"""`restante import`: imports the reference server's databases into a data directory, in one transaction."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from restante.common.data_directory import LOCK, give_to_owner, lock
from restante.common.errors import Misuse, StoreError
from restante.mailbox.reference_import import translation
from restante.mailbox.reference_import.reference import CHANNEL, USAGE
from restante.mailbox.reference_import.report import Counts, Report
from restante.mailbox.reference_import.source import Source, must_exist, opened
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows
from restante.mailbox.store.schema import FILE, connect

COPIES_FOLDER: Final = "importing"
"""Folder in the data directory for the copies while an import runs. It is private: anyone who reads them can join
any live mailbox."""

_COPIES: Final = {f"{kind.name}.sqlite{end}" for kind in (CHANNEL, USAGE) for end in ("", "-journal", "-wal", "-shm")}
"""Names of all files that an import makes in this folder."""

RECORDS_PER_CHUNK: Final = 10_000
"""Usage records that are in memory at once."""

_RECORD_TABLES: Final = (
    "mailboxes",
    "nameplates",
    "messages",
    "usage_nameplates",
    "usage_mailboxes",
    "usage_client_versions",
)


def import_databases(data: Path, channel: Path | None, usage: Path | None, *, merge: bool) -> Report:
    """Import databases of the reference server. Both servers must be stopped.

    What root imports belongs to the owner of the directory.

    Raises Misuse if no file is named, a file cannot be opened, or the folder of the copies has other files;
    StoreError if the content of a file cannot be imported. Then nothing is changed.
    """
    wanted = [(kind, path) for kind, path in ((CHANNEL, channel), (USAGE, usage)) if path is not None]
    if not wanted:
        raise Misuse("nothing to import: name --channel FILE, --usage FILE or both")
    copies = data / COPIES_FOLDER
    for kind, path in wanted:
        must_exist(kind, path)
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(copies)):
            raise Misuse(f"{kind.flag}: {path} is in {copies}, which an import removes: move it to another folder")
    with lock(data), _private_folder(data) as folder, ExitStack() as open_copies:
        sources = [open_copies.enter_context(opened(kind, path, folder)) for kind, path in wanted]
        connect(str(data / FILE)).close()  # creates it
        give_to_owner(data, LOCK, FILE)  # as root, SQLite then gives its -wal and -shm to the same owner
        with closing(connect(str(data / FILE))) as database:
            return _in_one_transaction(database, data, sources, merge=merge)


@contextmanager
def _private_folder(data: Path) -> Iterator[Path]:
    """Create an empty folder for the copies, and remove it at the end.

    If a killed import left a folder behind, it is removed first. The caller must hold the lock of the data directory.
    Raises Misuse if the folder has files that no import makes.
    """
    folder = data / COPIES_FOLDER
    try:
        others = sorted({path.name for path in folder.iterdir()} - _COPIES) if folder.exists() else []
        if others:
            raise Misuse(f"{folder} has files that no import makes, like {others[0]}: move them away")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_one_transaction(database: sqlite3.Connection, data: Path, sources: list[Source], *, merge: bool) -> Report:
    try:
        database.execute("BEGIN IMMEDIATE")
        now = time.time()
        for source in sources:
            _register(database, source, now)
        if not merge:
            _require_empty(database, data)
        report = Report({}, {})
        for source in sources:
            run = _import_channel if source.kind is CHANNEL else _import_usage
            run(database, source, report)
        database.execute("UPDATE service SET saved = ?", (now,))
    except sqlite3.Error as error:
        raise StoreError(f"nothing was imported into {data}: {error}") from error  # closing the connection rolls back
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(
            f"the commit failed ({error}): repeat the import; it is refused if this one succeeded after all"
        ) from error
    return report


def _register(database: sqlite3.Connection, source: Source, now: float) -> None:
    """Record an import. Raises StoreError if the same content was imported before."""
    digest = source.digest()
    if digest is None:
        return  # an empty file may be imported twice
    before = database.execute("SELECT name, at FROM imports WHERE digest = ?", (digest,)).fetchone()
    if before is not None:
        name, at = before
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
        raise StoreError(f"{source.called} was imported already ({when} UTC, as {name}); nothing was changed")
    database.execute("INSERT INTO imports VALUES (?, ?, ?, ?)", (digest, source.kind.name, source.name, now))


def _require_empty(database: sqlite3.Connection, data: Path) -> None:
    exists = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in _RECORD_TABLES)  # noqa: S608
    if database.execute(f"SELECT {exists}").fetchone()[0]:
        raise StoreError(f"{data} is not empty: name a new directory with --data, or add to this one with --merge")


def _import_channel(database: sqlite3.Connection, source: Source, report: Report) -> None:
    tables = {table: list(source.rows(table)) for table in CHANNEL.tables}
    service: float = database.execute("SELECT seconds FROM service").fetchone()[0]
    found = translation.channel(tables, load(database), service)
    if any(found.clashes.values()):
        # Skipping them would cut off the users who have their codes. Letting two pairs of users share one is worse.
        raise StoreError(
            f"{source.called} cannot be merged: {found.clashes['mailboxes']} of its mailboxes and"
            f" {found.clashes['nameplates']} of its nameplates are in use here too. Wait until they have ended here"
            " (about a quarter of an hour), or name another directory with --data"
        )
    _write(database, Rows(found.changes))
    report.imported |= found.imported
    report.skipped |= found.skipped


def _import_usage(database: sqlite3.Connection, source: Source, report: Report) -> None:
    for table in USAGE.tables:
        rows, skipped, count = source.rows(table), Counts(), 0
        while chunk := list(islice(rows, RECORDS_PER_CHUNK)):
            records = translation.usage(table, chunk, skipped)
            _write(database, Rows(records, origin=source.name))
            count += len(records)
        report.imported[f"usage_{table}"] = count
        report.skipped |= skipped


def _write(database: sqlite3.Connection, rows: Rows) -> None:
    for sql, parameters, _ in rows.statements():
        database.executemany(sql, parameters)
