"""The ways to find a page's envelopes, and the choice of the cheapest.

Each way is one statement. SQLite releases the interpreter lock only within a statement, so with one statement per
topic or row the reader would wait for the server's event loop as often. docs/decisions/history-query.md has the
measurements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from restante.waku.archive import ids
from restante.waku.archive.query import PageQuery
from restante.waku.envelope.bloom import ALL_BITS

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
