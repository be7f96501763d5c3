"""What lies in a table's folder and is of no version any more, or never was of one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from restante.common.errors import StoreError, plain
from restante.pipeline.lake import delta_log, staging
from restante.pipeline.lake.table import LakeTable


class Waste(NamedTuple):
    """A file that nobody needs."""

    path: Path
    size: int
    """In bytes."""


def waste(table: LakeTable, *, grace: float, now: float) -> list[Waste]:
    """List what to remove: files of runs that were cut off, and those that were in no version for `grace` seconds.

    Readers of an older version must finish within `grace`, which is no longer than delta_log.LOG_RETENTION_SECONDS. A
    file that never was in a version counts from when it was written: another program may be about to commit it. So
    does one that was removed by an entry that is not kept any more: it was removed more than that ago. `now` is in
    seconds since 1970. The lake is open for writing: no other run is going on. Raises StoreError where the log is
    damaged.
    """
    assert table.writing, "the lake is open for reading"
    current = {file.path for file in table.files()}
    removed = {} if table.version is None else delta_log.removals(table.folder, table.version)
    found = []
    for path in _parquet(table.folder):
        written = path.stat()
        if path not in current and now - removed.get(path, written.st_mtime) >= grace:
            found.append(Waste(path, written.st_size))
    left = (path for run in _runs(table.folder) for path in run.rglob("*") if path.is_file())
    return found + [Waste(path, path.stat().st_size) for path in left]


def _runs(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{staging.RUN_PREFIX}*"))


def _parquet(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        if Path(top) == folder:
            folders[:] = [
                name for name in folders if name != delta_log.LOG_FOLDER and not name.startswith(staging.RUN_PREFIX)
            ]
        yield from (Path(top) / name for name in names if name.endswith(".parquet"))


def vacuum(table: LakeTable, *, grace: float, now: float) -> list[Waste]:
    """Remove the waste, and folders that are empty then; tell what it was. Raises StoreError where that fails."""
    found = waste(table, grace=grace, now=now)
    try:
        for each in found:
            each.path.unlink()
        for run in _runs(table.folder):
            shutil.rmtree(run)
    except OSError as error:
        raise StoreError(f"cannot remove files from {table.folder}: {plain(error)}") from error
    emptied = {folder for each in found for folder in each.path.parents if table.folder in folder.parents}
    for folder in sorted(emptied, reverse=True):  # what is within another comes first
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()
    return found
