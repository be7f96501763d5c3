"""What usage records say about the last hour, day and week, and the last backup, for the dashboard.

The server may be running.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from restante.common.texts import in_one_line
from restante.common.usage_records import RESULTS
from restante.mailbox.store.backup import last_backup
from restante.mailbox.store.schema import SCHEMA

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
SELECT implementation, version, count(*), sum(count(*)) OVER () FROM usage_client_versions
WHERE connect_time >= ? AND connect_time <= ? AND origin = ''
GROUP BY implementation, version ORDER BY count(*) DESC, implementation, version LIMIT ?
"""

_WAITS: Final = """
SELECT waiting_time FROM usage_mailboxes
WHERE started >= ? AND started <= ? AND origin = '' AND waiting_time IS NOT NULL
ORDER BY started DESC LIMIT ?
"""


def read(data: Path, now: float) -> dict[str, Any]:
    """Return the mailboxes that began in each span and have ended, by result, and more of the last day.

    `as_of` is `now`, a wall time. `transfers` are the happy ones; `today` began at 00:00 UTC.

    Raises StoreError if the database cannot be read.
    """
    with SCHEMA.reading(data) as database:
        rows = {span: database.execute(_RESULTS, (now - seconds, now)).fetchall() for span, seconds in SPANS.items()}
        waits = sorted(seconds for (seconds,) in database.execute(_WAITS, (now - DAY, now, MAX_WAITS)).fetchall())
        [(today,)] = database.execute(_SINCE, (now - now % DAY, now)).fetchall()
        clients = database.execute(_CLIENTS, (now - DAY, now, MAX_CLIENTS)).fetchall()
    return {
        "as_of": now,
        "last_backup": last_backup(data),
        "transfers": {
            "hour": sum(number for result, number, _ in rows["hour"] if result == "happy"),
            "today": today,
        },
        "clients": _clients(clients),
        "results": {
            span: dict.fromkeys(RESULTS, 0) | {result: number for result, number, _ in found}
            for span, found in rows.items()
        },
        "waiting_seconds": {
            "mailboxes": sum(waited for _, _, waited in rows["day"]),
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
    others = rows[0][3] - sum(binds for _, _, binds, _ in rows) if rows else 0
    return [*clients, {"client": "others", "version": "", "binds": others}] if others else clients


def _percentile(ordered: list[float], share: int) -> float | None:
    """Return the lowest value that at least `share` percent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None
