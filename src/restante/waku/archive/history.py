"""A page of an archive's history. It works on any connection.

No transaction stays open afterwards, so the log can be checkpointed as soon as a page is returned. A change between
two statements of a page has the same effect as a change between two pages. Only a walk needs one transaction
(`_one_moment`).
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from restante.waku.archive import ids
from restante.waku.archive.query import Bounds, Page, PageQuery, cursor, read_cursor
from restante.waku.envelope.bloom import ALL_BITS
from restante.waku.envelope.envelope import U32
from restante.waku.envelope.keccak import keccak

# ── The ways to find a page's envelopes, and the choice of the cheapest ───────────────────────────
# Each way is one statement. SQLite releases the interpreter lock only within a statement, so with one statement per
# topic or row the reader would wait for the server's event loop as often. docs/decisions/history-query.md has the
# measurements.


SEEK_COST: Final = 8_000
"""Cost of a seek to a topic's first index entry. The unit is the cost of a byte of a row that a walk passes."""

ROW_COST: Final = 350
"""Cost of passing a row in addition to its bytes, in the same unit. A row of 305 bytes takes 0.19 µs, one of 3,000
bytes 0.95 µs. A seek takes 1.8 to 2.6 µs, more in a larger archive."""

SIEVE_BYTES: Final = 4096
"""Bytes of the sieve, which a walk checks before it searches the set of wanted topics. The sieve has one byte for
each value of a topic's last 12 bits. With 500 topics it rejects nine in ten of the other rows, and a page takes a
quarter less time."""

PART_FACTORS: Final = (1.25, 5.0)
"""Parts of a range in which a page is searched; the second one is used if the first has too few entries. The unit is
the part that would contain the page if all entries were spread evenly over time."""

MAX_SORT_FACTOR: Final = 4
"""Maximum number of entries that are sorted, as a multiple of a page's entries."""

MAX_SEEK_TOPICS: Final = 5_000
"""Maximum number of topics that are sought one by one. With a filter that passes more, each row is checked
instead."""

MAX_PAIRED_PLACES: Final = 40
"""Maximum bits of a filter for which each pair of bits is sought among the topics: 1,600 seeks."""

MAX_SINGLE_PLACES: Final = 160
"""Maximum bits of a filter for which each bit is sought among the topics. A filter with more passes one topic in 33
or more, so a walk soon fills its page."""


class Part(NamedTuple):
    """The beginning of a range, in which `PART_SQL` searches for a page's envelopes."""

    upward: int
    """The highest id of the part, for ascending order."""
    downward: int
    """The lowest id of the part, for descending order."""
    least: int
    """Minimum number of entries of the wanted topics in the part, unless it is the whole range."""
    entries: int
    """The number of entries must be lower than this."""


class Way(NamedTuple):
    """A statement that returns id and raw, in order."""

    statement: str
    """Its parameters are :low and :high (inclusive), :rows (maximum rows returned), :most (maximum rows passed),
    :wanted and :sieve."""
    wanted: str | bytes = "[]"
    """Topics as JSON, or one byte for each bit of a filter, 1 if it is set."""
    sieve: bytes = b""
    """One byte for each value of a topic's last bits, 1 if a wanted topic has it (`SIEVE_BYTES`)."""
    walks: bool = False
    """Whether the statement passes rows that do not match, at most :most rows in total."""
    parts: tuple[Part, ...] = ()
    """Parts to search first, in this order. The statement runs if none of them returns a row."""


RANGE_SQL: Final = "SELECT id, raw FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :rows"

PART_SQL: Final = """
WITH entries AS MATERIALIZED (
    SELECT id FROM envelopes WHERE topic IN (SELECT value FROM json_each(:wanted)) AND id BETWEEN :low AND :high
    LIMIT :entries
)
SELECT id, raw FROM (
    SELECT id FROM entries WHERE (SELECT count(*) FROM entries) BETWEEN :least AND :entries - 1
    ORDER BY id {order} LIMIT :rows
) CROSS JOIN envelopes USING (id)
"""
"""Sorts all entries of the topics in a part of the range: one seek per topic, none per envelope. It returns nothing
if the part has fewer than :least entries, or :entries or more."""

