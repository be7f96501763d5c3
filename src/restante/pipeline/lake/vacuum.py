"""Removes files from a table's folder that belong to no version of it, and what killed runs left in the lake's."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from restante.common.errors import StoreError, plain
from restante.pipeline.lake import data_files, delta_log, staging
from restante.pipeline.lake.lake import PROBE, Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import LakePath, UrlPath, path_below


class UnneededFile(NamedTuple):
    """A file that no version needs."""

    path: LakePath
    size: int
    """In bytes."""


def _unneeded_files(table: LakeTable, *, grace: float, now: float) -> list[UnneededFile]:
    """Return the files to remove: those of runs that were killed, and those in no version for `grace` seconds.

    Readers of an older version must finish within `grace`, which is at most delta_log.LOG_RETENTION_SECONDS. The time
    of a file that was never in a version counts from when it was written, since another program may be about to
    commit it. So does that of a file whose removal is in an entry that is no longer kept: it was removed longer ago
    than that. Of a table without a version only the files of killed runs are returned, and at a URL none: its log may
    be lost. `now` is in seconds since 1970. The lake must be open for writing, so that no other run is active. At a
    URL one may be: its files are as old as the run at most, so `grace` must be longer than any run. Raises StoreError
    if the table cannot be read.
    """
    assert table.writing, "the lake is not open for writing"
    current = {file.path for file in table.files()}
    removed = {} if table.version is None else delta_log.removals(table.folder, table.version)
    files = []
    for path in _all_files(table):
        written = path.stat()
        # A time in the future is of a clock that was set back since: with a grace of 0 the file may go.
        age = max(0.0, now - removed.get(path, written.st_mtime))
        if path not in current and age >= grace:
            files.append(UnneededFile(path, written.st_size))
    leftover_paths = (path for job in staging.job_folders(table.folder) for path in job.rglob("*") if path.is_file())
    return files + [UnneededFile(path, path.stat().st_size) for path in leftover_paths]


def vacuum_probes(lake: Lake, *, grace: float, now: float, plan: bool) -> list[UnneededFile]:
    """Remove what runs left that were killed while they tried the store of a lake at a URL; return the files.

    Another run may be trying it with files of the last `grace` seconds. `plan`: remove none. Raises StoreError.
    """
    if not isinstance(lake.path, UrlPath):
        return []
    try:
        folders = [lake.path / name for name in lake.path.names(folders=True) if name.startswith(PROBE)]
        files = [UnneededFile(file, file.stat().st_size) for folder in folders for file in folder.files()]
        files = [file for file in files if now - file.path.stat().st_mtime >= grace]
        for file in () if plan else files:
            file.path.unlink()
    except OSError as error:
        raise StoreError(f"cannot remove files from {lake.path}: {plain(error)}") from error
    return files


def _all_files(table: LakeTable) -> Iterator[LakePath]:
    """Yield the files that may be of a version of the table, and at a URL all files of runs. Raises OSError."""
    folder = table.folder
    if table.version is None:
        return
    other_folders: tuple[str, ...] = (delta_log.LOG_FOLDER,)
    if isinstance(folder, UrlPath):
        files: Iterator[LakePath] = folder.files()
    else:
        files = (path for path in folder.rglob("*.parquet") if path.is_file())
        other_folders += (staging.RUN_PREFIX,)
    for file in files:
        below = path_below(file, folder)
        if not below.parts[0].startswith(other_folders) and (
            data_files.is_of_run(below) or below.suffix == ".parquet"
        ):
            yield file


def vacuum(table: LakeTable, *, grace: float, now: float, plan: bool = False) -> list[UnneededFile]:
    """Remove the unneeded files, and the folders that are then empty; return the files.

    `plan`: remove none. Raises StoreError.
    """
    try:
        files = _unneeded_files(table, grace=grace, now=now)
        if plan:
            return files
        for file in files:
            file.path.unlink()
        for job in staging.job_folders(table.folder):
            shutil.rmtree(job)
    except OSError as error:
        raise StoreError(f"cannot remove files from {table.folder}: {plain(error)}") from error
    paths = (file.path for file in files if isinstance(file.path, Path))
    emptied = {folder for path in paths for folder in path.parents if table.folder in folder.parents}
    for folder in sorted(emptied, reverse=True):  # subfolders come before their parents
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()
    return files
