"""The Parquet files of a table: which partition they are of, and whether they are there."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from restante.common.errors import StoreError

Where = Mapping[str, Collection[str | None]]
"""Partition column → the values that are meant, as text; a column that is not named may have any."""

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""What stands for NULL in a folder's name (Hive's word, and so Spark's and DuckDB's)."""


_SPECIAL: Final = re.compile(r"""["#%'*/:=?\\{\[\]^\x01-\x1f\x7f]""")
"""What Spark escapes in a folder's name, and no more: each %XX is a character to it (ExternalCatalogUtils)."""


class DataFile(NamedTuple):
    """A Parquet file of a table."""

    path: Path
    partition: Mapping[str, str | None]
    """Its partition: column → value as text; None stands for NULL."""
    rows: int
    size: int
    """In bytes."""

    def within(self, where: Where) -> bool:
        """Return whether its partition is one of those."""
        return all(self.partition[column] in values for column, values in where.items())


def days(files: Iterable[DataFile]) -> set[str]:
    """Give the UTC days that files have rows of, ISO."""
    return {day for file in files if (day := file.partition.get("day"))}


def partition(path: Path) -> dict[str, str | None]:
    """Read the partition from a file's path in its table: a folder per column, day=2026-11-21/source=main."""
    pairs = (part.partition("=") for part in path.parent.parts)
    return {name: None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs}


def folder(values: Iterable[tuple[str, str | None]]) -> Path:
    """Name the folder of a partition, below its table's, as Spark does: an empty text is NULL."""
    return Path(*(f"{name}={_escaped(value) if value else NULL_FOLDER}" for name, value in values))


def _escaped(value: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", value)


def whole(files: list[DataFile]) -> list[DataFile]:
    """Give the files back, if they are all there. Raises StoreError if one is not."""
    for file in files:
        if not file.path.exists():
            raise StoreError(
                f"the lake is damaged: {file.path} is missing, which its table's log lists: restore it from a backup,"
                " or remove that table's folder and run ingest and build again"
            )
    return files


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on disk (fsync(2))."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
