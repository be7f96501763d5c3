"""The rows with the largest counts, and all others as one row. Pure.

Clients choose names freely: there may be a hundred thousand. A page shows some, and the sum of the rest, so that the
counts add up to those of the period.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

MAX_ROWS_OF_NAMES: Final = 20
"""Rows of a table of names. The public server has dozens of applications; the most frequent ones have nearly all of
its load."""


RowName: TypeAlias = tuple[str | None, ...]
"""A name, which may have several parts."""

NamedRow: TypeAlias = tuple[RowName, Sequence[int]]


class NamedCounts(NamedTuple):
    """What is counted of a name, or of all names that are not among the first."""

    name: RowName | None
    """None: all other names."""
    names: int
    """How many names the row is about, or how many at least."""
    counts: tuple[int, ...]
    has_more: bool = False
    """Whether there may be more names: the lake added up some of them."""


def top_rows(
    rows: Sequence[NamedRow], by: int, limit: int = MAX_ROWS_OF_NAMES, *, other: RowName | None = None
) -> list[NamedCounts]:
    """Return the rows with the largest counts at the index `by`, largest first, and the sum of all others.

    Each name has one row. Names decide between equal counts. There are at most `limit` rows. `other` is what a built
    table has in place of its rare names. It is no name, and belongs to the others.
    """
    named_rows = [row for row in rows if row[0] != other] if other else rows
    rare = [counts for name, counts in rows if name == other] if other else []
    if len(named_rows) + bool(rare) <= limit:
        largest = sorted(named_rows, key=lambda row: _order(row, by))
    else:
        largest = heapq.nsmallest(limit - 1, named_rows, key=lambda row: _order(row, by))
    largest_names = {name for name, _ in largest}
    rest = [counts for name, counts in named_rows if name not in largest_names]
    result = [NamedCounts(name, 1, tuple(counts)) for name, counts in largest]
    if rest or rare:
        sums = tuple(map(sum, zip(*rest, *rare, strict=True)))
        result.append(NamedCounts(None, max(len(rest), 1), sums, has_more=bool(rare)))
    return result


def _order(row: NamedRow, by: int) -> tuple[int, list[tuple[bool, str]]]:
    name, counts = row
    return -counts[by], [(part is not None, part or "") for part in name]