MERGE_SQL: Final = """
WITH RECURSIVE merged (topic, id) AS (
    SELECT value, (SELECT {first}(id) FROM envelopes WHERE topic = value AND id BETWEEN :low AND :high)
    FROM json_each(:wanted)
    UNION ALL
    SELECT topic, (
        SELECT {first}(next.id) FROM envelopes AS next
        WHERE next.topic = merged.topic AND next.id {beyond} merged.id AND next.id {within}
    ) FROM merged WHERE id IS NOT NULL
    ORDER BY 2 {order} NULLS LAST LIMIT :rows
)
SELECT id, raw FROM merged CROSS JOIN envelopes USING (id)
"""
"""For topics that are spread unevenly over time. The recursion's queue (sqlite.org/lang_with.html) holds the next
entry of each topic. No more entries are read than wanted, and each costs one seek, however the topics are spread.
Each seek has one lower and one upper bound: with two bounds on the same side SQLite may seek by the wrong one and
pass all entries that were already returned."""

WALK_SQL: Final = """
SELECT id, raw FROM (
    SELECT id, topic FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
) AS passed CROSS JOIN envelopes USING (id) WHERE {matches} LIMIT :rows
"""
"""A row that does not match is not read completely, because it may be large."""

COUNT_SQL: Final = "SELECT count(*) FROM envelopes WHERE id BETWEEN :low AND :high"

PASSED_SQL: Final = """
SELECT count(*), {last}(id) FROM (
    SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
)
"""
"""Returns the number of rows passed by a walk that reached its end, and the id of the last one."""

_OF_TOPICS: Final = """
    substr(:sieve, 1 + (passed.topic & {last}), 1) = x'01'
    AND passed.topic IN (SELECT value FROM json_each(:wanted))
""".replace("{last}", str(SIEVE_BYTES - 1))

_PLACE0: Final = "((passed.topic >> 24 & 255) + (passed.topic & 1) * 256)"
_PLACE1: Final = "((passed.topic >> 16 & 255) + (passed.topic & 2) * 128)"
_PLACE2: Final = "((passed.topic >> 8 & 255) + (passed.topic & 4) * 64)"
_SET: Final = "IN (SELECT value FROM json_each(:wanted))"
_SET2, _SET1, _SET0 = (f"substr(:wanted, 1 + {place}, 1) = x'01'" for place in (_PLACE2, _PLACE1, _PLACE0))

_LET_THROUGH: Final = f"""
    {_SET2}
    AND ({_SET1} OR {_PLACE1} >> 3 = {_PLACE2} >> 3)
    AND ({_SET0} OR {_PLACE0} >> 3 = {_PLACE2} >> 3 OR {_PLACE0} >> 3 = {_PLACE1} >> 3)
"""
"""The inverse of sqlite-0002.sql: a bit that a later bit replaces need not be set. A search in a set of bits would
take twice as long as reading a byte."""

_THERE: Final = """
SELECT count(*), '[' || group_concat(topic) || ']', total(count),
    (SELECT envelopes FROM totals), (SELECT bytes FROM totals),
    (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes)
FROM (SELECT topic, count FROM topics WHERE topic IN (SELECT value FROM json_each(:wanted)) AND {near})
"""

_THERE_OF: Final = """
SELECT count(here), '[' || group_concat(topic) FILTER (WHERE here) || ']', total(here),
    (SELECT envelopes FROM totals), (SELECT bytes FROM totals),
    (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes), count(*)
FROM (
    SELECT passed.topic AS topic, CASE WHEN passed.places & 511 {set} AND passed.places >> 9 & 511 {set}
        THEN (SELECT count FROM topics WHERE topic = passed.topic AND {near}) END AS here
    FROM (SELECT topics.topic, topics.places FROM {among} LIMIT :passed) AS passed
)
"""
"""Passed topics are counted and limited, because each is work, whether it matches or not."""

_NEAR: Final = "first <= :high >> 31 AND last >= :low >> 31"

_PAIRS: Final = """
    json_each(:wanted) AS a CROSS JOIN json_each(:wanted) AS b CROSS JOIN topics INDEXED BY topics_places
    ON places BETWEEN a.value * 262144 + b.value * 512 AND a.value * 262144 + b.value * 512 + 511
"""

