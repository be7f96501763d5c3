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
from restante.waku.archive.query import Query
from restante.waku.bloom import FULL

SEEK: Final = 5
"""What it costs to find an entry in an index, in rows that are passed by one after the other."""

MOST_TOPICS: Final = 5_000
"""Topics that are looked for one by one. A filter that lets more through is held against each row instead."""

PAIRED: Final = 40
"""Places of a filter, up to which each pair of them is looked for among the topics: 1,600 seeks."""

SPARSE: Final = 160
"""Places, up to which each is looked for. With more, one topic in 33 is let through, and a walk soon has its page."""


class Way(NamedTuple):
    """A statement that gives id and raw, in order."""

    statement: str
    """It takes :low and :high, both inclusive, :rows, at most so many that it gives, :most and :wanted."""
    wanted: str | bytes = "[]"
    """Topics as JSON; or a byte for each place of a filter, 1 where it is set."""
    walks: bool = False
    """Whether it passes by what does not match, until it passed by :most."""


EVERYTHING: Final = "SELECT id, raw FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :rows"

FEW: Final = """
SELECT id, raw FROM (
    SELECT id FROM envelopes WHERE topic IN (SELECT value FROM json_each(:wanted)) AND id BETWEEN :low AND :high
    ORDER BY id {order} LIMIT :rows
) CROSS JOIN envelopes USING (id)
"""
"""All entries of the topics are sorted: good where all of them are wanted."""

MERGE: Final = """
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
"""The recursion's queue (sqlite.org/lang_with.html) has the next entry of each topic: no more are read than wanted,
and each costs a seek, however the envelopes of the topics are spread. One bound below and one above: of two on the
same side SQLite may seek by the wrong one, and pass by all that were given."""

WALK: Final = """
SELECT id, raw FROM (
    SELECT id, topic FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
) AS passed CROSS JOIN envelopes USING (id) WHERE {matches} LIMIT :rows
"""
"""What does not match is not read whole: it may be large."""

COUNT: Final = "SELECT count(*) FROM envelopes WHERE id BETWEEN :low AND :high"

PASSED: Final = """
SELECT count(*), {last}(id) FROM (
    SELECT id FROM envelopes WHERE id BETWEEN :low AND :high ORDER BY id {order} LIMIT :most
)
"""
"""How many a walk passed by that came to its end, and where that was."""

_OF_TOPICS: Final = "passed.topic IN (SELECT value FROM json_each(:wanted))"

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
    (SELECT envelopes FROM totals), (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes)
FROM (SELECT topic, count FROM topics WHERE topic IN (SELECT value FROM json_each(:wanted)) AND {near})
"""

_THERE_OF: Final = """
SELECT count(here), '[' || group_concat(topic) FILTER (WHERE here) || ']', total(here),
    (SELECT envelopes FROM totals), (SELECT min(id) FROM envelopes), (SELECT max(id) FROM envelopes), count(*)
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


def choose(database: sqlite3.Connection, query: Query, low: int, high: int, rows: int, most: int) -> Choice:
    """Choose a way to the first `rows` of the matches among these ids; at most `most` topics are passed by for it."""
    given: dict[str, Any] = {"low": low, "high": high}
    if query.topics is not None:
        numbers = ids.numbers(query.topics)
        [found] = _run(database, _THERE, **given, wanted=_json(numbers))
        return Choice(_by_topics(_There(*found), low, high, rows), len(numbers))
    if query.bloom is None or query.bloom == FULL:
        return Choice(Way(EVERYTHING))
    bits = bytes(query.bloom >> place & 1 for place in range(FULL.bit_length()))
    places = [place for place, bit in enumerate(bits) if bit]
    looked = 0
    if len(places) <= SPARSE:
        pairs = len(places) <= PAIRED
        statement = _THERE_OF.replace("{among}", _PAIRS if pairs else _SINGLE)
        [(*found, passed)] = _run(database, statement, **given, wanted=_json(places), passed=most)
        there = _There(*found)
        looked = passed + (len(places) ** 2 if pairs else len(places))
        if there.topics <= MOST_TOPICS and passed < most:
            return Choice(_by_topics(there, low, high, rows), looked)
    return Choice(Way(WALK.replace("{matches}", _LET_THROUGH), bits, walks=True), looked)


class _There(NamedTuple):
    """The topics that match and have envelopes near the range, and the archive's size."""

    topics: int
    wanted: str
    matches: float
    """Their envelopes, in the range or not."""
    envelopes: int
    oldest: int
    newest: int
    """Ids."""


def _run(database: sqlite3.Connection, statement: str, **given: Any) -> list[Any]:
    statement = statement.replace("{near}", _NEAR).replace("{set}", _SET)
    return database.execute(statement, given).fetchall()


def _by_topics(there: _There, low: int, high: int, rows: int) -> Way | None:
    if not there.topics:
        return None
    if there.matches <= max(rows, 4 * there.topics):
        return Way(FEW, there.wanted)
    # As if all were spread evenly; if they are not, it takes longer.
    share = (min(high, there.newest) - max(low, there.oldest) + 1) / (there.newest - there.oldest + 1)
    passed = there.envelopes * min(share, rows / there.matches)
    if passed < SEEK * (there.topics + min(rows, there.matches * share)):
        return Way(WALK.replace("{matches}", _OF_TOPICS), there.wanted, walks=True)
    return Way(MERGE, there.wanted)


def _json(numbers: Iterable[int]) -> str:
    return json.dumps(list(numbers))
