"""Queries on an archive's database. They work on any connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from restante.waku.archive import ids
from restante.waku.archive.records import Archived, Counts, TopicCount
from restante.waku.envelope.envelope import U32, Envelope

# ── Inserting a batch of envelopes, inside a transaction ──────────────────────────────────────────
# Each statement inserts many rows. SQLite releases the interpreter lock only within a statement. With one statement
# per row the server's event loop and this thread would switch thousands of times.


_ROWS_PER_STATEMENT: Final = (1024, 256, 64, 16, 4, 1)
"""Rows per statement. The driver keeps a prepared statement of each size."""

_ENVELOPES_SQL: Final = "INSERT OR IGNORE INTO envelopes VALUES {}"
_ARRIVALS_SQL: Final = "INSERT INTO arrivals VALUES {}"
_TOPICS_SQL: Final = """
INSERT INTO topics VALUES {} ON CONFLICT (topic) DO UPDATE SET
    count = count + excluded.count, first = min(first, excluded.first), last = max(last, excluded.last)
"""

Placed = tuple[int, int, bytes]
"""The row of an envelope: id, topic, raw."""


def save(database: sqlite3.Connection, batch: Sequence[Envelope], arrived: int) -> int:
    """Save the envelopes that are not stored yet, in the given order. Return their number."""
    arrival: int = database.execute("SELECT next_arrival FROM totals").fetchone()[0]
    placed = [(ids.home(envelope), ids.number(envelope.topic), envelope.raw) for envelope in batch]
    if not _fits(database, placed, arrival):
        placed = _find_room(database, placed)
        _put(database, placed, arrival)
    _insert(database, _ARRIVALS_SQL, [(number, row[0], arrived) for number, row in enumerate(placed, arrival)])
    _insert(database, _TOPICS_SQL, _by_topic(placed))
    database.execute(
        "UPDATE totals SET next_arrival = next_arrival + ?, envelopes = envelopes + ?, bytes = bytes + ?",
        (len(placed), len(placed), sum(len(raw) for _, _, raw in placed)),
    )
    return len(placed)


def _fits(database: sqlite3.Connection, placed: list[Placed], arrival: int) -> bool:
    """Insert the envelopes at their home ids. If an id is taken, undo all and return False.

    This is so rare that the ids are not checked first.
    """
    if _put(database, placed, arrival) == len(placed):
        return True
    database.execute("ROLLBACK")  # a savepoint would copy every page, each time
    database.execute("BEGIN IMMEDIATE")
    return False


def _find_room(database: sqlite3.Connection, wanted: list[Placed]) -> list[Placed]:
    """Return the rows of the envelopes that are not stored yet, with free ids."""
    taken: dict[int, bytes] = {}

    def there(at: int) -> bytes | None:
        if at in taken:
            return taken[at]
        found = database.execute("SELECT raw FROM envelopes WHERE id = ?", (at,)).fetchone()
        return None if found is None else found[0]

    placed = []
    for home, topic, raw in wanted:
        at = ids.place(home, raw, there)
        if at is not None:
            taken[at] = raw
            placed.append((at, topic, raw))
    return placed


def _put(database: sqlite3.Connection, placed: list[Placed], arrival: int) -> int:
    """Insert the envelopes. Return how many of their ids were free."""
    rows = [(at, topic, number, raw) for number, (at, topic, raw) in enumerate(placed, arrival)]
    rows.sort()  # most rows are then appended to the table, which fills its pages
    return _insert(database, _ENVELOPES_SQL, rows)


def _by_topic(placed: list[Placed]) -> list[list[int]]:
    """Return a row for each topic: its count, and its first and last time of sending."""
    found: dict[int, list[int]] = {}
    for at, topic, _ in placed:
        sent = at >> ids.BITS
        counted = found.get(topic)
        if counted is None:
            found[topic] = [topic, 1, sent, sent]
        else:
            counted[1:] = counted[1] + 1, min(counted[2], sent), max(counted[3], sent)
    return sorted(found.values())


def _insert(database: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
    """Insert rows with few statements. Return the number of rows inserted."""
    start = changed = 0
    for size in _ROWS_PER_STATEMENT:
        while len(rows) - start >= size:
            some = rows[start : start + size]
            sql = _with_slots(statement, len(some[0]), size)
            changed += database.execute(sql, tuple(chain.from_iterable(some))).rowcount
            start += size
    return changed


@lru_cache
def _with_slots(statement: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return statement.format(", ".join([row] * rows))


# ── Pruning: deletion of the oldest envelopes, inside a transaction ───────────────────────────────
# It always deletes from the lowest id upward (see ids.py). Each step is one statement over the range of deleted ids,
# for the reason given above.


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


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


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
