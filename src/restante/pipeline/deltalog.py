"""A Delta table's log: one file of JSON lines a version, as the Delta protocol lays it down.

The `deltalake` library reads and writes tables; here are only the two things that it does not tell, or only after
reading everything: our notes, newest first, and when a file was removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from restante.errors import StoreError, plain
from restante.pipeline.notes import Note

LOG: Final = "_delta_log"

KEY: Final = "restante"
"""Of the note, in a commit's metadata."""


class Change(msgspec.Struct, rename="camel", frozen=True):
    """A file that was added or removed."""

    path: str
    """Relative to the table, percent-encoded."""
    partition_values: dict[str, str | None] = msgspec.field(default_factory=dict)
    data_change: bool = True
    """False: the same rows as before, in other files."""
    deletion_timestamp: int | None = None
    """Of a removed one: milliseconds since 1970."""


class _Info(msgspec.Struct, frozen=True):
    restante: Note | None = None
    timestamp: int = 0


class _Line(msgspec.Struct, rename="camel", frozen=True):
    add: Change | None = None
    remove: Change | None = None
    commit_info: _Info | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


def file(table: Path, version: int) -> Path:
    """Name the file of a version (Delta protocol, "Delta Log Entries")."""
    return table / LOG / f"{version:020}.json"


def notes(table: Path, last: int, after: int = -1) -> Iterator[Note]:
    """Give the notes of all versions from `last` down to the one behind `after`.

    A commit of another program has none; it gets one that says which days it changed, if any. Raises StoreError where
    the log is damaged.
    """
    for version in range(last, after, -1):
        lines = _lines(table, version)
        info = next((line.commit_info for line in lines if line.commit_info), _Info())
        if info.restante is not None:
            yield info.restante
            continue
        changes = [change for line in lines if (change := line.add or line.remove) and change.data_change]
        days = {day for change in changes if (day := change.partition_values.get("day"))}
        if days:
            yield Note(run="", table=table.name, finished=info.timestamp / 1000, days=sorted(days))


def removals(table: Path, last: int) -> dict[Path, float]:
    """Tell when each file was removed that is in no version since, in seconds since 1970."""
    removed: dict[Path, float] = {}
    for version in range(last + 1):
        for line in _lines(table, version):
            if line.remove:
                removed[table / decoded(line.remove.path)] = (line.remove.deletion_timestamp or 0) / 1000
            elif line.add:
                removed.pop(table / decoded(line.add.path), None)
    return removed


def decoded(path: str) -> str:
    """Give the path of a file as the system knows it (Delta protocol, "Add File and Remove File")."""
    return unquote(path)


def _lines(table: Path, version: int) -> list[_Line]:
    path = file(table, version)
    try:
        return _LINE.decode_lines(path.read_bytes())
    except OSError as error:
        raise damaged(path, plain(error)) from error
    except msgspec.DecodeError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, why: str) -> StoreError:
    """Say that a table's log cannot be read."""
    return StoreError(
        f"the lake is damaged: {path} cannot be read ({why}): restore it from a backup,"
        " or remove that table's folder and run ingest and build again"
    )
