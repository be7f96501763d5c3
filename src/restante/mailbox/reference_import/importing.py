"""`restante import`: the reference server's databases into a data directory, all in one transaction or not at all."""

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

from restante.common.data_directory import lock
from restante.common.errors import Misuse, StoreError
from restante.mailbox.reference_import import translation
from restante.mailbox.reference_import.reference import CHANNEL, USAGE
from restante.mailbox.reference_import.report import Counts, Report
from restante.mailbox.reference_import.source import Source, must_exist, opened
from restante.mailbox.store.load import load
from restante.mailbox.store.rows import Rows
from restante.mailbox.store.schema import FILE, connect

COPIES_FOLDER: Final = "importing"
"""In the data directory, while an import runs: the copies, which hold what everybody's post is opened with."""

RECORDS_PER_CHUNK: Final = 10_000
"""Usage records that are in memory at a time."""

_RECORD_TABLES: Final = (
    "mailboxes",
    "nameplates",
    "messages",
    "usage_nameplates",
    "usage_mailboxes",
    "usage_client_versions",
)


def import_databases(data: Path, channel: Path | None, usage: Path | None, *, merge: bool) -> Report:
    """Import databases of the reference server; both servers are stopped.

    Raises Misuse where there is nothing to read, StoreError where it cannot be taken over; then nothing is changed.
    """
    wanted = [(kind, path) for kind, path in ((CHANNEL, channel), (USAGE, usage)) if path is not None]
    if not wanted:
        raise Misuse("name what is to be imported: --channel FILE, --usage FILE or both")
    for kind, path in wanted:
        must_exist(kind, path)
    held = lock(data)
    try:
        with _private_folder(data) as folder, ExitStack() as open_copies:
            sources = [open_copies.enter_context(opened(kind, path, folder)) for kind, path in wanted]
            with closing(connect(str(data / FILE))) as database:
                return _in_one_transaction(database, data, sources, merge=merge)
    finally:
        os.close(held)


@contextmanager
def _private_folder(data: Path) -> Iterator[Path]:
    """Make it anew: whoever has the lock may clear away what an import left that was killed."""
    folder = data / COPIES_FOLDER
    try:
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
            _note(database, source, now)
        if not merge:
            _must_be_empty(database, data)
        report = Report({}, {})
        for source in sources:
            take = _take_channel if source.kind is CHANNEL else _take_usage
            take(database, source, report)
        database.execute("UPDATE service SET saved = ?", (now,))
    except sqlite3.Error as error:
        raise StoreError(f"nothing was imported into {data}: {error}") from error  # closing it rolls back
    try:
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(
            f"the commit failed ({error}): import once more; should it be there after all, that will be refused"
        ) from error
    return report


def _note(database: sqlite3.Connection, source: Source, now: float) -> None:
    """Keep in mind that it was imported, and refuse what was."""
    digest = source.digest()
    if digest is None:
        return  # two empty files are no reason to refuse the second
    before = database.execute("SELECT name, at FROM imports WHERE digest = ?", (digest,)).fetchone()
    if before is not None:
        name, at = before
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
        raise StoreError(f"{source.called} was imported already ({when} UTC, as {name}); nothing was changed")
    database.execute("INSERT INTO imports VALUES (?, ?, ?, ?)", (digest, source.kind.name, source.name, now))


def _must_be_empty(database: sqlite3.Connection, data: Path) -> None:
    exists = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in _RECORD_TABLES)  # noqa: S608
    if database.execute(f"SELECT {exists}").fetchone()[0]:
        raise StoreError(f"{data} is not empty: name a new directory with --data, or add to this one with --merge")


def _take_channel(database: sqlite3.Connection, source: Source, report: Report) -> None:
    tables = {table: list(source.rows(table)) for table in CHANNEL.tables}
    service: float = database.execute("SELECT seconds FROM service").fetchone()[0]
    found = translation.channel(tables, load(database), service)
    if any(found.clashes.values()):
        # To skip them would cut off whoever holds their codes, and to let two pairs share one is worse.
        raise StoreError(
            f"{source.called} cannot be merged, {found.clashes['mailboxes']} of its mailboxes and"
            f" {found.clashes['nameplates']} of its nameplates are in use here too: let them end here first"
            " (a quarter of an hour), or name another directory with --data"
        )
    _write(database, Rows(found.changes))
    report.imported |= found.imported
    report.skipped |= found.skipped


def _take_usage(database: sqlite3.Connection, source: Source, report: Report) -> None:
    for table in USAGE.tables:
        rows, skipped, count = source.rows(table), Counts(), 0
        while some := list(islice(rows, RECORDS_PER_CHUNK)):
            records = translation.usage(table, some, skipped)
            _write(database, Rows(records, origin=source.name))
            count += len(records)
        report.imported[f"usage_{table}"] = count
        report.skipped |= skipped


def _write(database: sqlite3.Connection, rows: Rows) -> None:
    for sql, parameters, _ in rows.statements():
        database.executemany(sql, parameters)
