"""Pages of an archive's history: the plan of a search, and the search. They work on any connection.

No transaction stays open afterwards, so the log can be checkpointed as soon as a page is returned. A change between
two statements of a page has the same effect as a change between two pages. Where this would not be so, a page is read
in one transaction (`_Search.needs_transaction`).
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
from restante.waku.archive.query import Bounds, Page, PageQuery, make_cursor, read_cursor
from restante.waku.envelope.bloom import ALL_BITS
from restante.waku.envelope.envelope import U32
from restante.waku.envelope.keccak import keccak

# ── Plans ─────────────────────────────────────────────────────────────────────────────────────────
# A plan is one statement that finds a page's envelopes. The cheapest one is chosen. SQLite releases the interpreter
# lock only within a statement, so with one statement per topic or row the reader would wait for the server's event
# loop as often. docs/decisions/history-query.md has the measurements.

SEEK_COST: Final = 8_000
"""Cost of a seek to a topic's first index entry. The unit is the cost of a byte of a row that a walk passes."""

ROW_COST: Final = 350
"""Cost of passing a row in addition to its bytes, in the same unit. A row of 305 bytes takes 0.19 µs, one of 3,000
bytes 0.95 µs. A seek takes 1.8 to 2.6 µs, more in a larger archive."""

SIEVE_BYTES: Final = 4096
"""Bytes of the sieve, which a walk checks before it searches the set of selected topics. The sieve has one byte for
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

MAX_PAIRED_BITS: Final = 40
"""Maximum bits of a filter for which each pair of bits is sought among the topics: 1,600 seeks."""

MAX_SINGLE_BITS: Final = 160
"""Maximum bits of a filter for which each bit is sought among the topics. A filter with more passes one topic in 33
or more, so a walk soon fills its page."""


class RangePart(NamedTuple):
    """The beginning of a range, in which `PART_SQL` searches for a page's envelopes."""

    upward: int
    """The highest id of the part, for ascending order."""
    downward: int
    """The lowest id of the part, for descending order."""
    min_entries: int
    """Minimum number of entries of the selected topics in the part, unless it is the whole range."""
    entries: int
    """The number of entries must be lower than this."""


class Plan(NamedTuple):
    """A statement that returns id and raw, in order."""

    statement: str
    """Its parameters are :low and :high (inclusive), :rows (maximum rows returned), :max_rows (maximum rows passed),
    :selection and :sieve."""
    selection: str | bytes = "[]"
    """Topics as JSON, or one byte for each bit of a filter, 1 if it is set."""
    sieve: bytes = b""
    """One byte for each value of a topic's last bits, 1 if a selected topic has it (`SIEVE_BYTES`)."""
    walks: bool = False
    """Whether the statement passes rows that do not match, at most :max_rows rows in total."""
    parts: tuple[RangePart, ...] = ()
    """Parts to search first, in this order. The statement runs if none of them returns a row."""


RANGE_SQL: Final = "SELECT id, raw FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :rows"

PART_SQL: Final = """
WITH entries AS MATERIALIZED (
    SELECT id FROM envelopes WHERE topic IN (SELECT value FROM json_each(:selection)) AND id BETWEEN :low AND :high
    LIMIT :entries
)
SELECT id, raw FROM (
    SELECT id FROM entries WHERE (SELECT count(*) FROM entries) BETWEEN :min_entries AND :entries - 1
    ORDER BY id {order} LIMIT :rows
) CROSS JOIN envelopes USING (id)
"""
"""Sorts all entries of the topics in a part of the range: one seek per topic, none per envelope. It returns nothing
if the part has fewer than :min_entries entries, or :entries or more."""

MERGE_SQL: Final = """
WITH RECURSIVE merged (topic, id) AS (
    SELECT value, (SELECT {first}(id) FROM envelopes WHERE topic = value AND id BETWEEN :low AND :high)
    FROM json_each(:selection)
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
entry of each topic. No more entries are read than :rows, and each costs one seek, however the topics are spread.
Each seek has one lower and one upper bound: with two bounds on the same side SQLite may seek by the wrong one and
pass all entries that were already returned."""

WALK_SQL: Final = """
SELECT id, raw FROM (
    SELECT id, topic FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :max_rows
) AS passed CROSS JOIN envelopes USING (id) WHERE {matches} LIMIT :rows
"""
"""A row that does not match is not read completely, because it may be large."""

