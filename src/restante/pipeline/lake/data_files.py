"""The Parquet files of a table: their partitions, and whether they exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from restante.common.errors import StoreError

Where = Mapping[str, Collection[str | None]]
"""Partition column → the selected values, as text. A column that is not named may have any value."""

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder of NULL (Hive's, and so Spark's and DuckDB's)."""


_SPECIAL: Final = re.compile(r"""["#%'*/:=?\\{\[\]^\x01-\x1f\x7f]""")
"""The characters that Spark escapes in a folder's name. It escapes no others, and reads each %XX as a character
(ExternalCatalogUtils)."""


class DataFile(NamedTuple):
    """A Parquet file of a table."""

    path: Path
    partition: Mapping[str, str | None]
    """Column → value as text; None for NULL."""
    rows: int
    size: int
    """In bytes."""

    def within(self, where: Where) -> bool:
        """Return whether the file's partition is selected."""
        return all(self.partition[column] in values for column, values in where.items())


def days(files: Iterable[DataFile]) -> set[str]:
    """Return the UTC days, ISO, of which the files have rows."""
    return {day for file in files if (day := file.partition.get("day"))}


def partition(path: Path) -> dict[str, str | None]:
    """Return the partition in a file's path below its table: one folder per column, day=2026-11-21/source=main."""
    pairs = (part.partition("=") for part in path.parent.parts)
    return {name: None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs}


def folder(values: Iterable[tuple[str, str | None]]) -> Path:
    """Return the folder of a partition below its table, named as Spark names it. An empty text is NULL."""
    return Path(*(f"{name}={_escaped(value) if value else NULL_FOLDER}" for name, value in values))


def _escaped(value: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", value)


def whole(files: list[DataFile]) -> list[DataFile]:
    """Return the files if all of them exist. Raises StoreError if one is missing."""
    for file in files:
        if not file.path.exists():
            raise StoreError(
                f"the lake is damaged: {file.path} is missing, which its table's log lists: restore it from a backup,"
                " or remove that table's folder and run ingest and build again"
            )
    return files
