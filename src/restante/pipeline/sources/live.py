"""What is live at a mailbox server: when its nameplates and mailboxes started, and how many connections it has.

Only times and counts leave the database, and times are rounded down to the server's blur before that. So
the lake has no finer times of what is live than of what has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import MICROSECONDS_PER_DAY, Faulty, TimeLimits
from restante.pipeline.schemas import LIVE, LIVE_LISTENER, LIVE_MAILBOX, LIVE_NAMEPLATE
from restante.pipeline.sources.databases import UsageDatabase
from restante.pipeline.sources.rows import fault_row, row_batches
from restante.pipeline.sources.schema import Shape

_TABLES: Final = {LIVE_NAMEPLATE: "nameplates", LIVE_MAILBOX: "mailboxes"}
"""Kind → our server's table of what is live (restante/mailbox/store/sql)."""

_STARTS: Final = """
SELECT joined, count(*) FROM (SELECT ({}) AS joined FROM {}) AS starts
WHERE joined IS NOT NULL GROUP BY joined ORDER BY joined"""
"""When the first side joined, as in usage records (restante.mailbox.core.usage), and of how many that is the start. A
mailbox that all sides have left has no start. A damaged row has none either; the server refuses to load it."""


_LAST_BIND_BLUR: Final = """
SELECT blur_time FROM usage_client_versions WHERE id = (SELECT max(id) FROM usage_client_versions)"""


class LiveScan(NamedTuple):
    """How to read what is live."""

    shape: Shape
    limits: TimeLimits
    blur_us: int | None
    """What the server rounds times down to; 0: nothing; None: not known. Then starts are not read."""


class LiveRow(NamedTuple):
    """What is live of one kind, and started at the same time. All times are in microseconds since 1970."""

    kind: str
    started: int | None
    number: int
    as_of: int | None
    fault: str | None = None
    digest: str | None = None
    """Of a row with a fault: the digest of the original."""


def recorded_blur_us(
    database: UsageDatabase, setting: int | None, limits: TimeLimits, *, of_binds: bool
) -> int | None:
    """Return the blur for what is live at our server: the greater of two settings, 0 for none, None if none is known.

    `setting` is that of the last prune. The record of the last bind (`of_binds`: the schema has it) knows the setting
    of a server that was started with another one since, because nothing starts without a bind.
    """
    pruned = list(database.execute("SELECT 1 FROM usage_current"))
    blurs = [setting or 0] if pruned else []
    for (blur,) in database.execute(_LAST_BIND_BLUR) if of_binds else ():
        try:
            blurs += [] if blur is None else [rules.clean_duration(blur, limits)]
        except Faulty:
            return None
    return max(blurs, default=None)


def find_live(database: UsageDatabase, scan: LiveScan) -> list[LiveRow]:
    """Return what is live, in an order that depends on nothing else."""
    # The reference server stores what is live in another file.
    starts = list(_starts(database, scan)) if scan.shape.own and scan.blur_us is not None else []
    return sorted(
        [*starts, *_listeners(database, scan)], key=lambda row: (row.kind, row.started or 0, row.digest or "")
    )


def _starts(database: UsageDatabase, scan: LiveScan) -> Iterator[LiveRow]:
    """Yield the nameplates and mailboxes. They were live when the server last wrote to its database."""
    [(saved, updated)] = database.execute(
        "SELECT saved, coalesce((SELECT max(updated) FROM usage_current), 0.0) FROM service"
    )
    for kind, table in _TABLES.items():
        counts: Counter[tuple[int, int]] = Counter()
        for joined, count in database.execute(_STARTS.format(scan.shape.sql.joined, table)):
            try:
                times = (rules.clean_time(value, scan.limits) for value in (joined, max(saved, updated)))
                started, as_of = (_floored(value, scan) for value in times)
                counts[started, as_of] += count
            except Faulty as faulty:
                yield LiveRow(kind, None, count, None, faulty.fault, rules.row_digest((kind, joined)))
        for (started, as_of), count in counts.items():
            yield LiveRow(kind, started, count, as_of)


def _listeners(database: UsageDatabase, scan: LiveScan) -> Iterator[LiveRow]:
    """Yield the number of connections that had a mailbox open at the last prune."""
    present = {name for (name,) in database.execute(scan.shape.sql.columns, (scan.shape.current,))}
    if not {"updated", "connections_websocket"} <= present:
        return
    rows = list(database.execute(f"SELECT updated, connections_websocket FROM {scan.shape.current}"))  # noqa: S608
    if not rows or None in rows[-1]:
        return
    updated, connections = rows[-1]
    try:
        as_of = _floored(rules.clean_time(updated, scan.limits), scan)
        yield LiveRow(LIVE_LISTENER, None, rules.clean_number(connections, scan.limits), as_of)
    except Faulty as faulty:
        yield LiveRow(LIVE_LISTENER, None, 0, None, faulty.fault, rules.row_digest((updated, connections)))


def _floored(us: int, scan: LiveScan) -> int:
    return us - us % scan.blur_us if scan.blur_us else us


def digest(rows: Iterable[LiveRow]) -> str:
    """Return a digest of the nameplates and mailboxes, whenever they were read; "" if there are none.

    The number of connections is left out: the server writes it at each prune.
    """
    values = [(row.kind, row.started, row.number, row.fault, row.digest) for row in rows if row.kind != LIVE_LISTENER]
    return rules.row_digest(values) if values else ""


class LiveTask(NamedTuple):
    """The task that returns what is live."""

    rows: tuple[LiveRow, ...]
    source: str
    blur_us: int | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cleaned."""
        yield from row_batches(LIVE, (_values(row, self) for row in self.rows))


def _values(row: LiveRow, task: LiveTask) -> tuple[Any, ...]:
    """Return a row of the lake's table and its fault. A row with a fault has no other values."""
    if row.fault is not None:
        return fault_row(LIVE, (), task.source, row.fault, row.kind, row.digest)
    when = row.as_of if row.started is None else row.started
    day = None if when is None else when // MICROSECONDS_PER_DAY
    return (row.kind, row.started, row.number, row.as_of, task.blur_us or None, day, task.source, None, None, None)