COUNT_SQL: Final = "SELECT count(*) FROM envelopes WHERE id BETWEEN :low AND :high"

PASSED_SQL: Final = """
SELECT count(*), {last}(id) FROM (
    SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :max_rows
)
"""
"""Returns the number of rows passed by a walk that reached its end, and the id of the last one."""

_MATCHES_TOPICS: Final = """
    substr(:sieve, 1 + (passed.topic & {last}), 1) = x'01'
    AND passed.topic IN (SELECT value FROM json_each(:selection))
""".replace("{last}", str(SIEVE_BYTES - 1))

_BIT0: Final = "((passed.topic >> 24 & 255) + (passed.topic & 1) * 256)"
_BIT1: Final = "((passed.topic >> 16 & 255) + (passed.topic & 2) * 128)"
_BIT2: Final = "((passed.topic >> 8 & 255) + (passed.topic & 4) * 64)"
_IN_SELECTION: Final = "IN (SELECT value FROM json_each(:selection))"
_BIT2_SET, _BIT1_SET, _BIT0_SET = (f"substr(:selection, 1 + {bit}, 1) = x'01'" for bit in (_BIT2, _BIT1, _BIT0))

_MATCHES_FILTER: Final = f"""
    {_BIT2_SET}
    AND ({_BIT1_SET} OR {_BIT1} >> 3 = {_BIT2} >> 3)
    AND ({_BIT0_SET} OR {_BIT0} >> 3 = {_BIT2} >> 3 OR {_BIT0} >> 3 = {_BIT1} >> 3)
"""
"""The inverse of sqlite-0002.sql: a bit that a later bit replaces need not be set. A search in a set of bits would
take twice as long as reading a byte."""

_TOPICS_SQL: Final = """
SELECT count(*), '[' || group_concat(topic) || ']', total(count),
    (SELECT envelopes FROM totals), (SELECT bytes FROM totals),
    (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes)
FROM (SELECT topic, count FROM topics WHERE topic IN (SELECT value FROM json_each(:selection)) AND {near})
"""

_FILTER_SQL: Final = """
SELECT count(matching), '[' || group_concat(topic) FILTER (WHERE matching) || ']', total(matching),
    (SELECT envelopes FROM totals), (SELECT bytes FROM totals),
    (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes), count(*)
FROM (
    SELECT passed.topic AS topic, CASE WHEN passed.places & 511 {set} AND passed.places >> 9 & 511 {set}
        THEN (SELECT count FROM topics WHERE topic = passed.topic AND {near}) END AS matching
    FROM (SELECT topics.topic, topics.places FROM {among} LIMIT :max_topics) AS passed
)
"""
"""Passed topics are counted and limited, because each is work, whether it matches or not."""

_NEAR_RANGE: Final = "first <= :high >> 31 AND last >= :low >> 31"

_PAIRS: Final = """
    json_each(:selection) AS a CROSS JOIN json_each(:selection) AS b CROSS JOIN topics INDEXED BY topics_places
    ON places BETWEEN a.value * 262144 + b.value * 512 AND a.value * 262144 + b.value * 512 + 511
"""

_SINGLE: Final = """
    json_each(:selection) AS a CROSS JOIN topics INDEXED BY topics_places
    ON places BETWEEN a.value * 262144 AND a.value * 262144 + 262143
"""


class PlanChoice(NamedTuple):
    """The chosen plan, and the work of choosing it."""

    plan: Plan | None
    """None: no topic can match."""
    examined: int = 0
    """Number of topics passed, and of the filter's bits, or pairs of them, that were sought."""


