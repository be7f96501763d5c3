"""Backups: a copy of an archive at one moment, even while its server runs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from restante.common.atomic_file import new_file
from restante.common.data_directory import lock
from restante.common.errors import Misuse, StoreError
from restante.waku.archive.schema import FILE, SCHEMA

PAGES_PER_STEP: Final = 1024
"""Pages that are copied per step."""


def backup(data: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Create a new data directory with a copy of the archive. `advance` is called with the number of pages copied.

    Raises Misuse if the target is not empty or there is no archive; StoreError if the copy fails, which leaves no
    file.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Misuse(f"{target} exists already and is not an empty directory: name another")
    with SCHEMA.reading(data) as ours:
        # While this transaction is open, the connection sees the same moment, and the copy does not restart when the
        # server writes (sqlite.org/backup.html). With WAL the server does not wait for it, but its log grows.
        ours.execute("BEGIN")
        ours.execute("SELECT 1 FROM totals").fetchone()
        held = lock(target)
        try:
            with new_file(target / FILE) as unfinished:
                _copy(ours, unfinished, advance)
        finally:
            os.close(held)


def _copy(ours: sqlite3.Connection, unfinished: Path, advance: Callable[[int], None]) -> None:
    try:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as theirs:
            ours.backup(theirs, pages=PAGES_PER_STEP, progress=lambda *_: advance(PAGES_PER_STEP), sleep=0)
    except sqlite3.Error as error:
        raise StoreError(f"cannot make the backup: {error}") from error
