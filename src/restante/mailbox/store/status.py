"""What a server has stored, and what has happened lately. The server may be running.

`Where` is a data directory, or the URL of a PostgreSQL database. SQL without a comment is that of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from restante.common.backups import last_backup
from restante.common.data_directory import is_running
from restante.common.texts import counted, in_one_line
from restante.common.units import elapsed
from restante.common.usage_records import RESULTS
from restante.mailbox.store.schema import SCHEMA

Where = Path | str


class Database(Protocol):
    """A database that is open for reading."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Iterable[tuple[Any, ...]]:
        """Return the rows that a statement selects."""


@contextmanager
def _reading(where: Where) -> Iterator[Database]:
    """Open a database for reading. Raises Misuse if there is none, StoreError if it cannot be read."""
    if isinstance(where, Path):
        with SCHEMA.reading(where) as database:
            yield database
    else:
        from restante.mailbox.store import postgres  # it needs the extra

        with postgres.reading(where) as reader, reader.snapshot():
            yield reader


class Status(msgspec.Struct):
    """Counts of the live data. Times are wall clock seconds; None: no such time."""

    running: bool
    """Whether a process holds the lock of the data directory, or renews the lease of the database."""
    saved: float | None
    """When the server last committed: the counts are as old as this."""
    age: float | None
    """Seconds since `saved`."""
    applications: int
    nameplates: int
    mailboxes: int
    messages: int
    sides: int
    """Members of all mailboxes."""
    oldest: float | None
    """When the first side joined the oldest live mailbox."""
    last_prune: float | None
    service_seconds: float
    """Seconds that the service has run in total."""


_COUNTS: Final = """
SELECT
    (SELECT count(*) FROM (SELECT app_id FROM mailboxes UNION SELECT app_id FROM nameplates) AS apps),
    (SELECT count(*) FROM nameplates),
    (SELECT count(*) FROM mailboxes),
    (SELECT count(*) FROM messages),
    (SELECT coalesce(sum({number}), 0) FROM mailboxes),
    (SELECT min({joined}) FROM mailboxes),
    saved, pruned, seconds
FROM service
"""

_OF_SIDES: Final = {
    "SQLite": {"number": "json_array_length(sides)", "joined": "json_extract(sides, '$[0].added')"},
    "PostgreSQL": {
        "number": "json_array_length(CAST(sides AS json))",
        "joined": "CAST(CAST(sides AS json) -> 0 ->> 'added' AS double precision)",
    },
}
"""SQL for the number of sides, and for when the first one joined."""


def read_status(where: Where) -> Status:
    """Read the status of a server.

    Raises Misuse if there is no database, StoreError if it is another program's or cannot be read.
    """
    if isinstance(where, Path):
        running = is_running(where)
        with SCHEMA.reading(where) as database:
            [counts] = database.execute(_COUNTS.format_map(_OF_SIDES["SQLite"]))
    else:
        from restante.mailbox.store import postgres

        with postgres.reading(where) as reader:
            _, running = postgres.watch_lease(reader)
            with reader.snapshot():
                [counts] = reader.execute(_COUNTS.format_map(_OF_SIDES["PostgreSQL"]))
    apps, nameplates, mailboxes, messages, sides, oldest, saved, pruned, seconds = counts
    return Status(
        running=running,
        saved=saved or None,
        age=max(0.0, time.time() - saved) if saved else None,
        applications=apps,
        nameplates=nameplates,
        mailboxes=mailboxes,
        messages=messages,
        sides=sides,
        oldest=oldest,
        last_prune=pruned,
        service_seconds=seconds,
    )


def render_status(status: Status) -> str:
    """Return a status as lines of text."""
    now = time.time()
    lines = [
        ("server", "running" if status.running else "not running"),
        ("as of", "never written" if status.age is None else f"{elapsed(status.age)} ago, the last commit"),
        ("applications", str(status.applications)),
        ("nameplates", str(status.nameplates)),
        ("mailboxes", str(status.mailboxes)),
        ("messages", str(status.messages)),
        ("sides", str(status.sides)),
        ("oldest", "-" if status.oldest is None else f"{elapsed(now - status.oldest)} ago"),
        ("last prune", "never" if status.last_prune is None else f"{elapsed(now - status.last_prune)} ago"),
        ("service time", elapsed(status.service_seconds)),
    ]
    return "\n".join(f"{name:<13} {value}" for name, value in lines)


# ── servers that share a database ────────────────────────────────────────────────────────────────


class Nodes(msgspec.Struct):
    """The servers of a PostgreSQL database."""

    engine: str
    """The name of the server that has the lease, or had it last; "" if none ever had."""
    serves: bool
    """Whether it renews the lease."""
    released: bool
    """Whether it has ended in order, so that another may take over at once."""
    term: int
    renewals: int
    """In this term."""
    standbys: list[str]
    """The addresses from which servers are connected that stand by; "local": a Unix socket; "unknown": this user may
    not see it."""


