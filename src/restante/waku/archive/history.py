"""A page of an archive's history, through whatever connection.

Every statement gives one row and is over with it, and with it the transaction: nothing is kept from being moved out
of the log. What is saved or pruned between two statements of a page might as well have been between two pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from restante.waku.archive import ids, plans
from restante.waku.archive.plans import Way
from restante.waku.archive.query import Bounds, Page, Query, cursor, read_cursor
from restante.waku.envelope import U32
from restante.waku.keccak import keccak

ROOM: Final = 16 << 20
"""Bytes that SQLite may put together for a page; if they are more it is asked again, for as many rows as fit."""

_ALL: Final = "SELECT group_concat(id), group_concat(length(raw)), CAST(group_concat(raw, '') AS BLOB) FROM ({way})"
_SIZES: Final = "SELECT group_concat(id), group_concat(length(raw)), NULL FROM ({way})"

_ORDERS: Final = (
    {"{order}": "ASC", "{first}": "min", "{last}": "max", "{beyond}": ">"},
    {"{order}": "DESC", "{first}": "max", "{last}": "min", "{beyond}": "<"},
)

NOTHING: Final = Page([], None, None, 0, False)


def page(database: sqlite3.Connection, query: Query, bounds: Bounds) -> Page:
    """Answer a query."""
    low, high = _range(database, query)
    most = min(query.limit, bounds.rows)
    way = plans.choose(database, query, low, high, most + 1) if low <= high else None
    if way is None:
        return NOTHING
    search = _Search(database, way, query.descending, low, high, bounds)
    found = search.find(most)
    last = keccak(found.raws[-1]) if found.raws else None
    looked, stop = search.looked(found)
    if found.more:
        return Page(found.raws, last, cursor(found.at, last), looked, len(found.raws) < query.limit)
    if stop is not None:
        return Page(found.raws, last, cursor(stop, None), looked, True)
    return Page(found.raws, last, None, looked, False)


class _Found(NamedTuple):
    raws: list[bytes]
    at: int
    """The last one's id; 0 where there is none."""
    more: bool
    """Whether another one matches."""


class _Search(NamedTuple):
    """A way, and where it leads."""

    database: sqlite3.Connection
    way: Way
    descending: bool
    low: int
    high: int
    bounds: Bounds

    def find(self, most: int) -> _Found:
        """Find the first so many, or as many of them as have room in a page."""
        before = self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROOM)
        try:
            return self._cut(most, *self._rows(_ALL, most + 1))
        except sqlite3.DataError:  # "string or blob too big"
            pass
        finally:
            self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
        _, sizes, _ = self._rows(_SIZES, most + 1)
        fitting = _fitting(sizes[:most], self.bounds.bytes)
        return self._cut(fitting, *self._rows(_ALL, fitting))._replace(more=fitting < len(sizes))

    def _cut(self, most: int, at: list[int], sizes: list[int], whole: bytes) -> _Found:
        given = _fitting(sizes[:most], self.bounds.bytes)
        raws = [whole[stop - size : stop] for size, stop in zip(sizes, accumulate(sizes[:given]), strict=False)]
        return _Found(raws, at[given - 1] if given else 0, given < len(at))

    def looked(self, found: _Found) -> tuple[int, int | None]:
        """Tell how much was looked at, and where a walk stopped because of its bound, if it did."""
        if not self.way.walks:
            return self.way.topics + len(found.raws) + found.more, None
        low, high = self.low, self.high
        if found.more:
            low, high = (found.at, high) if self.descending else (low, found.at)
        [(passed, stop)] = self._run(plans.PASSED, low, high, 0)
        return passed, stop if passed == self.bounds.rows else None

    def _rows(self, shape: str, rows: int) -> tuple[list[int], list[int], bytes]:
        statement = shape.replace("{way}", self.way.statement)
        [(at, sizes, raws)] = self._run(statement, self.low, self.high, rows)
        return _numbers(at), _numbers(sizes), raws or b""

    def _run(self, statement: str, low: int, high: int, rows: int) -> list[Any]:
        for slot, word in _ORDERS[self.descending].items():
            statement = statement.replace(slot, word)
        most = self.bounds.rows
        given = {"wanted": self.way.wanted, "low": low, "high": high, "rows": rows, "most": most}
        return self.database.execute(statement, given).fetchall()


def _numbers(written: str | None) -> list[int]:
    return list(map(int, written.split(","))) if written else []


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Tell how many fit: the first in any case."""
    return max(sum(end <= room for end in accumulate(sizes)), min(len(sizes), 1))


def _range(database: sqlite3.Connection, query: Query) -> tuple[int, int]:
    """Give the lowest and the highest id that may be given."""
    low, high = ids.floor(max(query.lower, 0)), ids.floor(min(query.upper, U32) + 1) - 1
    if query.after is None:
        return low, high
    upward, downward = _behind(database, query.after)
    return (low, min(high, downward)) if query.descending else (max(low, upward), high)


def _behind(database: sqlite3.Connection, after: bytes) -> tuple[int, int]:
    """Find where to go on behind a cursor: upward from the one id, downward from the other.

    Where the id that its hash says is another envelope's, and the one it names is not just below (ids.py), the cursor
    was given elsewhere, or that one was pruned and its place taken since. Then none of those alike is left out.
    """
    home, name = read_cursor(after)
    at, end = home, max(home - ids.PROBES, ids.floor(home >> ids.BITS) - 1)
    while name is not None and at > end and (raw := _raw(database, at)) is not None:
        if keccak(raw) == name:
            return at + 1, at - 1
        at -= 1
    return at + 1, home if at < home else home - 1


def _raw(database: sqlite3.Connection, at: int) -> bytes | None:
    found = database.execute("SELECT raw FROM envelopes WHERE id = ?", (at,)).fetchall()
    return found[0][0] if found else None
