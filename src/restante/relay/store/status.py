"""What a data directory has stored: usage records of today and of this month, and counts. A relay may be running."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from restante.common.data_directory import is_running
from restante.common.transfer_records import RESULTS
from restante.common.units import columns, elapsed
from restante.relay.store.schema import SCHEMA


class RecordCounts(msgspec.Struct):
    """Usage records of this relay that began in a time and have ended."""

    results: dict[str, int]
    """Their number by result."""
    bytes: int
    """Bytes that they relayed."""


class Status(msgspec.Struct):
    """Counts of a relay. Times are wall clock seconds. Days and months are those of UTC."""

    running: bool
    """Whether a process holds the lock of the data directory."""
    saved: float | None
    """When the relay last saved: the counts are as old as this. None: never."""
    age: float | None
    """Seconds since `saved`."""
    connected: int
    """Connections that had a partner then."""
    waiting: int
    """Tokens for which a connection waited then."""
    incomplete_bytes: int
    """Bytes that the pairs of then had relayed."""
    day_bytes: int
    """Bytes relayed today, also by pairs that have not ended. `address_day_bytes` limits those of an address."""
    month_bytes: int
    """Bytes relayed this month, also by pairs that have not ended. `month_bytes` limits them."""
    records: int
    """All usage records, also imported ones."""
    today: RecordCounts
    month: RecordCounts


_RECORDS: Final = """
SELECT result, count(*), total(total_bytes) FROM transfers
WHERE started >= ? AND started <= ? AND origin = '' GROUP BY result
"""


def read_status(data: Path, now: float) -> Status:
    """Read the status of a data directory at `now`, a wall time.

    Raises Misuse if it has no database, StoreError if the database is another program's or cannot be read.
    """
    running = is_running(data)
    date = datetime.fromtimestamp(now, UTC)
    midnight = now - now % 86400.0
    first_midnight = datetime(date.year, date.month, 1, tzinfo=UTC).timestamp()
    with SCHEMA.reading(data) as database:
        database.execute("BEGIN")  # so that all is of one moment
        current = database.execute(
            "SELECT updated, connected, waiting, incomplete_bytes FROM current"
        ).fetchone() or (None, 0, 0, 0)
        traffic = database.execute("SELECT day, day_bytes, month, month_bytes FROM traffic").fetchone()
        [(records,)] = database.execute("SELECT count(*) FROM transfers").fetchall()
        rows = [database.execute(_RECORDS, (begin, now)).fetchall() for begin in (midnight, first_midnight)]
    saved, connected, waiting, incomplete_bytes = current
    day, day_bytes, month, month_bytes = traffic or (-1, 0, "", 0)
    today, this_month = (
        RecordCounts(
            dict.fromkeys(RESULTS, 0) | {result: count for result, count, _ in rows_of_time},
            int(sum(size for _, _, size in rows_of_time)),
        )
        for rows_of_time in rows
    )
    return Status(
        running=running,
        saved=saved,
        age=None if saved is None else max(0.0, now - saved),
        connected=connected,
        waiting=waiting,
        incomplete_bytes=incomplete_bytes,
        day_bytes=day_bytes if day == int(now // 86400) else 0,
        month_bytes=month_bytes if month == f"{date:%Y-%m}" else 0,
        records=records,
        today=today,
        month=this_month,
    )


def render_status(status: Status) -> str:
    """Return a status as lines of text."""
    lines = [
        ("relay", "running" if status.running else "not running"),
        ("as of", "never saved" if status.age is None else f"{elapsed(status.age)} ago, the last save"),
        ("connected", f"{status.connected:,}"),
        ("waiting", f"{status.waiting:,}"),
        ("records", f"{status.records:,}"),
    ]
    table = [
        ("", "today", "this month"),
        ("relayed bytes", f"{status.day_bytes:,}", f"{status.month_bytes:,}"),
        *((result, f"{status.today.results[result]:,}", f"{status.month.results[result]:,}") for result in RESULTS),
        ("their bytes", f"{status.today.bytes:,}", f"{status.month.bytes:,}"),
    ]
    return "\n".join((*(f"{name:<13} {value}" for name, value in lines), "", *columns(table, 200)))
