"""Rows of the databases of reference servers, which are checked before they are imported. Pure.

SQLite allows any value in any column, so an import checks every row. Each row is imported, or counted as skipped with
the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

Counts = Counter[str]
"""How many rows were skipped, by kind and reason."""

Row = tuple[Any, ...]
"""A row as SQLite returns it."""

Seconds = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""Seconds. Infinity is excluded, because JSON has no form for it."""


class DatabaseKind(msgspec.Struct, frozen=True):
    """A kind of database of a reference server."""

    name: str
    tables: Mapping[str, type[tuple[Any, ...]]]
    """The tables that are read, each with the type of its rows. The fields have the names of the columns."""
    since: Mapping[str, int]
    """Tables that a later version added, each with that version."""
    versions: tuple[int, ...] = (1, 2)
    program: str = "reference server"
    """The program that writes it, in error messages."""
    row_bytes: int = 1_000_000_000
    """Bytes that a row may have. The default is SQLite's own limit (sqlite.org/limits.html)."""

    @property
    def flag(self) -> str:
        """Return the flag that names a database of this kind."""
        return f"--{self.name}"

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that are read of each table."""
        return {table: row._fields for table, row in self.tables.items()}  # type: ignore[attr-defined]


ReferenceRow = TypeVar("ReferenceRow")


def usable_rows(rows: Iterable[Row], shape: type[ReferenceRow], skipped: Counts, kind: str) -> Iterator[ReferenceRow]:
    """Yield the rows whose values are valid, and count the others as skipped."""
    for row in rows:
        try:
            yield msgspec.convert(row, shape)
        except msgspec.ValidationError:
            skipped[f"{kind}_unusable"] += 1
