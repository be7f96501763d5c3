"""What is live at a mailbox server: when its nameplates and mailboxes started, and how many connections it has.

Only times and counts leave the database, and times are rounded down to the server's blur before that. So
the lake has no finer times of what is live than of what has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from restante.pipeline.clean import rules
from restante.pipeline.clean.rules import MICROSECONDS_PER_DAY, Faulty, TimeLimits
from restante.pipeline.schemas import LIVE, LIVE_LISTENER, LIVE_MAILBOX, LIVE_NAMEPLATE
from restante.pipeline.sources.databases import UsageDatabase
from restante.pipeline.sources.rows import fault_row
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

_AS_OF: Final = [column.name for column in LIVE.columns].index("as_of")


class LiveScan(NamedTuple):
    """How to read what is live."""

    source: str
    shape: Shape
    limits: TimeLimits
    blur_us: int | None
    """What the server rounds times down to; 0: nothing; None: not known. Then starts are not read."""


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


def find_live(database: UsageDatabase, scan: LiveScan) -> tuple[list[tuple[Any, ...]], str]:
    """Return what is live as rows of the lake's table, each with its fault, and a digest of it.

    The digest is "" if there are no nameplates and mailboxes, and the same whenever they are read. The number of
    connections is left out: the server writes it at each prune.
    """
    # The reference server stores what is live in another file.
    starts = sorted(_starts(database, scan), key=str) if scan.shape.own and scan.blur_us is not None else []
    digest = rules.row_digest([(*row[:_AS_OF], *row[_AS_OF + 1 :]) for row in starts]) if starts else ""
    return [*_listeners(database, scan), *starts], digest


def _starts(database: UsageDatabase, scan: LiveScan) -> Iterator[tuple[Any, ...]]:
    """Yield the nameplates and mailboxes. They were live when the server last wrote to its database."""
    [(saved, updated)] = database.execute(
        "SELECT saved, coalesce((SELECT max(updated) FROM usage_current), 0.0) FROM service"
    )
    for kind, table in _TABLES.items():
        counts: Counter[tuple[int, int]] = Counter()
        for joined, count in database.execute(_STARTS.format(scan.shape.sql.joined, table)):
            try:
                started, as_of = (rules.clean_time(value, scan.limits) for value in (joined, max(saved, updated)))
                counts[_floored(started, scan), _floored(as_of, scan)] += count
            except Faulty as faulty:
                yield fault_row(LIVE, (), scan.source, faulty, kind, (kind, joined))
        for (started, as_of), count in counts.items():
            yield _row(kind, started, count, as_of, scan)


def _listeners(database: UsageDatabase, scan: LiveScan) -> Iterator[tuple[Any, ...]]:
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
        yield _row(LIVE_LISTENER, None, rules.clean_number(connections, scan.limits), as_of, scan)
    except Faulty as faulty:
        yield fault_row(LIVE, (), scan.source, faulty, LIVE_LISTENER, (updated, connections))


def _floored(us: int, scan: LiveScan) -> int:
    return us - us % scan.blur_us if scan.blur_us else us


def _row(kind: str, started: int | None, count: int, as_of: int, scan: LiveScan) -> tuple[Any, ...]:
    day = (as_of if started is None else started) // MICROSECONDS_PER_DAY
    return (kind, started, count, as_of, scan.blur_us or None, day, scan.source, None, None, None)
