"""`restante import`: imports the reference server's databases into a data directory, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from restante.common import reference_database
from restante.common.errors import Misuse, StoreError
from restante.common.reference_database import ImportReport, ReferenceDatabase
from restante.common.reference_rows import Counts
from restante.common.sqlite import execute_rows
from restante.mailbox.reference_import import translation
from restante.mailbox.reference_import.translation import CHANNEL, USAGE
from restante.mailbox.store.rows import Rows, load_state
from restante.mailbox.store.schema import SCHEMA

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


def import_databases(data: Path, channel: Path | None, usage: Path | None, *, merge: bool) -> ImportReport:
    """Import databases of the reference server, as `restante.common.reference_database` does.

    Raises Misuse also if no file is named.
    """
    files = [(kind, path) for kind, path in ((CHANNEL, channel), (USAGE, usage)) if path is not None]
    if not files:
        raise Misuse("nothing to import: name --channel FILE, --usage FILE or both")
    return reference_database.import_databases(
        SCHEMA, data, files, (CHANNEL, USAGE), _import_rows, None if merge else _RECORD_TABLES
    )


def _import_rows(database: sqlite3.Connection, sources: Sequence[ReferenceDatabase], now: float) -> ImportReport:
    report = ImportReport({}, {})
    for source in sources:
        import_source = _import_channel if source.kind is CHANNEL else _import_usage
        import_source(database, source, report)
    database.execute("UPDATE service SET saved = ?", (now,))
    return report


def _import_channel(database: sqlite3.Connection, source: ReferenceDatabase, report: ImportReport) -> None:
    tables = {table: list(source.rows(table)) for table in CHANNEL.tables}
    service: float = database.execute("SELECT seconds FROM service").fetchone()[0]
    translated = translation.translate_channel(tables, load_state(database), service)
    if any(translated.clashes.values()):
        # Skipping them would cut off the users who have their codes. Letting two pairs of users share one is worse.
        raise StoreError(
            f"{source.label} cannot be merged: {translated.clashes['mailboxes']} of its mailboxes and"
            f" {translated.clashes['nameplates']} of its nameplates are in use here too. Wait until they have ended"
            " here (about a quarter of an hour), or name another directory with --data"
        )
    _write(database, Rows(translated.changes))
    report.imported |= translated.imported
    report.skipped |= translated.skipped


def _import_usage(database: sqlite3.Connection, source: ReferenceDatabase, report: ImportReport) -> None:
    for table in USAGE.tables:
        rows, skipped, count = source.rows(table), Counts(), 0
        while chunk := list(islice(rows, RECORDS_PER_CHUNK)):
            records = translation.translate_usage(table, chunk, skipped)
            _write(database, Rows(records, origin=source.name))
            count += len(records)
        report.imported[f"usage_{table}"] = count
        report.skipped |= skipped


def _write(database: sqlite3.Connection, rows: Rows) -> None:
    for sql, row, parameters, _ in rows.statements():
        execute_rows(database, sql, row, parameters)
