"""Queries on an archive's database. They work on any connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from restante.common.sqlite import execute_rows
from restante.waku.archive import ids
from restante.waku.archive.records import Archived, Counts, TopicCount
from restante.waku.envelope.envelope import U32, Envelope

# ── Inserting ─────────────────────────────────────────────────────────────────────────────────────
# A batch of envelopes is inserted inside a transaction. Each statement inserts many rows. SQLite releases the
# interpreter lock only within a statement. With one statement per row the server's event loop and this thread would
# switch thousands of times.

_ENVELOPES_SQL: Final = "INSERT OR IGNORE INTO envelopes VALUES {}"
_ARRIVALS_SQL: Final = "INSERT INTO arrivals VALUES {}"
_TOPICS_SQL: Final = """
INSERT INTO topics VALUES {} ON CONFLICT (topic) DO UPDATE SET
    count = count + excluded.count, first = min(first, excluded.first), last = max(last, excluded.last)
"""

EnvelopeRow = tuple[int, int, bytes]
"""The row of an envelope: id, topic, raw."""


def save_envelopes(database: sqlite3.Connection, batch: Sequence[Envelope], arrived: int) -> int:
    """Save the envelopes that are not stored yet, in the given order. Return their number."""
    arrival: int = database.execute("SELECT next_arrival FROM totals").fetchone()[0]
    rows = [(ids.home(envelope), ids.topic_number(envelope.topic), envelope.raw) for envelope in batch]
    if not _insert_at_home(database, rows, arrival):
        rows = _find_free_ids(database, rows)
        _insert_envelopes(database, rows, arrival)
    _insert_rows(database, _ARRIVALS_SQL, [(number, row[0], arrived) for number, row in enumerate(rows, arrival)])
    _insert_rows(database, _TOPICS_SQL, _topic_rows(rows))
    database.execute(
        "UPDATE totals SET next_arrival = next_arrival + ?, envelopes = envelopes + ?, bytes = bytes + ?",
        (len(rows), len(rows), sum(len(raw) for _, _, raw in rows)),
    )
    return len(rows)


def _insert_at_home(database: sqlite3.Connection, rows: list[EnvelopeRow], arrival: int) -> bool:
    """Insert the envelopes at their home ids. If an id is taken, undo all and return False.

    This is so rare that the ids are not checked first.
    """
    if _insert_envelopes(database, rows, arrival) == len(rows):
        return True
    database.execute("ROLLBACK")  # a savepoint would copy every page, each time
    database.execute("BEGIN IMMEDIATE")
    return False


def _find_free_ids(database: sqlite3.Connection, homed: list[EnvelopeRow]) -> list[EnvelopeRow]:
    """Return the rows of the envelopes that are not stored yet, with free ids."""
    raws: dict[int, bytes] = {}

    def read_raw(id_: int) -> bytes | None:
        if id_ in raws:
            return raws[id_]
        row = database.execute("SELECT raw FROM envelopes WHERE id = ?", (id_,)).fetchone()
        return None if row is None else row[0]

    placed = []
    for home, topic, raw in homed:
        id_ = ids.find_free_id(home, raw, read_raw)
        if id_ is not None:
            raws[id_] = raw
            placed.append((id_, topic, raw))
    return placed


def _insert_envelopes(database: sqlite3.Connection, envelopes: list[EnvelopeRow], arrival: int) -> int:
    """Insert the envelopes. Return how many of their ids were free."""
    rows = [(id_, topic, number, raw) for number, (id_, topic, raw) in enumerate(envelopes, arrival)]
    rows.sort()  # most rows are then appended to the table, which fills its pages
    return _insert_rows(database, _ENVELOPES_SQL, rows)


def _topic_rows(rows: list[EnvelopeRow]) -> list[list[int]]:
    """Return a row for each topic: its count, and its first and last time of sending."""
    by_topic: dict[int, list[int]] = {}
    for id_, topic, _ in rows:
        sent = id_ >> ids.BITS
        totals = by_topic.get(topic)
        if totals is None:
            by_topic[topic] = [topic, 1, sent, sent]
        else:
            totals[1:] = totals[1] + 1, min(totals[2], sent), max(totals[3], sent)
    return sorted(by_topic.values())


def _insert_rows(database: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
    """Insert rows, and return the number of rows inserted."""
    return execute_rows(database, statement, f"({', '.join('?' * len(rows[0]))})", rows) if rows else 0


# ── Pruning ───────────────────────────────────────────────────────────────────────────────────────
# The oldest envelopes are deleted inside a transaction, always from the lowest id upward (see ids.py). Each step is
# one statement over the range of deleted ids, for the reason given above.

_NTH_ID_SQL: Final = "SELECT id FROM envelopes WHERE id <= ? ORDER BY id LIMIT 1 OFFSET ? - 1"

_HIGHEST_ID_SQL: Final = "SELECT max(id) FROM envelopes WHERE id <= ?"

_FREEING_ID_SQL: Final = """
SELECT id FROM (SELECT id, sum(length(raw)) OVER (ORDER BY id) AS freed FROM envelopes ORDER BY id LIMIT ?)
WHERE freed >= ? LIMIT 1
"""

_DELETE_SQL: Final = (
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


class PruneResult(NamedTuple):
    """What was deleted."""

    envelopes: int
    until: int
    """When the last of them was sent, in seconds since 1970; -1 if there is none."""


def prune_before(database: sqlite3.Connection, before: int, max_envelopes: int) -> PruneResult:
    """Delete envelopes sent before a time, oldest first, at most `max_envelopes`."""
    return _delete_up_to(database, ids.lowest_id(min(before, U32 + 1)) - 1, max_envelopes)


def prune_bytes(database: sqlite3.Connection, limit: int, max_envelopes: int) -> PruneResult:
    """Delete the oldest envelopes, at most `max_envelopes`, until the rest has at most `limit` bytes."""
    bytes_now: int = database.execute("SELECT bytes FROM totals").fetchone()[0]
    if bytes_now <= limit:
        return PruneResult(0, -1)
    row = database.execute(_FREEING_ID_SQL, (max_envelopes, bytes_now - limit)).fetchone()
    return _delete_up_to(database, ids.MAX_ID if row is None else row[0], max_envelopes)


def _delete_up_to(database: sqlite3.Connection, last_id: int, max_envelopes: int) -> PruneResult:
    """Delete the envelopes up to the id `last_id`, at most `max_envelopes`."""
    row = database.execute(_NTH_ID_SQL, (last_id, max_envelopes)).fetchone()
    if row is None:  # there are fewer
        row = database.execute(_HIGHEST_ID_SQL, (last_id,)).fetchone()
    if row[0] is None:
        return PruneResult(0, -1)
    last_id, envelopes = row[0], 0
    for statement in _DELETE_SQL:
        envelopes = database.execute(statement, {"last": last_id}).rowcount
    return PruneResult(envelopes, last_id >> ids.BITS)


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────

MAX_PAGE_BYTES: Final = 8 << 20
"""Approximate maximum bytes of envelopes per page."""

MAX_PAGE_ROWS: Final = 1000
"""Maximum envelopes per page of `read_all`."""

_COUNTS_SQL: Final = """
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
_COUNT_OLDER: Final = "SELECT count(*) FROM envelopes INDEXED BY envelopes_topic WHERE id <= ?"