def choose_plan(
    database: sqlite3.Connection, query: PageQuery, low: int, high: int, rows: int, max_topics: int
) -> PlanChoice:
    """Return the cheapest plan that finds the first `rows` matches in a range of ids.

    Passes at most `max_topics` topics to choose it.
    """
    if query.topics is not None:
        numbers = ids.topic_numbers(query.topics)
        [row] = _query_topics(database, _TOPICS_SQL, low=low, high=high, selection=_encode_numbers(numbers))
        return PlanChoice(_plan_for_topics(_TopicStatistics(*row), low, high, rows), len(numbers))
    if query.bloom is None or query.bloom == ALL_BITS:
        return PlanChoice(Plan(RANGE_SQL))
    bits = bytes(query.bloom >> number & 1 for number in range(ALL_BITS.bit_length()))
    bits_set = [number for number, bit in enumerate(bits) if bit]
    examined = 0
    if len(bits_set) <= MAX_SINGLE_BITS:
        pairs = len(bits_set) <= MAX_PAIRED_BITS
        statement = _FILTER_SQL.replace("{among}", _PAIRS if pairs else _SINGLE)
        selection = _encode_numbers(bits_set)
        [(*row, passed_topics)] = _query_topics(
            database, statement, low=low, high=high, selection=selection, max_topics=max_topics
        )
        statistics = _TopicStatistics(*row)
        examined = passed_topics + (len(bits_set) ** 2 if pairs else len(bits_set))
        if statistics.topics <= MAX_SEEK_TOPICS and passed_topics < max_topics:
            return PlanChoice(_plan_for_topics(statistics, low, high, rows), examined)
    return PlanChoice(Plan(WALK_SQL.replace("{matches}", _MATCHES_FILTER), bits, walks=True), examined)


class _TopicStatistics(NamedTuple):
    """The matching topics with envelopes near the range, and the archive's size."""

    topics: int
    selection: str
    matches: float
    """Number of envelopes of these topics, inside and outside the range."""
    envelopes: int
    bytes: int
    oldest: int
    newest: int
    """The lowest and the highest id."""


def _query_topics(database: sqlite3.Connection, statement: str, **parameters: Any) -> list[Any]:
    statement = statement.replace("{near}", _NEAR_RANGE).replace("{set}", _IN_SELECTION)
    return database.execute(statement, parameters).fetchall()


def _plan_for_topics(statistics: _TopicStatistics, low: int, high: int, rows: int) -> Plan | None:
    if not statistics.topics:
        return None
    # The estimate assumes an even spread. For an uneven one the search takes longer.
    stored_ids = statistics.newest - statistics.oldest + 1
    lowest, highest = max(low, statistics.oldest), min(high, statistics.newest)
    share = (highest - lowest + 1) / stored_ids
    walk = min(share, rows / statistics.matches) * (ROW_COST * statistics.envelopes + statistics.bytes)
    if walk < SEEK_COST * statistics.topics:
        statement = WALK_SQL.replace("{matches}", _MATCHES_TOPICS)
        return Plan(statement, statistics.selection, _sieve(statistics.selection), walks=True)
    evenly = rows * stored_ids / statistics.matches
    entries = MAX_SORT_FACTOR * max(rows, statistics.topics)
    spans = [int(evenly * factor) for factor in PART_FACTORS]
    parts = tuple(RangePart(min(high, lowest + span), max(low, highest - span), rows, entries) for span in spans)
    return Plan(MERGE_SQL, statistics.selection, parts=parts)


def _sieve(selection: str) -> bytes:
    sieve = bytearray(SIEVE_BYTES)
    for number in msgspec.json.decode(selection):
        sieve[number & SIEVE_BYTES - 1] = 1
    return bytes(sieve)


_encode_json: Final = msgspec.json.Encoder().encode


def _encode_numbers(numbers: Sequence[int]) -> str:
    return _encode_json(numbers).decode()


# ── Pages ─────────────────────────────────────────────────────────────────────────────────────────

MAX_RESULT_BYTES: Final = 16 << 20
"""Maximum bytes that SQLite may concatenate for a page. If a page has more, the query is repeated for as many rows as
fit."""

_PAGE_SQL: Final = (
    "SELECT group_concat(id), group_concat(length(raw)), CAST(group_concat(raw, '') AS BLOB) FROM ({plan})"
)

_RANGE_PAGE_SQL: Final = """
WITH ends AS MATERIALIZED (
    SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id LIMIT 2 OFFSET :rows - 2
)
SELECT (SELECT group_concat(id) FROM ends), group_concat(length(raw)), CAST(group_concat(raw, '') AS BLOB)
FROM envelopes NOT INDEXED WHERE id BETWEEN :low AND ifnull((SELECT max(id) FROM ends), :high)
"""
"""`RANGE_SQL` in ascending order, as a page with only the last two ids of a full one. It takes two fifths fewer
instructions: no envelope is copied for a subquery, and no id becomes text."""

_NTH_ID_SQL: Final = "SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id LIMIT 1 OFFSET :rows - 1"

_LENGTHS_SQL: Final = "SELECT group_concat(id), group_concat(length(raw)), NULL FROM ({plan})"

