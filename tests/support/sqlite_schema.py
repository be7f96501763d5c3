"""What the tests of every SQLite engine compare of a database."""

from __future__ import annotations

import sqlite3
from typing import Any


def schema(database: sqlite3.Connection) -> dict[str, Any]:
    """Return tables, columns and indexes; comments and white space are no part of a schema."""
    names = database.execute("SELECT type, name, tbl_name FROM sqlite_schema ORDER BY type, name").fetchall()
    tables = [name for kind, name, _ in names if kind == "table"]
    return {
        "names": names,
        "columns": {table: database.execute(f"PRAGMA table_xinfo({table})").fetchall() for table in tables},
        "options": sorted(row[1:6] for row in database.execute("PRAGMA table_list") if row[1] in tables),
        "indexes": {
            name: database.execute(f"PRAGMA index_xinfo({name})").fetchall()
            for kind, name, _ in names
            if kind == "index"
        },
    }


def version(database: sqlite3.Connection) -> tuple[int, int]:
    return (
        database.execute("PRAGMA application_id").fetchone()[0],
        database.execute("PRAGMA user_version").fetchone()[0],
    )
