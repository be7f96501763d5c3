"""A Delta table's log: one file of JSON lines a version, as the Delta protocol lays it down.

The `deltalake` library reads and writes tables; here is only what it does not tell, or only after reading everything:
our commit infos, what they say together, and when a file was removed. And it removes entries by their age alone,
where some are still needed: here is which ones are not.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

import msgspec

from restante.common.errors import StoreError, plain
from restante.pipeline.lake.commit_info import COMMIT_ID_CHARACTERS, CommitInfo, State, after

L = TypeVar("L")

LOG_FOLDER: Final = "_delta_log"

COMMIT_INFO_KEY: Final = "restante"
"""Of our commit info, in a commit's metadata."""

LOG_RETENTION_SECONDS: Final = 30 * 86400.0
"""Seconds after the next one that an entry is kept; a table can be read as it was at any moment of that time."""

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_ENTRY: Final = re.compile(r"(\d{20})\.json")


class Change(msgspec.Struct, rename="camel", frozen=True):
    """A file that was added or removed."""

    path: str
    """Relative to the table, percent-encoded."""
    partition_values: dict[str, str | None] = msgspec.field(default_factory=dict)
    data_change: bool = True
    """False: the same rows as before, in other files."""
    deletion_timestamp: int | None = None
    """Of a removed one: milliseconds since 1970."""


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


def file(table: Path, version: int) -> Path:
    """Name the file of a version (Delta protocol, "Delta Log Entries")."""
    return table / LOG_FOLDER / f"{version:020}.json"


def read_info(table: Path, version: int) -> CommitInfo:
    """Return the commit info of a version.

    Another program's commit has none: it gets one that says which days it changed. Raises StoreError where the log is
    damaged.
    """
    path = file(table, version)
    raw = _read(path)
    lines = _lines(path, raw, _INFO_LINE)
    action = next((line.commit_info for line in lines if line.commit_info), _CommitInfoAction())
    if action.restante is not None and action.restante.commit:
        return action.restante
    commit = base64.b64encode(hashlib.sha256(raw).digest())[:COMMIT_ID_CHARACTERS].decode()
    if action.restante is not None:
        return msgspec.structs.replace(action.restante, commit=commit)
    changes = [change for line in lines if (change := line.add or line.remove) and change.data_change]
    days = {day for change in changes if (day := change.partition_values.get("day"))}
    return CommitInfo(run="", table=table.name, finished=action.timestamp / 1000, days=sorted(days), commit=commit)


def state(table: Path, last: int) -> State:
    """Return what all commit infos up to a version say together.

    Entries are read from the last one back to the last of ours, all of them only where an older version of Restante
    made the table. Raises StoreError where the log is damaged.
    """
    newer: list[tuple[int, CommitInfo]] = []
    for version in range(last, -1, -1):
        found = read_info(table, version)
        if found.state is not None:
            return after(found.state, reversed(newer))
        newer.append((version, found))
    return after(State(), reversed(newer))


def removals(table: Path, last: int) -> dict[Path, float]:
    """Tell when each file was removed that is in no version since, in seconds since 1970.

    A removal that is not told was in an entry that is not kept any more (LOG_RETENTION_SECONDS), or there was none.
    Raises StoreError where the log is damaged.
    """
    removed: dict[Path, float] = {}
    try:
        entries = sorted(_versions(table, _ENTRY))
    except OSError as error:
        raise damaged(table / LOG_FOLDER, plain(error)) from error
    for version, path in entries:
        if version > last:
            break
        for line in _lines(path, _read(path), _LOG_LINE):
            if line.remove:
                removed[table / decoded(line.remove.path)] = (line.remove.deletion_timestamp or 0) / 1000
            elif line.add:
                removed.pop(table / decoded(line.add.path), None)
    return removed


def checkpoint(table: Path) -> int:
    """Return the version of the last checkpoint, as readers find it; 0 where there is none."""
    try:
        return _LAST_CHECKPOINT.decode((table / LOG_FOLDER / "_last_checkpoint").read_bytes()).version
    except (OSError, msgspec.DecodeError):
        return 0


def expired(table: Path, needed: Collection[int], now: float) -> list[Path]:
    """List the log's files that are not needed any more, the oldest first.

    Kept are the entries of `needed`, and whatever it takes to read the table as it was in the last
    LOG_RETENTION_SECONDS. An entry is as old as its file, and its version was the table's until the next one came.
    `now` is in seconds since 1970. Raises OSError.
    """
    entries, checkpoints = _versions(table, _ENTRY), _versions(table, _CHECKPOINT)
    young = [version for version, path in entries if now - path.stat().st_mtime < LOG_RETENTION_SECONDS]
    oldest = min(young) if young else max((version for version, _ in entries), default=0)
    # What was the table's until that one came must be readable too: from a checkpoint on.
    start = max((version for version, _ in checkpoints if version < oldest), default=0)
    unneeded = [each for each in entries if each[0] not in needed]
    return [path for version, path in sorted([*unneeded, *checkpoints]) if version < start]


def _versions(table: Path, kind: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Find the log's files of a kind, each with its version."""
    return [(int(found[1]), path) for path in (table / LOG_FOLDER).iterdir() if (found := kind.fullmatch(path.name))]


def decoded(path: str) -> str:
    """Give the path of a file as the system knows it (Delta protocol, "Add File and Remove File")."""
    return unquote(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, plain(error)) from error


def _lines(path: Path, raw: bytes, decoder: msgspec.json.Decoder[L]) -> list[L]:
    try:
        return decoder.decode_lines(raw)
    except msgspec.DecodeError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, why: str) -> StoreError:
    """Say that a table's log cannot be read."""
    return StoreError(
        f"the lake is damaged: {path} cannot be read ({why}): restore it from a backup,"
        " or remove that table's folder and run ingest and build again"
    )