_NUMBER_DECODER: Final = msgspec.json.Decoder(list[int])
"""Parses comma-separated numbers in a fifth of the time that `split` and `int` take."""

_ORDER_TERMS: Final = (
    {"{order}": "ASC", "{first}": "min", "{last}": "max", "{beyond}": ">", "{within}": "<= :high"},
    {"{order}": "DESC", "{first}": "max", "{last}": "min", "{beyond}": "<", "{within}": ">= :low"},
)


def read_page(database: sqlite3.Connection, query: PageQuery, bounds: Bounds) -> Page:
    """Return the page that answers a query."""
    low, high = _id_range(database, query)
    max_envelopes = min(query.limit, bounds.rows)
    choice = PlanChoice(None)
    if low <= high:
        choice = choose_plan(database, query, low, high, max_envelopes + 1, bounds.rows)
    if choice.plan is None:
        return Page(b"", [], None, None, choice.examined, False)
    search = _Search(database, choice.plan, query.descending, low, high, bounds)
    with _read_transaction(database) if search.needs_transaction else nullcontext():
        result = search.find(max_envelopes)
        examined, stop = search.count_examined(result)
    examined += choice.examined
    raws, stops = result.raws, result.stops
    last_hash = keccak(memoryview(raws)[stops[-2] if len(stops) > 1 else 0 : stops[-1]]) if stops else None
    if result.has_more:
        return Page(
            raws, stops, last_hash, make_cursor(result.last_id, last_hash), examined, len(stops) < query.limit
        )
    if stop is not None:
        return Page(raws, stops, last_hash, make_cursor(stop, None), examined, True)
    return Page(raws, stops, last_hash, None, examined, False)


@contextmanager
def _read_transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run all statements in one transaction, which does not write."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        try:
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:  # an interrupt stopped the ROLLBACK; it stops one statement only
            if database.in_transaction:
                database.execute("ROLLBACK")


class _SearchResult(NamedTuple):
    raws: bytes
    """The envelopes' RLP, concatenated."""
    stops: list[int]
    last_id: int
    """The id of the last envelope, if another one matches."""
    has_more: bool
    """Whether another envelope matches."""