_STANDBYS: Final = """
SELECT coalesce(host(client_addr), CASE client_port WHEN -1 THEN 'local' ELSE 'unknown' END) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ? AND pid <> (SELECT backend FROM lease) ORDER BY 1
"""
"""Servers beside the one that has the lease. Only members of their role and of pg_read_all_stats see addresses
(postgresql.org/docs/18/monitoring-stats.html, "Viewing Statistics")."""


def read_nodes(url: str) -> Nodes:
    """Watch the lease of a database for up to 3 seconds, and look who is connected.

    Raises Misuse if there is no data of a server, StoreError if the database cannot be read.
    """
    from restante.mailbox.store import postgres

    with postgres.reading(url) as reader:
        lease, works = postgres.watch_lease(reader)
        standbys = [address for (address,) in reader.execute(_STANDBYS, (postgres.SERVER,))]
    return Nodes(lease.node, works, lease.released, lease.term, lease.renewals, standbys)


def render_nodes(nodes: Nodes) -> str:
    """Return the servers as lines of text."""
    if nodes.serves:
        engine = f"{nodes.engine}, term {nodes.term}, {counted(nodes.renewals, 'renewal')}"
    elif not nodes.engine:
        engine = "none"
    else:
        reason = "has ended" if nodes.released else "does not renew its lease"
        engine = f"none: {nodes.engine}, which had term {nodes.term}, {reason}"
    return f"engine    {engine}\nstandbys  {', '.join(nodes.standbys) or 'none'}"


# ── recent usage, for the dashboard ──────────────────────────────────────────────────────────────

SPANS: Final[Mapping[str, float]] = {"hour": 3600.0, "day": 86400.0, "week": 604800.0}

DAY: Final = SPANS["day"]

MAX_CLIENTS: Final = 10
"""Pairs of client and version that are shown."""

MAX_WAITS: Final = 10_000
"""Waiting times that are read: the latest of the last day. Their percentiles need no more."""

_RESULTS: Final = """
SELECT result, count(*), count(waiting_time) FROM usage_mailboxes
WHERE started >= ? AND started <= ? AND origin = '' GROUP BY result
"""

_SINCE: Final = """
SELECT count(*) FROM usage_mailboxes WHERE started >= ? AND started <= ? AND origin = '' AND result = 'happy'
"""

_CLIENTS: Final = """
SELECT implementation, version, count(*), CAST(sum(count(*)) OVER () AS bigint) FROM usage_client_versions
WHERE connect_time >= ? AND connect_time <= ? AND origin = ''
GROUP BY implementation, version ORDER BY count(*) DESC, implementation, version LIMIT ?
"""

_WAITS: Final = """
SELECT waiting_time FROM usage_mailboxes
WHERE started >= ? AND started <= ? AND origin = '' AND waiting_time IS NOT NULL
ORDER BY started DESC LIMIT ?
"""


def recent_usage(where: Where, now: float) -> dict[str, Any]:
    """Return the mailboxes that began in each span and have ended, by result, and more of the last day.

    `as_of` is `now`, a wall time. `transfers` are the happy ones; `today` began at 00:00 UTC. `last_backup` is that
    of `restante backup`, which a PostgreSQL database has not.

    Raises Misuse and StoreError if the database cannot be read.
    """
    with _reading(where) as database:
        rows = {span: list(database.execute(_RESULTS, (now - seconds, now))) for span, seconds in SPANS.items()}
        waits = sorted(seconds for (seconds,) in database.execute(_WAITS, (now - DAY, now, MAX_WAITS)))
        [(today,)] = database.execute(_SINCE, (now - now % DAY, now))
        clients = list(database.execute(_CLIENTS, (now - DAY, now, MAX_CLIENTS)))
    return {
        "as_of": now,
        **({"last_backup": last_backup(where)} if isinstance(where, Path) else {}),
        "transfers": {
            "hour": sum(count for result, count, _ in rows["hour"] if result == "happy"),
            "today": today,
        },
        "clients": _clients(clients),
        "results": {
            span: dict.fromkeys(RESULTS, 0) | {result: count for result, count, _ in span_rows}
            for span, span_rows in rows.items()
        },
        "waiting_seconds": {
            "mailboxes": sum(count for _, _, count in rows["day"]),
            "latest": len(waits),
            **{f"p{share}": _percentile(waits, share) for share in (50, 90, 99)},
        },
    }


def _clients(rows: list[tuple[str | None, str | None, int, int]]) -> list[dict[str, Any]]:
    """Return the clients and versions of most binds, and the others as one row."""
    clients = [
        {"client": in_one_line(name or "not named"), "version": in_one_line(version or ""), "binds": binds}
        for name, version, binds, _ in rows
    ]
    other_binds = rows[0][3] - sum(binds for _, _, binds, _ in rows) if rows else 0
    return [*clients, {"client": "others", "version": "", "binds": other_binds}] if other_binds else clients


def _percentile(ordered: list[float], share: int) -> float | None:
    """Return the lowest value that at least `share` percent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None
