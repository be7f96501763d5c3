"""Pruning: deletion of the oldest envelopes, inside a transaction.

It always deletes from the lowest id upward (see ids.py). Each step is one statement over the range of deleted ids,
for the reason given in rows.py.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from restante.waku.archive import ids
from restante.waku.envelope.envelope import U32

_LAST_OF_MOST: Final = "SELECT id FROM envelopes WHERE id <= ? ORDER BY id LIMIT 1 OFFSET ? - 1"

_LAST: Final = "SELECT max(id) FROM envelopes WHERE id <= ?"

_LAST_OF_BYTES: Final = """
SELECT id FROM (SELECT id, sum(length(raw)) OVER (ORDER BY id) AS freed FROM envelopes ORDER BY id LIMIT ?)
WHERE freed >= ? LIMIT 1
"""

_DROP: Final = (
    # The topic's next index entry is its oldest remaining envelope. The next statement deletes topics without any.
    """
    UPDATE topics SET count = topics.count - gone.count, first = coalesce(
        (SELECT id >> 31 FROM envelopes WHERE topic = topics.topic AND id > :last ORDER BY id LIMIT 1), first)
    FROM (SELECT topic, count(*) AS count FROM envelopes WHERE id <= :last GROUP BY +topic) AS gone
    WHERE topics.topic = gone.topic
    """,
    "DELETE FROM topics WHERE count = 0 AND topic IN (SELECT topic FROM envelopes WHERE id <= :last)",
    "DELETE FROM arrivals WHERE arrival IN (SELECT arrival FROM envelopes WHERE id <= :last)",
    """
    UPDATE totals SET envelopes = totals.envelopes - gone.envelopes, bytes = totals.bytes - gone.bytes
    FROM (SELECT count(*) AS envelopes, coalesce(sum(length(raw)), 0) AS bytes FROM envelopes WHERE id <= :last)
        AS gone
    """,
    "DELETE FROM envelopes WHERE id <= :last",
)


class Pruned(NamedTuple):
    """What was deleted."""

    envelopes: int
    until: int
    """When the last of them was sent, in seconds since 1970; -1 if there is none."""


def prune(database: sqlite3.Connection, before: int, most: int) -> Pruned:
    """Delete envelopes sent before a time, oldest first, at most `most`."""
    return _drop(database, ids.floor(min(before, U32 + 1)) - 1, most)


def prune_bytes(database: sqlite3.Connection, limit: int, most: int) -> Pruned:
    """Delete the oldest envelopes, at most `most`, until the rest has at most `limit` bytes."""
    bytes_now: int = database.execute("SELECT bytes FROM totals").fetchone()[0]
    if bytes_now <= limit:
        return Pruned(0, -1)
    found = database.execute(_LAST_OF_BYTES, (most, bytes_now - limit)).fetchone()
    return _drop(database, ids.MAX_ID if found is None else found[0], most)


def _drop(database: sqlite3.Connection, last: int, most: int) -> Pruned:
    """Delete the envelopes up to the id `last`, at most `most`."""
    found = database.execute(_LAST_OF_MOST, (last, most)).fetchone()
    if found is None:  # there are fewer
        found = database.execute(_LAST, (last,)).fetchone()
    if found[0] is None:
        return Pruned(0, -1)
    last, envelopes = found[0], 0
    for statement in _DROP:
        envelopes = database.execute(statement, {"last": last}).rowcount
    return Pruned(envelopes, last >> ids.BITS)
