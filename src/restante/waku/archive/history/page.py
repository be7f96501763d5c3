"""A page of an archive's history. It works on any connection.

No transaction stays open afterwards, so the log can be checkpointed as soon as a page is returned. A change between
two statements of a page has the same effect as a change between two pages. Only a walk needs one transaction
(`_one_moment`).
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from restante.waku.archive import ids
from restante.waku.archive.history import plans
from restante.waku.archive.history.plans import Part, Way
from restante.waku.archive.query import Bounds, Page, PageQuery, cursor, read_cursor
from restante.waku.envelope.envelope import U32
from restante.waku.envelope.keccak import keccak

MAX_RESULT_BYTES: Final = 16 << 20
"""Maximum bytes that SQLite may concatenate for a page. If a page has more, the query is repeated for as many rows as
fit."""

_PAGE_SQL: Final = (
    "SELECT group_concat(id), group_concat(length(raw)), CAST(group_concat(raw, '') AS BLOB) FROM ({way})"
)
_LENGTHS_SQL: Final = "SELECT group_concat(id), group_concat(length(raw)), NULL FROM ({way})"

_NUMBER_DECODER: Final = msgspec.json.Decoder(list[int])
"""Parses comma-separated numbers in a fifth of the time that `split` and `int` take."""

_ORDER_WORDS: Final = (
    {"{order}": "ASC", "{first}": "min", "{last}": "max", "{beyond}": ">", "{within}": "<= :high"},
    {"{order}": "DESC", "{first}": "max", "{last}": "min", "{beyond}": "<", "{within}": ">= :low"},
)


def page(database: sqlite3.Connection, query: PageQuery, bounds: Bounds) -> Page:
    """Return the page that answers a query."""
    low, high = _range(database, query)
    most = min(query.limit, bounds.rows)
    way, chosen = (
        plans.choose(database, query, low, high, most + 1, bounds.rows) if low <= high else plans.Choice(None)
    )
    if way is None:
        return Page(b"", [], None, None, chosen, False)
    search = _Search(database, way, query.descending, low, high, bounds)
    with _one_moment(database) if way.walks else nullcontext():
        found = search.find(most)
        looked, stop = search.looked(found)
    looked += chosen
    whole, stops = found.whole, found.stops
    last = keccak(memoryview(whole)[stops[-2] if len(stops) > 1 else 0 : stops[-1]]) if stops else None
    if found.more:
        return Page(whole, stops, last, cursor(found.at, last), looked, len(stops) < query.limit)
    if stop is not None:
        return Page(whole, stops, last, cursor(stop, None), looked, True)
    return Page(whole, stops, last, None, looked, False)


@contextmanager
def _one_moment(database: sqlite3.Connection) -> Iterator[None]:
    """Run all statements in one transaction, because a second statement finds out how far the walk went."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        try:
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:  # an interrupt stopped the ROLLBACK; it stops one statement only
            if database.in_transaction:
                database.execute("ROLLBACK")


class _Found(NamedTuple):
    whole: bytes
    stops: list[int]
    at: int
    """The id of the last envelope; 0 if there is none."""
    more: bool
    """Whether another envelope matches."""


class _Search(NamedTuple):
    """A way to find envelopes, and the range of ids to search."""

    database: sqlite3.Connection
    way: Way
    descending: bool
    low: int
    high: int
    bounds: Bounds
    least: int = 0
    entries: int = 0
    """Minimum number of entries of a part, and the number that it must stay below (`plans.Part`)."""

    def find(self, most: int) -> _Found:
        """Return the first `most` envelopes, or as many of them as fit into a page."""
        for part in self.way.parts:
            search = self._within(part)
            found = search._find(most)
            if found.stops:
                return found
            if not search.least:
                break  # it was the whole range
        return self._find(most)

    def _within(self, part: Part) -> _Search:
        """Return the search in a part of the range."""
        low, high = (part.downward, self.high) if self.descending else (self.low, part.upward)
        least = 0 if (low, high) == (self.low, self.high) else part.least
        way = Way(plans.PART_SQL, self.way.wanted)
        return self._replace(way=way, low=low, high=high, least=least, entries=part.entries)

    def _find(self, most: int) -> _Found:
        before = self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RESULT_BYTES)
        try:
            return self._cut(most, *self._rows(_PAGE_SQL, most + 1))
        except sqlite3.DataError:  # "string or blob too big"
            pass
        finally:
            self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
        _, stops, _ = self._rows(_LENGTHS_SQL, most + 1)
        fitting = self._fitting(stops[:most])
        return self._cut(fitting, *self._rows(_PAGE_SQL, fitting + 1))

    def _cut(self, most: int, at: str, stops: list[int], whole: bytes) -> _Found:
        given = self._fitting(stops[:most])
        if not given:
            return _Found(b"", [], 0, False)
        left = len(stops) - given
        stops = stops[:given]
        if len(whole) > self.bounds.bytes:  # copying less is not worth its time
            whole = whole[: stops[-1]]
        return _Found(whole, stops, int(at.rsplit(",", left + 1)[-left - 1]), left > 0)

    def _fitting(self, stops: list[int]) -> int:
        """Return how many envelopes fit. The first one always does."""
        return max(bisect_right(stops, self.bounds.bytes), min(len(stops), 1))

    def looked(self, found: _Found) -> tuple[int, int | None]:
        """Return how much was examined, and the id at which a walk reached its bound; None if it did not."""
        if not self.way.walks:
            return len(found.stops) + found.more, None
        if found.more:
            low, high = (found.at, self.high) if self.descending else (self.low, found.at)
            [(passed,)] = self._run(plans.COUNT_SQL, low, high, 0)
            return passed, None
        [(passed, stop)] = self._run(plans.PASSED_SQL, self.low, self.high, 0)
        return passed, stop if passed == self.bounds.rows else None

    def _rows(self, shape: str, rows: int) -> tuple[str, list[int], bytes]:
        """Return the ids, separated by commas, the end offset of each envelope, and the envelopes, concatenated."""
        [(at, sizes, whole)] = self._run(shape.replace("{way}", self.way.statement), self.low, self.high, rows)
        if at is None:
            return "", [], b""
        return at, list(accumulate(_NUMBER_DECODER.decode(f"[{sizes}]"))), whole

    def _run(self, statement: str, low: int, high: int, rows: int) -> list[Any]:
        for slot, word in _ORDER_WORDS[self.descending].items():
            statement = statement.replace(slot, word)
        given = {
            "wanted": self.way.wanted,
            "sieve": self.way.sieve,
            "least": self.least,
            "entries": self.entries,
            "low": low,
            "high": high,
            "rows": rows,
            "most": self.bounds.rows,
        }
        return self.database.execute(statement, given).fetchall()


def _range(database: sqlite3.Connection, query: PageQuery) -> tuple[int, int]:
    """Return the lowest and the highest id that the page may contain."""
    low, high = ids.floor(max(query.lower, 0)), ids.floor(min(query.upper, U32) + 1) - 1
    if query.after is None:
        return low, high
    upward, downward = _behind(database, query.after)
    return (low, min(high, downward)) if query.descending else (max(low, upward), high)


def _behind(database: sqlite3.Connection, after: bytes) -> tuple[int, int]:
    """Return where to continue after a cursor: the id from which to go up, and the id from which to go down.

    The cursor's home id may belong to another envelope while the envelope that the cursor names is not just below it
    (ids.py). Then the cursor is from another server, or the envelope was pruned and its id reused. In that case no
    envelope with the same hash prefix is left out.
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
