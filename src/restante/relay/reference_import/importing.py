"""`restante relay import`: imports the reference relay's usage records into a data directory, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from restante.common.reference_database import ImportReport, ReferenceDatabase, import_databases
from restante.common.reference_rows import Counts
from restante.relay.reference_import.translation import USAGE, translate_rows
from restante.relay.store.schema import SCHEMA
from restante.relay.store.sqlite import insert_records

RECORDS_PER_CHUNK: Final = 10_000
"""Usage records that are in memory at once."""


def import_usage(data: Path, usage: Path, *, merge: bool) -> ImportReport:
    """Import a usage database of the reference relay, as `restante.common.reference_database` does."""
    return import_databases(SCHEMA, data, [(USAGE, usage)], [USAGE], _import_rows, None if merge else ["transfers"])


def _import_rows(database: sqlite3.Connection, sources: Sequence[ReferenceDatabase], _now: float) -> ImportReport:
    [source] = sources
    rows, skipped, count = source.rows("usage"), Counts(), 0
    while chunk := list(islice(rows, RECORDS_PER_CHUNK)):
        records = translate_rows(chunk, skipped)
        insert_records(database, records, source.name)
        count += len(records)
    return ImportReport({"transfers": count}, dict(skipped))
