"""Copies a SQLite database as it is at one moment, even while another process writes to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from restante.common.errors import StoreError
from restante.common.sqlite import reason

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
        raise StoreError(f"cannot copy the database: {reason(error, file.parent)}") from error
    finally:
        source.execute("ROLLBACK")
