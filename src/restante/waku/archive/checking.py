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
_NOT_NEXT: Final = """
SELECT 'the next arrival number, ' || next_arrival || ', was given already' FROM totals
WHERE next_arrival <= (SELECT max(arrival) FROM arrivals)
"""


def check(database: sqlite3.Connection, advance: Callable[[int], None]) -> Iterator[str]:
    """Yield one sentence per problem."""
    database.execute("BEGIN")  # so that all reads see the archive at one moment
    for (said,) in database.execute("PRAGMA integrity_check"):
        if said != "ok":
            yield f"the database is damaged: {said}"
    counted = _Counted()
    yield from _rows(database, counted, advance)
    for statement in (_NO_ARRIVAL, _NO_ENVELOPE, _NOT_NEXT):
        yield from (said for (said,) in database.execute(statement))
    yield from _sums(database, counted)


class _Counted:
    """Totals computed from the rows."""

    def __init__(self) -> None:
        self.envelopes = 0
        self.bytes = 0
        self.topics: dict[int, tuple[int, int, int]] = {}
        """For each topic: count, first and last time of sending."""

    def add(self, at: int, topic: int, size: int) -> None:
        sent = at >> ids.BITS
        count, first, last = self.topics.get(topic, (0, sent, sent))
        self.topics[topic] = (count + 1, min(first, sent), max(last, sent))
        self.envelopes += 1
        self.bytes += size


def _rows(database: sqlite3.Connection, counted: _Counted, advance: Callable[[int], None]) -> Iterator[str]:
    for at, topic, raw in database.execute("SELECT id, topic, raw FROM envelopes ORDER BY id"):
        counted.add(at, topic, len(raw))
        if counted.envelopes % _PROGRESS_ROWS == 0:
            advance(_PROGRESS_ROWS)
        try:
            envelope = parse(raw)
        except RlpError as error:
            yield f"envelope {at}: {error}"
            continue
        if not _is_its_place(database, at, ids.home(envelope)):
            yield f"envelope {at}: its hash and its time belong to {ids.home(envelope)}"
        if ids.number(envelope.topic) != topic:
            yield f"envelope {at}: its topic is {envelope.topic.hex()}, not {ids.topic(topic).hex()}"
    advance(counted.envelopes % _PROGRESS_ROWS)


def _is_its_place(database: sqlite3.Connection, at: int, home: int) -> bool:
    """Return whether a lookup would find the envelope: all ids from its home down to its own must be taken."""
    if at == home:
        return True
    if at >> ids.BITS != home >> ids.BITS or not home - ids.PROBES < at < home:
        return False
    taken: int = database.execute("SELECT count(*) FROM envelopes WHERE id > ? AND id <= ?", (at, home)).fetchone()[0]
    return taken == home - at


def _sums(database: sqlite3.Connection, counted: _Counted) -> Iterator[str]:
    stored = statements.counts(database)
    for name, here, there in (
        ("envelopes", stored.envelopes, counted.envelopes),
        ("bytes", stored.bytes, counted.bytes),
    ):
        if here != there:
            yield f"the count of {name} is {here}, but there are {there}"
    topics = {ids.number(each.topic): (each.count, each.first, each.last) for each in statements.topics(database)}
    for topic in sorted(topics.keys() | counted.topics.keys()):
        if topics.get(topic) != counted.topics.get(topic):
            yield f"the counts of topic {ids.topic(topic).hex()} are wrong"
