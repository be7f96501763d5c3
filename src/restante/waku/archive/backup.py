"""Backups: a copy of an archive at one moment, even while its server runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from restante.common.atomic_file import new_file
from restante.common.data_directory import lock
from restante.common.database_copy import copy_database
from restante.common.errors import Misuse
from restante.waku.archive.schema import FILE, SCHEMA


def backup(data: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Create a new data directory with a copy of the archive. `advance` is called with the number of pages copied.

    Raises Misuse if the target is not empty or there is no archive; StoreError if the copy fails, which leaves no
    file.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Misuse(f"{target} exists already and is not an empty directory: name another")
    with SCHEMA.reading(data) as database, lock(target), new_file(target / FILE) as unfinished:
        copy_database(database, unfinished, advance)
