"""Queries on an archive's database. They work on any connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from restante.waku.archive import ids
from restante.waku.archive.records import Archived, Counts, TopicCount
from restante.waku.envelope.envelope import U32

MAX_PAGE_BYTES: Final = 8 << 20
"""Approximate maximum bytes of envelopes per page."""

MAX_PAGE_ROWS: Final = 1000
"""Maximum envelopes per page of `everything`."""

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

# This reads only the index of topics, which contains the ids and is a small part of the file.
_OLDER: Final = "SELECT count(*) FROM envelopes INDEXED BY envelopes_topic WHERE id <= ?"

_ENDS: Final = (
    *(
        f"SELECT * FROM {table} ORDER BY rowid {order} LIMIT 1"  # noqa: S608 - the names are constants
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
    """Return the archive's totals."""
    return Counts(*database.execute(_COUNTS).fetchone())


def ends(database: sqlite3.Connection) -> None:
    """Read the first and the last row of each table.

    This finds damage there quickly, however large the archive is.
    """
    counts(database)
    for statement in _ENDS:
        database.execute(statement).fetchall()


def older(database: sqlite3.Connection, before: int) -> int:
    """Return the number of envelopes sent before a time."""
    found: int = database.execute(_OLDER, (ids.floor(max(0, min(before, U32 + 1))) - 1,)).fetchone()[0]
    return found


def topics(database: sqlite3.Connection) -> list[TopicCount]:
    """Return all topics with their counts."""
    found = database.execute("SELECT topic, count, first, last FROM topics").fetchall()
    return [TopicCount(ids.topic(number), *counted) for number, *counted in found]


def after(database: sqlite3.Connection, arrival: int, limit: int) -> list[Archived]:
    """Return the envelopes after an arrival number, at most `limit`. The list is empty only if there are none."""
    found, size = [], 0
    reading = database.execute(_AFTER, (arrival, limit))
    for row in reading:
        found.append(Archived(*row))
        size += len(row[2])
        if size > MAX_PAGE_BYTES:
            break
    reading.close()  # this also ends the transaction
    return found


def everything(database: sqlite3.Connection) -> Iterator[list[Archived]]:
    """Yield all envelopes in pages, in order of arrival. Writers do not wait for it."""
    last = 0
    while page := after(database, last, MAX_PAGE_ROWS):
        yield page
        last = page[-1].arrival
