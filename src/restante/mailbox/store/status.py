"""Counts what a data directory has stored, without disturbing a running server."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from restante.common.data_directory import running
from restante.mailbox.store.schema import SCHEMA


class Status(msgspec.Struct):
    """Counts of the live data. Times are wall clock seconds; None: no such time."""

    running: bool
    """Whether a process holds the lock of the data directory."""
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


_COUNTS = """
SELECT
    (SELECT count(*) FROM (SELECT app_id FROM mailboxes UNION SELECT app_id FROM nameplates)),
    (SELECT count(*) FROM nameplates),
    (SELECT count(*) FROM mailboxes),
    (SELECT count(*) FROM messages),
    (SELECT total(json_array_length(sides)) FROM mailboxes),
    (SELECT min(json_extract(sides, '$[0].added')) FROM mailboxes),
    saved, pruned, seconds
FROM service
"""


def read(data: Path) -> Status:
    """Read the status of a data directory.

    Raises Misuse if it has no database, StoreError if the database is another program's.
    """
    busy = running(data)
    with SCHEMA.reading(data) as database:
        counts = database.execute(_COUNTS).fetchone()
    apps, nameplates, mailboxes, messages, sides, oldest, saved, pruned, seconds = counts
    return Status(
        running=busy,
        saved=saved or None,
        age=max(0.0, time.time() - saved) if saved else None,
        applications=apps,
        nameplates=nameplates,
        mailboxes=mailboxes,
        messages=messages,
        sides=int(sides),
        oldest=oldest,
        last_prune=pruned,
        service_seconds=seconds,
    )


def render(status: Status) -> str:
    """Return a status as lines of text."""
    now = time.time()
    lines = [
        ("server", "running" if status.running else "not running"),
        ("as of", "never written" if status.age is None else f"{_span(status.age)} ago, the last commit"),
        ("applications", str(status.applications)),
        ("nameplates", str(status.nameplates)),
        ("mailboxes", str(status.mailboxes)),
        ("messages", str(status.messages)),
        ("sides", str(status.sides)),
        ("oldest", "-" if status.oldest is None else f"{_span(now - status.oldest)} ago"),
        ("last prune", "never" if status.last_prune is None else f"{_span(now - status.last_prune)} ago"),
        ("service time", _span(status.service_seconds)),
    ]
    return "\n".join(f"{name:<13} {value}" for name, value in lines)


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * size:
            return f"{whole // size} {name}"
    return f"{whole} s"
