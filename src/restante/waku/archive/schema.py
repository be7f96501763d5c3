"""The archive's database: one file in the data directory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from restante.common.atomic_file import new_file
from restante.common.data_directory import lock_data_directory
from restante.common.errors import Misuse, StoreDamaged, StoreError
from restante.common.sqlite import Schema, copy_database, primary_code

ARCHIVE_FILE: Final = "archive.sqlite"

APPLICATION_ID: Final = 0x52737441
"""Marks the file as an archive ("RstA"; sqlite.org/pragma.html#pragma_application_id)."""

SCHEMA: Final = Schema("restante.waku.archive", ARCHIVE_FILE, APPLICATION_ID, "Waku mailserver")


def unreadable(error: sqlite3.Error) -> StoreError:
    """Return the error for an archive that cannot be read. For a damaged one it says what to do."""
    if primary_code(error) == sqlite3.SQLITE_CORRUPT:
        return StoreDamaged(
            f"the archive is damaged ({error}): restore a backup; run `restante waku check` for details"
        )
    return StoreError(f"cannot read the archive: {error}")


def backup(data: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Create a new data directory with a copy of the archive at one moment. Its server may run.

    `advance` is called with the number of pages copied.

    Raises Misuse if the target is not empty or there is no archive; StoreError if the copy fails, which leaves no
    file.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Misuse(f"{target} exists already and is not an empty directory: name another")
    with SCHEMA.reading(data) as database, lock_data_directory(target), new_file(target / ARCHIVE_FILE) as unfinished:
        copy_database(database, unfinished, advance)