class _Search(NamedTuple):
    """A plan, and the range of ids to search."""

    database: sqlite3.Connection
    plan: Plan
    descending: bool
    low: int
    high: int
    bounds: Bounds
    min_entries: int = 0
    entries: int = 0
    """Minimum number of entries of a part, and the number that it must stay below (`RangePart`)."""

    @property
    def needs_transaction(self) -> bool:
        """Whether a second statement finds out where the page ends: where a walk stopped, or bytes ended a range."""
        return self.plan.walks or self._is_range_page

    @property
    def _is_range_page(self) -> bool:
        """Whether `_RANGE_PAGE_SQL` reads the page."""
        return self.plan.statement is RANGE_SQL and not self.descending

    def find(self, max_envelopes: int) -> _SearchResult:
        """Return the first `max_envelopes` envelopes, or as many of them as fit into a page."""
        for part in self.plan.parts:
            search = self._search_in_part(part)
            result = search._find_in_range(max_envelopes)
            if result.stops:
                return result
            if not search.min_entries:
                break  # it was the whole range
        return self._find_in_range(max_envelopes)

    def _search_in_part(self, part: RangePart) -> _Search:
        """Return the search in a part of the range."""
        low, high = (part.downward, self.high) if self.descending else (self.low, part.upward)
        min_entries = 0 if (low, high) == (self.low, self.high) else part.min_entries
        plan = Plan(PART_SQL, self.plan.selection)
        return self._replace(plan=plan, low=low, high=high, min_entries=min_entries, entries=part.entries)

    def _find_in_range(self, max_envelopes: int) -> _SearchResult:
        previous_limit = self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RESULT_BYTES)
        try:
            shape = _RANGE_PAGE_SQL if self._is_range_page else _PAGE_SQL
            return self._fit_to_page(max_envelopes, *self._query_rows(shape, max_envelopes + 1))
        except sqlite3.DataError:  # "string or blob too big"
            pass
        finally:
            self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, previous_limit)
        _, stops, _ = self._query_rows(_LENGTHS_SQL, max_envelopes + 1)
        fitting = self._count_fitting(stops, max_envelopes)
        return self._fit_to_page(fitting, *self._query_rows(_PAGE_SQL, fitting + 1))

    def _fit_to_page(self, max_envelopes: int, id_list: str, stops: list[int], raws: bytes) -> _SearchResult:
        count = self._count_fitting(stops, max_envelopes)
        if not count:
            return _SearchResult(b"", [], 0, False)
        surplus = len(stops) - count
        del stops[count:]
        if len(raws) > self.bounds.bytes:  # copying less is not worth its time
            raws = raws[: stops[-1]]
        last_id = 0
        if surplus:
            ids = id_list.rsplit(",", surplus + 1)
            if len(ids) > surplus:
                last_id = int(ids[-surplus - 1])
            else:  # the bytes have cut a page of _RANGE_PAGE_SQL, of which only the last two ids are known
                [(last_id,)] = self._execute(_NTH_ID_SQL, self.low, self.high, count)
        return _SearchResult(raws, stops, last_id, surplus > 0)

    def _count_fitting(self, stops: list[int], max_envelopes: int) -> int:
        """Return how many envelopes fit, at most `max_envelopes`. The first one always does."""
        end = min(len(stops), max_envelopes)
        return max(bisect_right(stops, self.bounds.bytes, hi=end), min(end, 1))

    def count_examined(self, result: _SearchResult) -> tuple[int, int | None]:
        """Return how much was examined, and the id at which a walk reached its bound; None if it did not."""
        if not self.plan.walks:
            return len(result.stops) + result.has_more, None
        if result.has_more:
            low, high = (result.last_id, self.high) if self.descending else (self.low, result.last_id)
            [(passed,)] = self._execute(COUNT_SQL, low, high, 0)
            return passed, None
        [(passed, stop)] = self._execute(PASSED_SQL, self.low, self.high, 0)
        return passed, stop if passed == self.bounds.rows else None

    def _query_rows(self, shape: str, rows: int) -> tuple[str, list[int], bytes]:
        """Return the ids, separated by commas, the end offset of each envelope, and the envelopes, concatenated.

        Of `_RANGE_PAGE_SQL` the ids are the last two, if there are as many rows as requested.
        """
        statement = shape.replace("{plan}", self.plan.statement)
        [(id_list, sizes, raws)] = self._execute(statement, self.low, self.high, rows)
        if sizes is None:
            return "", [], b""
        return id_list or "", list(accumulate(_NUMBER_DECODER.decode(f"[{sizes}]"))), raws

    def _execute(self, statement: str, low: int, high: int, rows: int) -> list[Any]:
        for placeholder, term in _ORDER_TERMS[self.descending].items():
            statement = statement.replace(placeholder, term)
        parameters = {
            "selection": self.plan.selection,
            "sieve": self.plan.sieve,
            "min_entries": self.min_entries,
            "entries": self.entries,
            "low": low,
            "high": high,
            "rows": rows,
            "max_rows": self.bounds.rows,
        }
        return self.database.execute(statement, parameters).fetchall()


def _id_range(database: sqlite3.Connection, query: PageQuery) -> tuple[int, int]:
    """Return the lowest and the highest id that the page may contain."""
    low, high = ids.lowest_id(max(query.lower, 0)), ids.lowest_id(min(query.upper, U32) + 1) - 1
    if query.after is None:
        return low, high
    upward, downward = _ids_after_cursor(database, query.after)
    return (low, min(high, downward)) if query.descending else (max(low, upward), high)


def _ids_after_cursor(database: sqlite3.Connection, after: bytes) -> tuple[int, int]:
    """Return where to continue after a cursor: the id from which to go up, and the id from which to go down.

    The cursor's home id may belong to another envelope while the envelope that the cursor names is not just below it
    (ids.py). Then the cursor is from another server, or the envelope was pruned and its id reused. In that case no
    envelope with the same hash prefix is left out.
    """
    home, digest = read_cursor(after)
    id_, end = home, max(home - ids.PROBES, ids.lowest_id(home >> ids.BITS) - 1)
    while digest is not None and id_ > end and (raw := _stored_raw(database, id_)) is not None:
        if keccak(raw) == digest:
            return id_ + 1, id_ - 1
        id_ -= 1
    return id_ + 1, home if id_ < home else home - 1


def _stored_raw(database: sqlite3.Connection, id_: int) -> bytes | None:
    rows = database.execute("SELECT raw FROM envelopes WHERE id = ?", (id_,)).fetchall()
    return rows[0][0] if rows else None
