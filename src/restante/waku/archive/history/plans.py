"""Ways to find a page's envelopes, and which of them is the cheapest.

Each way is one statement: SQLite works without the interpreter lock only within a statement, so one for each topic or
row would have whoever asks wait for the server's loop as often. docs/decisions/history-query.md has the figures.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from restante.waku.archive import ids
from restante.waku.archive.history.query import PageQuery
from restante.waku.envelope.bloom import ALL_BITS

SEEK_COST: Final = 8_000
"""Cost of finding a topic's first entry in the index, in bytes of rows that are passed by one after the other."""

ROW_COST: Final = 350
"""Cost of passing by a row, besides its bytes, likewise. A row of 305 bytes takes 0.19 µs, one of 3,000 0.95 µs, and
a seek 1.8 to 2.6 µs, the more the larger the archive."""

SIEVE_BYTES: Final = 4096
"""Bytes that a walk looks at before it looks for a topic in the set of those wanted, one for each value of a topic's
last 12 bits. With 500 topics it leaves out nine in ten of the other rows, and a page takes a quarter less time."""

PART_FACTORS: Final = (1.25, 5.0)
"""Parts of a range in which a page is looked for, the second where the first has too few entries. In multiples of the
part that would have the page's entries if all were spread evenly over time."""

MAX_SORT_FACTOR: Final = 4
"""How many times the entries of a page are sorted at most."""

MAX_SEEK_TOPICS: Final = 5_000
"""Topics that are looked for one by one. A filter that lets more through is held against each row instead."""

MAX_PAIRED_PLACES: Final = 40
"""Places of a filter, up to which each pair of them is looked for among the topics: 1,600 seeks."""

MAX_SINGLE_PLACES: Final = 160
"""Places, up to which each is looked for. With more, one topic in 33 is let through, and a walk soon has its page."""


class Part(NamedTuple):
    """The beginning of a range, in which a page's envelopes are looked for by `PART_SQL`."""

    upward: int
    """The highest id of the part, where the page is in ascending order."""
    downward: int
    """The lowest id of the part, where it is in descending order."""
    least: int
    """Entries of the topics that it must have, unless it is the whole range."""
    entries: int
    """It must have fewer than these."""


class Way(NamedTuple):
    """A statement that gives id and raw, in order."""

    statement: str
    """It takes :low and :high, both inclusive, :rows, at most so many that it gives, :most, :wanted and :sieve."""
    wanted: str | bytes = "[]"
    """Topics as JSON; or a byte for each place of a filter, 1 where it is set."""
    sieve: bytes = b""
    """A byte for each value of a topic's last bits, 1 where a wanted topic has it (`SIEVE_BYTES`)."""
    walks: bool = False
    """Whether it passes by what does not match, until it passed by :most."""
    parts: tuple[Part, ...] = ()
    """Where to look first, one after the other; the statement is for when none gives anything."""


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
"""All entries of the topics in a part of the range are sorted: a seek for each topic, and none for each envelope. It
gives nothing where the part has fewer than :least of them, or :entries and more."""

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
"""For what is spread unevenly over time. The recursion's queue (sqlite.org/lang_with.html) has the next entry of each
topic: no more are read than wanted, and each costs a seek, however the envelopes of the topics are spread. One bound
below and one above: of two on the same side SQLite may seek by the wrong one, and pass by all that were given."""

WALK_SQL: Final = """
SELECT id, raw FROM (
    SELECT id, topic FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
) AS passed CROSS JOIN envelopes USING (id) WHERE {matches} LIMIT :rows
"""
"""What does not match is not read whole: it may be large."""

COUNT_SQL: Final = "SELECT count(*) FROM envelopes WHERE id BETWEEN :low AND :high"

PASSED_SQL: Final = """
SELECT count(*), {last}(id) FROM (
    SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
)
"""
"""How many a walk passed by that came to its end, and where that was."""

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
"""sqlite-0002.sql, the other way round: a place that a later one stands for need not be set. To look for a place in a
set of them would take twice as long as to look at a byte."""

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
"""What is passed by is counted, and bounded: it is work, whether it matches or not."""

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
    """What was chosen, and what it took to choose."""

    way: Way | None
    """None: no topic can match."""
    looked: int = 0
    """Topics that were passed by, and places of the filter where some were looked for."""


def choose(database: sqlite3.Connection, query: PageQuery, low: int, high: int, rows: int, most: int) -> Choice:
    """Choose a way to the first `rows` of the matches among these ids; at most `most` topics are passed by for it."""
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
    """The topics that match and have envelopes near the range, and the archive's size."""

    topics: int
    wanted: str
    matches: float
    """Their envelopes, in the range or not."""
    envelopes: int
    bytes: int
    oldest: int
    newest: int
    """Ids."""


def _run(database: sqlite3.Connection, statement: str, **given: Any) -> list[Any]:
    statement = statement.replace("{near}", _NEAR).replace("{set}", _SET)
    return database.execute(statement, given).fetchall()


def _by_topics(there: _There, low: int, high: int, rows: int) -> Way | None:
    if not there.topics:
        return None
    # As if all were spread evenly; if they are not, it takes longer.
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
    for number in json.loads(wanted):
        sieve[number & SIEVE_BYTES - 1] = 1
    return bytes(sieve)


def _json(numbers: Iterable[int]) -> str:
    return json.dumps(list(numbers))
