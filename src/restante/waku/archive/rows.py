"""Inserting a batch of envelopes, inside a transaction.

Each statement inserts many rows. SQLite releases the interpreter lock only within a statement, so with one statement
per row the server's event loop and this thread would switch thousands of times.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from restante.waku.archive import ids
from restante.waku.envelope.envelope import Envelope

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
