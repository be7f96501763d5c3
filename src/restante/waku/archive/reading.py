"""What is read from an archive's database, through whatever connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from restante.waku.archive import Archived, Counts, TopicCount, ids
from restante.waku.envelope.envelope import U32

MAX_PAGE_BYTES: Final = 8 << 20
"""Bytes of envelopes that are read at a time, about."""

MAX_PAGE_ROWS: Final = 1000
"""Envelopes that are read at a time by who wants them all."""

_COUNTS: Final = """
SELECT
    envelopes,
    bytes,
    (SELECT count(*) FROM topics),
    (SELECT min(id) FROM envelopes) >> 31,
    (SELECT max(id) FROM envelopes) >> 31,
    next_arrival
FROM totals
"""

# The index of topics is all that is read: it has the ids, and is a small part of the file.
_OLDER: Final = "SELECT count(*) FROM envelopes INDEXED BY envelopes_topic WHERE id <= ?"

_ENDS: Final = (
    *(
        f"SELECT * FROM {table} ORDER BY rowid {order} LIMIT 1"  # noqa: S608 - of this table of ours
        for table in ("envelopes", "topics", "arrivals")
        for order in ("ASC", "DESC")
    ),
    *(
        f"SELECT topic, id FROM envelopes INDEXED BY envelopes_topic ORDER BY topic {order} LIMIT 1"  # noqa: S608 - the same
        for order in ("ASC", "DESC")
    ),
)

_AFTER: Final = """
SELECT arrival, arrived, envelopes.raw FROM arrivals CROSS JOIN envelopes USING (id, arrival)
WHERE arrival > ? ORDER BY arrival LIMIT ?
"""


def counts(database: sqlite3.Connection) -> Counts:
    """Count."""
    return Counts(*database.execute(_COUNTS).fetchone())


def ends(database: sqlite3.Connection) -> None:
    """Read the first and the last row of each table: damage there is found at once, however much there is."""
    counts(database)
    for statement in _ENDS:
        database.execute(statement).fetchall()


def older(database: sqlite3.Connection, before: int) -> int:
    """Count what was sent before a time."""
    found: int = database.execute(_OLDER, (ids.floor(max(0, min(before, U32 + 1))) - 1,)).fetchone()[0]
    return found


def topics(database: sqlite3.Connection) -> list[TopicCount]:
    """Give each topic."""
    found = database.execute("SELECT topic, count, first, last FROM topics").fetchall()
    return [TopicCount(ids.topic(number), *counted) for number, *counted in found]


def after(database: sqlite3.Connection, arrival: int, limit: int) -> list[Archived]:
    """Give those that came after an arrival number, at most so many, and none only where there is none."""
    found, size = [], 0
    reading = database.execute(_AFTER, (arrival, limit))
    for row in reading:
        found.append(Archived(*row))
        size += len(row[2])
        if size > MAX_PAGE_BYTES:
            break
    reading.close()  # and with it the transaction
    return found


def everything(database: sqlite3.Connection) -> Iterator[list[Archived]]:
    """Give all there is, in the order of arrival, a page at a time; who writes meanwhile is not held up."""
    last = 0
    while page := after(database, last, MAX_PAGE_ROWS):
        yield page
        last = page[-1].arrival
