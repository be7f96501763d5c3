"""The rows with the largest counts, and all others as one row. Pure.

Clients choose names freely: there may be a hundred thousand. A page shows some, and the sum of the rest, so that the
counts add up to those of the period.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_ROWS_OF_NAMES: Final = 20
"""Rows of a table of names. The public server has dozens of applications; the most frequent ones have nearly all of
its load."""


class NamedCounts(NamedTuple):
    """What is counted of a name, or of all names that are not among the first."""

    name: tuple[str | None, ...] | None
    """The name, which may have several parts. None: all other names."""
    names: int
    """How many names the row is about."""
    counts: tuple[int, ...]


def top_rows(
    rows: Sequence[tuple[tuple[str | None, ...], Sequence[int]]], by: int, most: int = MAX_ROWS_OF_NAMES
) -> list[NamedCounts]:
    """Return the rows with the largest counts in place `by`, largest first, and the sum of all others.

    Each name has one row. Names decide between equal counts. There are at most `most` rows.
    """
    if len(rows) <= most:
        first, rest = sorted(rows, key=lambda row: _order(row, by)), []
    else:
        first = heapq.nsmallest(most - 1, rows, key=lambda row: _order(row, by))
        kept = {name for name, _ in first}
        rest = [counts for name, counts in rows if name not in kept]
    found = [NamedCounts(name, 1, tuple(counts)) for name, counts in first]
    if rest:
        found.append(NamedCounts(None, len(rest), tuple(map(sum, zip(*rest, strict=True)))))
    return found


def _order(row: tuple[tuple[str | None, ...], Sequence[int]], by: int) -> tuple[int, list[tuple[bool, str]]]:
    name, counts = row
    return -counts[by], [(part is not None, part or "") for part in name]