_SINGLE: Final = """
    json_each(:wanted) AS a CROSS JOIN topics INDEXED BY topics_places
    ON places BETWEEN a.value * 262144 AND a.value * 262144 + 262143
"""


class Choice(NamedTuple):
    """The chosen way, and the work of choosing it."""

    way: Way | None
    """None: no topic can match."""
    looked: int = 0
    """Number of topics passed, and of the filter's bits, or pairs of them, that were sought."""


def choose(database: sqlite3.Connection, query: PageQuery, low: int, high: int, rows: int, most: int) -> Choice:
    """Return the cheapest way to the first `rows` matches in a range of ids.

    Passes at most `most` topics to choose it.
    """
    given: dict[str, Any] = {"low": low, "high": high}
    if query.topics is not None:
        numbers = ids.numbers(query.topics)
        [found] = _run(database, _THERE, **given, wanted=_json(numbers))
        return Choice(_by_topics(_There(*found), low, high, rows), len(numbers))
    if query.bloom is None or query.bloom == ALL_BITS:
        return Choice(Way(RANGE_SQL))
    bits = bytes(query.bloom >> place & 1 for place in range(ALL_BITS.bit_length()))
    places = [place for place, bit in enumerate(bits) if bit]
    looked = 0
    if len(places) <= MAX_SINGLE_PLACES:
        pairs = len(places) <= MAX_PAIRED_PLACES
        statement = _THERE_OF.replace("{among}", _PAIRS if pairs else _SINGLE)
        [(*found, passed)] = _run(database, statement, **given, wanted=_json(places), passed=most)
        there = _There(*found)
        looked = passed + (len(places) ** 2 if pairs else len(places))
        if there.topics <= MAX_SEEK_TOPICS and passed < most:
            return Choice(_by_topics(there, low, high, rows), looked)
    return Choice(Way(WALK_SQL.replace("{matches}", _LET_THROUGH), bits, walks=True), looked)


class _There(NamedTuple):
    """The matching topics with envelopes near the range, and the archive's size."""

    topics: int
    wanted: str
    matches: float
    """Number of envelopes of these topics, inside and outside the range."""
    envelopes: int
    bytes: int
    oldest: int
    newest: int
    """The lowest and the highest id."""


def _run(database: sqlite3.Connection, statement: str, **given: Any) -> list[Any]:
    statement = statement.replace("{near}", _NEAR).replace("{set}", _SET)
    return database.execute(statement, given).fetchall()


def _by_topics(there: _There, low: int, high: int, rows: int) -> Way | None:
    if not there.topics:
        return None
    # The estimate assumes an even spread. For an uneven one the search takes longer.
    ids_there = there.newest - there.oldest + 1
    first, last = max(low, there.oldest), min(high, there.newest)
    share = (last - first + 1) / ids_there
    walk = min(share, rows / there.matches) * (ROW_COST * there.envelopes + there.bytes)
    if walk < SEEK_COST * there.topics:
        return Way(WALK_SQL.replace("{matches}", _OF_TOPICS), there.wanted, _sieve(there.wanted), walks=True)
    evenly = rows * ids_there / there.matches
    entries = MAX_SORT_FACTOR * max(rows, there.topics)
    spans = [int(evenly * times) for times in PART_FACTORS]
    parts = tuple(Part(min(high, first + span), max(low, last - span), rows, entries) for span in spans)
    return Way(MERGE_SQL, there.wanted, parts=parts)


def _sieve(wanted: str) -> bytes:
    sieve = bytearray(SIEVE_BYTES)
    for number in msgspec.json.decode(wanted):
        sieve[number & SIEVE_BYTES - 1] = 1
    return bytes(sieve)


_encode_json: Final = msgspec.json.Encoder().encode


def _json(numbers: Sequence[int]) -> str:
    return _encode_json(numbers).decode()


# ── page ──────────────────────────────────────────────────────────────────────────────────────────


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
    way, chosen = choose(database, query, low, high, most + 1, bounds.rows) if low <= high else Choice(None)
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
        way = Way(PART_SQL, self.way.wanted)
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
            [(passed,)] = self._run(COUNT_SQL, low, high, 0)
            return passed, None
        [(passed, stop)] = self._run(PASSED_SQL, self.low, self.high, 0)
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