_ENDS_SQL: Final = (
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

_AFTER_SQL: Final = """
SELECT arrival, arrived, envelopes.raw FROM arrivals CROSS JOIN envelopes USING (id, arrival)
WHERE arrival > ? ORDER BY arrival LIMIT ?
"""


def read_counts(database: sqlite3.Connection) -> Counts:
    """Return the archive's totals."""
    return Counts(*database.execute(_COUNTS_SQL).fetchone())


def read_ends(database: sqlite3.Connection) -> None:
    """Read the first and the last row of each table.

    This finds damage there quickly, however large the archive is.
    """
    read_counts(database)
    for statement in _ENDS_SQL:
        database.execute(statement).fetchall()


def count_older(database: sqlite3.Connection, before: int) -> int:
    """Return the number of envelopes sent before a time."""
    count: int = database.execute(_COUNT_OLDER, (ids.lowest_id(max(0, min(before, U32 + 1))) - 1,)).fetchone()[0]
    return count


def read_topics(database: sqlite3.Connection) -> list[TopicCount]:
    """Return all topics with their counts."""
    rows = database.execute("SELECT topic, count, first, last FROM topics").fetchall()
    return [TopicCount(ids.number_topic(number), *totals) for number, *totals in rows]


def read_after(database: sqlite3.Connection, arrival: int, limit: int) -> list[Archived]:
    """Return the envelopes after an arrival number, at most `limit`. The list is empty only if there are none."""
    archived, size = [], 0
    cursor = database.execute(_AFTER_SQL, (arrival, limit))
    for row in cursor:
        archived.append(Archived(*row))
        size += len(row[2])
        if size > MAX_PAGE_BYTES:
            break
    cursor.close()  # this also ends the transaction
    return archived


def read_all(database: sqlite3.Connection) -> Iterator[list[Archived]]:
    """Yield all envelopes in pages, in order of arrival. Writers do not wait for it."""
    last_arrival = 0
    while page := read_after(database, last_arrival, MAX_PAGE_ROWS):
        yield page
        last_arrival = page[-1].arrival
