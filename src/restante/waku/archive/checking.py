"""The integrity check of an archive. It compares everything that is stored twice or can be recomputed.

It reads the whole database as of one moment, even while a server runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from restante.waku.archive import ids, statements
from restante.waku.envelope.envelope import parse
from restante.waku.envelope.rlp import RlpError

_PROGRESS_ROWS: Final = 1000

_NO_ARRIVAL: Final = """
SELECT 'envelope ' || envelopes.id || ' has no arrival' FROM envelopes
LEFT JOIN arrivals USING (arrival) WHERE arrivals.id IS NOT envelopes.id
"""
_NO_ENVELOPE: Final = """
SELECT 'arrival ' || arrivals.arrival || ' has no envelope' FROM arrivals
LEFT JOIN envelopes USING (id) WHERE envelopes.arrival IS NOT arrivals.arrival
"""
_NEXT_ARRIVAL_USED: Final = """
SELECT 'the next arrival number, ' || next_arrival || ', was given already' FROM totals
WHERE next_arrival <= (SELECT max(arrival) FROM arrivals)
"""


def check(database: sqlite3.Connection, advance: Callable[[int], None]) -> Iterator[str]:
    """Yield one sentence per problem."""
    database.execute("BEGIN")  # so that all reads see the archive at one moment
    for (problem,) in database.execute("PRAGMA integrity_check"):
        if problem != "ok":
            yield f"the database is damaged: {problem}"
    totals = _Totals()
    yield from _check_rows(database, totals, advance)
    for statement in (_NO_ARRIVAL, _NO_ENVELOPE, _NEXT_ARRIVAL_USED):
        yield from (problem for (problem,) in database.execute(statement))
    yield from _check_totals(database, totals)


class _Totals:
    """Totals computed from the rows."""

    def __init__(self) -> None:
        self.envelopes = 0
        self.bytes = 0
        self.topics: dict[int, tuple[int, int, int]] = {}
        """For each topic: count, first and last time of sending."""

    def add(self, id_: int, topic: int, size: int) -> None:
        sent = id_ >> ids.BITS
        count, oldest, newest = self.topics.get(topic, (0, sent, sent))
        self.topics[topic] = (count + 1, min(oldest, sent), max(newest, sent))
        self.envelopes += 1
        self.bytes += size


def _check_rows(database: sqlite3.Connection, totals: _Totals, advance: Callable[[int], None]) -> Iterator[str]:
    for id_, topic, raw in database.execute("SELECT id, topic, raw FROM envelopes ORDER BY id"):
        totals.add(id_, topic, len(raw))
        if totals.envelopes % _PROGRESS_ROWS == 0:
            advance(_PROGRESS_ROWS)
        try:
            envelope = parse(raw)
        except RlpError as error:
            yield f"envelope {id_}: {error}"
            continue
        if not _is_reachable(database, id_, ids.home(envelope)):
            yield f"envelope {id_}: its hash and its time belong to {ids.home(envelope)}"
        if ids.topic_number(envelope.topic) != topic:
            yield f"envelope {id_}: its topic is {envelope.topic.hex()}, not {ids.number_topic(topic).hex()}"
    advance(totals.envelopes % _PROGRESS_ROWS)


def _is_reachable(database: sqlite3.Connection, id_: int, home: int) -> bool:
    """Return whether a lookup would find the envelope: all ids from its home down to its own must be taken."""
    if id_ == home:
        return True
    if id_ >> ids.BITS != home >> ids.BITS or not home - ids.PROBES < id_ < home:
        return False
    statement = "SELECT count(*) FROM envelopes WHERE id > ? AND id <= ?"
    [(count,)] = database.execute(statement, (id_, home))
    return bool(count == home - id_)


def _check_totals(database: sqlite3.Connection, totals: _Totals) -> Iterator[str]:
    stored = statements.read_counts(database)
    for name, stored_total, counted_total in (
        ("envelopes", stored.envelopes, totals.envelopes),
        ("bytes", stored.bytes, totals.bytes),
    ):
        if stored_total != counted_total:
            yield f"the count of {name} is {stored_total}, but there are {counted_total}"
    rows = statements.read_topics(database)
    topics = {ids.topic_number(row.topic): (row.count, row.first, row.last) for row in rows}
    for topic in sorted(topics.keys() | totals.topics.keys()):
        if topics.get(topic) != totals.topics.get(topic):
            yield f"the counts of topic {ids.number_topic(topic).hex()} are wrong"
