"""A batch of envelopes → rows, inside a transaction.

Each table gets many rows by one statement: SQLite works without the interpreter lock only within a statement, so one
for each row would have the server's loop and this thread change places thousands of times.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from restante.waku.archive import ids
from restante.waku.envelope import Envelope

_SIZES: Final = (1024, 256, 64, 16, 4, 1)
"""Rows by a statement; the driver keeps a statement of each size prepared."""

_ENVELOPES: Final = ("INSERT OR IGNORE INTO envelopes VALUES", "")
_ARRIVALS: Final = ("INSERT INTO arrivals VALUES", "")
_TOPICS: Final = (
    "INSERT INTO topics VALUES",
    """
    ON CONFLICT (topic) DO UPDATE SET count = count + excluded.count,
        first = min(first, excluded.first), last = max(last, excluded.last)
    """,
)

Placed = tuple[int, Envelope]
"""An envelope, with the id that its row gets."""


def save(database: sqlite3.Connection, batch: Sequence[Envelope], arrived: int) -> int:
    """Save what is not there yet, in the order given; tell how many those were."""
    placed = [(ids.home(envelope), envelope) for envelope in batch]
    if len({at for at, _ in placed}) < len(placed) or not _fits(database, placed):
        placed = _find_room(database, batch)
        _put(database, placed)
    _note(database, placed, arrived)
    return len(placed)


def _fits(database: sqlite3.Connection, placed: list[Placed]) -> bool:
    """Save them, if none is there and none is in another's way: so it is nearly always, and nobody looks first."""
    if _put(database, placed) == len(placed):
        return True
    database.execute("ROLLBACK")  # a savepoint would have cost a copy of every page, each time
    database.execute("BEGIN IMMEDIATE")
    return False


def _find_room(database: sqlite3.Connection, batch: Sequence[Envelope]) -> list[Placed]:
    """Leave out what is there already, and find free ids for the rest."""
    taken: dict[int, bytes] = {}

    def there(at: int) -> bytes | None:
        if at in taken:
            return taken[at]
        found = database.execute("SELECT raw FROM envelopes WHERE id = ?", (at,)).fetchone()
        return None if found is None else found[0]

    placed = []
    for envelope in batch:
        at = ids.place(ids.home(envelope), envelope.raw, there)
        if at is not None:
            taken[at] = envelope.raw
            placed.append((at, envelope))
    return placed


def _put(database: sqlite3.Connection, placed: list[Placed]) -> int:
    """Put the envelopes; tell how many of their ids were free."""
    arrival = _next_arrival(database)
    rows = [
        (at, ids.number(envelope.topic), number, envelope.raw)
        for number, (at, envelope) in enumerate(placed, arrival)
    ]
    rows.sort(key=itemgetter(0))  # so that most go to the end of the table, which fills its pages
    return _insert(database, _ENVELOPES, rows)


def _note(database: sqlite3.Connection, placed: list[Placed], arrived: int) -> None:
    """Keep arrivals, topics and totals in step with the envelopes that were put."""
    arrival = _next_arrival(database)
    _insert(database, _ARRIVALS, [(number, at, arrived) for number, (at, _) in enumerate(placed, arrival)])
    _insert(database, _TOPICS, _by_topic(placed))
    database.execute(
        "UPDATE totals SET next_arrival = next_arrival + ?, envelopes = envelopes + ?, bytes = bytes + ?",
        (len(placed), len(placed), sum(len(envelope.raw) for _, envelope in placed)),
    )


def _next_arrival(database: sqlite3.Connection) -> int:
    number: int = database.execute("SELECT next_arrival FROM totals").fetchone()[0]
    return number


def _by_topic(placed: Iterable[Placed]) -> list[tuple[int, int, int, int]]:
    """Count each topic: how many, first and last sent."""
    found: dict[bytes, tuple[int, int, int]] = {}
    for at, envelope in placed:
        sent = at >> ids.BITS
        count, first, last = found.get(envelope.topic, (0, sent, sent))
        found[envelope.topic] = (count + 1, min(first, sent), max(last, sent))
    return sorted((ids.number(topic), *counted) for topic, counted in found.items())


def _insert(database: sqlite3.Connection, statement: tuple[str, str], rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert rows by few statements; tell how many there are more."""
    before, after = statement
    start = changed = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            some = rows[start : start + size]
            slots = f"({', '.join('?' * len(some[0]))})"
            sql = f"{before} {', '.join([slots] * size)} {after}"
            changed += database.execute(sql, tuple(chain.from_iterable(some))).rowcount
            start += size
    return changed
