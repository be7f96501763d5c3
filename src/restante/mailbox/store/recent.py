"""What usage records say about the last hour, day and week, for the dashboard. The server may be running."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from restante.common.usage_records import RESULTS
from restante.mailbox.store.schema import SCHEMA

SPANS: Final[Mapping[str, float]] = {"hour": 3600.0, "day": 86400.0, "week": 604800.0}

MAX_WAITS: Final = 10_000
"""Waiting times that are read: the latest of the last day. Their percentiles need no more."""

_RESULTS: Final = """
SELECT result, count(*), count(waiting_time) FROM usage_mailboxes
WHERE started >= ? AND started <= ? AND origin = '' GROUP BY result
"""

_WAITS: Final = """
SELECT waiting_time FROM usage_mailboxes
WHERE started >= ? AND started <= ? AND origin = '' AND waiting_time IS NOT NULL
ORDER BY started DESC LIMIT ?
"""


def read(data: Path, now: float) -> dict[str, Any]:
    """Return the mailboxes that began in each span and have ended, by result, and the waiting times of the last day.

    Raises StoreError if the database cannot be read.
    """
    with SCHEMA.reading(data) as database:
        rows = {span: database.execute(_RESULTS, (now - seconds, now)).fetchall() for span, seconds in SPANS.items()}
        waits = sorted(each for (each,) in database.execute(_WAITS, (now - SPANS["day"], now, MAX_WAITS)).fetchall())
    return {
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


def _percentile(ordered: list[float], share: int) -> float | None:
    """Return the lowest value that at least `share` percent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None
