"""`restante export`: writes usage records to a usage database of the reference server, for programs that read it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Final

from restante.common.atomic_file import new_file
from restante.common.errors import StoreError
from restante.mailbox.reference_import.translation import USAGE
from restante.mailbox.store.schema import SCHEMA

_CURRENT: Final = "rebooted, updated, blur_time, connections_websocket"


def export_usage(data: Path, file: Path) -> dict[str, int]:
    """Write all usage records, also imported ones, to a new file, and return how many of each kind.

    A server may be running on the data directory. The file appears when it is complete. Raises Misuse if the file
    exists or the data directory has no database, StoreError if one of the two databases cannot be used.
    """
    with new_file(file) as unfinished, SCHEMA.reading(data) as source:
        try:
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as target:
                counts = _write(source, target)
        except sqlite3.Error as error:
            raise StoreError(f"cannot export to {file}: {error}") from error
    return counts


def _write(source: sqlite3.Connection, target: sqlite3.Connection) -> dict[str, int]:
    source.execute("BEGIN")  # so that all tables are read from one snapshot
    schema = resources.files("restante.mailbox.reference_import") / "usage-2.sql"
    target.executescript(f"BEGIN; {schema.read_text()}")
    # This server's tables have the prefix `usage_` and the same columns.
    counts = {
        table: _copy(source, f"SELECT {', '.join(columns)} FROM usage_{table} ORDER BY id", target, table)  # noqa: S608
        for table, columns in USAGE.columns.items()
    }
    _copy(source, f"SELECT {_CURRENT} FROM usage_current", target, "current")  # noqa: S608
    target.execute("COMMIT")
    return counts


def _copy(source: sqlite3.Connection, select: str, target: sqlite3.Connection, table: str) -> int:
    rows = source.execute(select)
    slots = ", ".join("?" * len(rows.description))
    return target.executemany(f"INSERT INTO {table} VALUES ({slots})", rows).rowcount  # noqa: S608
