"""Reads and cleans a Delta table's log: one file of JSON lines per version, as the Delta protocol defines it.

The `deltalake` library reads and writes the tables. This module adds what it does not provide, or provides only after
reading the whole log: our commit infos, their summary, and when a file was removed. The library also removes entries
by their age alone, although some are still needed; this module decides which ones may go.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection
from typing import Final, TypeVar
from urllib.parse import unquote

import msgspec

from restante.common.errors import plain
from restante.pipeline.lake import data_files
from restante.pipeline.lake.commit_info import COMMIT_ID_CHARACTERS, CommitInfo, TableState, state_after
from restante.pipeline.lake.url_path import LakePath

L = TypeVar("L")

LOG_FOLDER: Final = "_delta_log"

COMMIT_INFO_KEY: Final = "restante"
"""The key of our commit info in a commit's metadata."""

LOG_RETENTION_SECONDS: Final = 30 * 86400.0
"""Seconds that an entry is kept after the next one was written. The table can be read as it was at any time within
them."""

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_ENTRY: Final = re.compile(r"(\d{20})\.json")


class Change(msgspec.Struct, rename="camel", frozen=True):
    """A file that was added or removed."""

    path: str
    """Relative to the table, percent-encoded (Delta protocol, "Add File and Remove File")."""
    data_change: bool = True
    """False if the commit moved the same rows to other files."""
    deletion_timestamp: int | None = None
    """When the file was removed, in milliseconds since 1970; None for an added file."""


class _CommitInfoAction(msgspec.Struct, frozen=True):
    restante: CommitInfo | None = None
    timestamp: int = 0


class _LogLine(msgspec.Struct, rename="camel", frozen=True):
    add: Change | None = None
    remove: Change | None = None


class _InfoLine(_LogLine, rename="camel", frozen=True):
    commit_info: _CommitInfoAction | None = None


class _LastCheckpoint(msgspec.Struct, frozen=True):
    version: int


_LOG_LINE: Final = msgspec.json.Decoder(_LogLine)
_INFO_LINE: Final = msgspec.json.Decoder(_InfoLine)
_LAST_CHECKPOINT: Final = msgspec.json.Decoder(_LastCheckpoint)


def entry_path(table: LakePath, version: int) -> LakePath:
    """Return the path of a version's log entry (Delta protocol, "Delta Log Entries")."""
    return table / LOG_FOLDER / f"{version:020}.json"


def read_info(table: LakePath, version: int) -> CommitInfo:
    """Return the commit info of a version.

    A commit by another program has none. For it, return one that says whether it changed rows. Raises StoreError if
    the log is damaged.
    """
    path = entry_path(table, version)
    raw = _read(path)
    lines = _lines(path, raw, _INFO_LINE)
    action = next((line.commit_info for line in lines if line.commit_info), _CommitInfoAction())
    if action.restante is not None:
        return action.restante
    commit = base64.b64encode(hashlib.sha256(raw).digest())[:COMMIT_ID_CHARACTERS].decode()
    foreign = any(change.data_change for line in lines if (change := line.add or line.remove))
    return CommitInfo(run="", finished=action.timestamp / 1000, foreign=foreign, commit=commit)


def read_state(table: LakePath, last_version: int) -> TableState:
    """Return the state after a version.

    Entries are read backwards from that version to the newest one with a state. Raises StoreError if the log is
    damaged.
    """
    newer: list[tuple[int, CommitInfo]] = []
    for version in range(last_version, -1, -1):
        info = read_info(table, version)
        if info.state is not None:
            return state_after(info.state, reversed(newer))
        newer.append((version, info))
    return state_after(TableState(), reversed(newer))


def removals(table: LakePath, last_version: int) -> dict[LakePath, float]:
    """Return when each file was removed that no later version contains, in seconds since 1970.

    A file that is missing here was removed by an entry that is no longer kept (LOG_RETENTION_SECONDS), or was never
    removed. Raises StoreError if the log is damaged.
    """
    removed: dict[LakePath, float] = {}
    try:
        entries = sorted(_versions(table, _ENTRY))
    except OSError as error:
        raise data_files.unreadable_file(table / LOG_FOLDER, plain(error)) from error
    for version, path in entries:
        if version > last_version:
            break
        for line in _lines(path, _read(path), _LOG_LINE):
            if line.remove:
                removed[table / unquote(line.remove.path)] = (line.remove.deletion_timestamp or 0) / 1000
            elif line.add:
                removed.pop(table / unquote(line.add.path), None)
    return removed


def last_checkpoint(table: LakePath) -> int:
    """Return the version of the last checkpoint, as readers find it, or 0 if there is none."""
    try:
        return _LAST_CHECKPOINT.decode((table / LOG_FOLDER / "_last_checkpoint").read_bytes()).version
    except (OSError, msgspec.DecodeError):
        return 0


def expired_entries(table: LakePath, needed_versions: Collection[int], now: float) -> list[LakePath]:
    """Return the files of the log that are no longer needed, the oldest first.

    Entries of the versions in `needed_versions` are kept, and everything needed to read the table as it was in the
    last LOG_RETENTION_SECONDS. The age of an entry is that of its file; its version was current until the next entry.
    `now` is in seconds since 1970. Raises OSError.
    """
    entries, checkpoints = _versions(table, _ENTRY), _versions(table, _CHECKPOINT)
    young = [version for version, path in entries if now - path.stat().st_mtime < LOG_RETENTION_SECONDS]
    oldest = min(young) if young else max((version for version, _ in entries), default=0)
    # The version before the oldest young one must be readable too, which takes a checkpoint before it.
    start = max((version for version, _ in checkpoints if version < oldest), default=0)
    unneeded = [entry for entry in entries if entry[0] not in needed_versions]
    return [path for version, path in sorted([*unneeded, *checkpoints]) if version < start]


def _versions(table: LakePath, kind: re.Pattern[str]) -> list[tuple[int, LakePath]]:
    """Return the log's files of a kind, each with its version."""
    return [(int(match[1]), path) for path in (table / LOG_FOLDER).iterdir() if (match := kind.fullmatch(path.name))]


def _read(path: LakePath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise data_files.unreadable_file(path, plain(error)) from error


def _lines(path: LakePath, raw: bytes, decoder: msgspec.json.Decoder[L]) -> list[L]:
    try:
        return decoder.decode_lines(raw)
    except msgspec.DecodeError as error:
        raise data_files.unreadable_file(path, str(error)) from error
