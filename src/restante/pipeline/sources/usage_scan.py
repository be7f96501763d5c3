"""Tasks that read a usage table: Spark's workers read the copies of new rows and clean them.

Our servers store a hash of the client's address with each bind. Whoever has the hashes knows which binds of a day
came from the same address. So they stay in the task: a row only says whether it is the first from its address.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from restante.pipeline.clean.rules import (
    MICROSECONDS_PER_DAY,
    ORIGIN_RULE,
    OWN_RULES,
    RULES,
    SECONDS_PER_DAY,
    Fault,
    TimeLimits,
    blur_us,
    clean_values,
    row_digest,
)
from restante.pipeline.schemas import CLEAN_TABLES, CLIENT_VERSIONS
from restante.pipeline.sources.databases import UsageDatabase, reading
from restante.pipeline.sources.rows import row_batches
from restante.pipeline.sources.schema import ADDRESS_ID
from restante.pipeline.sources.source import DUPLICATE

ROWS_PER_TASK: Final = 100_000
"""Rows that one task reads: a second of work, so that every core has tasks and progress is visible."""

MAX_BIND_SECONDS: Final = 10**12
"""Seconds since 1970 from which the day of a bind is not looked at: a clock that shows the year 33,000 is wrong, and
SQLite has no integer for the day of infinity."""


class UsageScan(NamedTuple):
    """The rows to read and how to clean them; part of each task."""

    source: str
    table: str
    """Name of the lake's table, and of its copy."""
    copy: str
    limits: TimeLimits
    setting_us: int | None
    """The unit that the server floors times to now, in microseconds, for its own rows that do not record theirs."""
    duplicates: frozenset[str]
    """Origins whose rows another source has."""


_HAS_ADDRESS: Final = f"{ADDRESS_ID} IS NOT NULL AND abs(connect_time) < {MAX_BIND_SECONDS}"

_EARLIER: Final = f"{_HAS_ADDRESS} AND +id < ? AND connect_time >= ? AND connect_time < ?"
"""Selects binds before an id, between two times. `+` keeps SQLite from using the ids: the index of times finds fewer
rows."""

IsNew: TypeAlias = tuple[bool | None, bool | None]
"""Whether a bind is the first of the day from its address, and the first for its application; None: not known."""


class SeenAddresses:
    """The addresses of the binds of each day, for all applications and for each.

    Binds are compared as the source has them, also those that are put into quarantine. So whatever is read in one run
    or in several, the same binds are the first.
    """

    def __init__(self) -> None:
        self._of_day: set[tuple[int, Any]] = set()
        self._of_app: set[tuple[int, Any, Any]] = set()

    def add(self, app_id: Any, connect_time: Any, address: Any) -> IsNew:
        """Add a bind, and return whether its address is new. The time is in seconds since 1970."""
        if address is None or not isinstance(connect_time, int | float) or not abs(connect_time) < MAX_BIND_SECONDS:
            return None, None
        day = int(connect_time // SECONDS_PER_DAY)
        of_day, of_app = (day, address), (day, app_id, address)
        new = of_day not in self._of_day, of_app not in self._of_app
        self._of_day.add(of_day)
        self._of_app.add(of_app)
        return new


_BIND_COLUMNS: Final = [rule.source for rule in (ORIGIN_RULE, *RULES[CLIENT_VERSIONS.name])]
_APP_ID: Final = _BIND_COLUMNS.index("app_id")
_CONNECT_TIME: Final = _BIND_COLUMNS.index("connect_time")


def clean_rows(
    scan: UsageScan, rows: Iterable[tuple[Any, ...]], seen: SeenAddresses | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a row of the lake's table and its fault. A row with a fault has no other values.

    `seen` has the addresses of earlier rows.
    """
    seen = seen or SeenAddresses()
    are_binds = scan.table == CLIENT_VERSIONS.name
    new: tuple[bool | None, ...] = (None, None) if are_binds else ()
    rules, limits, source = (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]), scan.limits, scan.source
    when = next(index for index, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    nothing = (None,) * (len(rules) + len(new) + 1)  # one value for each rule and of the address, and one for the day
    for row_id, *row in rows:
        if are_binds:
            address = row.pop()
            new = seen.add(row[_APP_ID], row[_CONNECT_TIME], address)
        if row[0] in scan.duplicates:
            fault: str = DUPLICATE
        else:
            values = clean_values(rules, row, limits)
            if not isinstance(values, Fault):
                own = values[0] == ""  # another server wrote an imported row, with its own setting
                values[-1] = blur_us(values[-1], scan.setting_us if own else None, values[when])
                yield (row_id, *values, *new, values[when] // MICROSECONDS_PER_DAY, source, None, None, None)
                continue
            fault = str(values)
        yield (row_id, *nothing, source, fault, str(row_id), row_digest(row))


class UsageTask(NamedTuple):
    """A task that reads a range of the copied rows; both ends are included."""

    scan: UsageScan
    first_id: int
    last_id: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cleaned."""
        scan, ids = self.scan, (self.first_id, self.last_id)
        with reading(Path(scan.copy), scan.source) as database:
            rows = database.execute(f"SELECT * FROM {scan.table} WHERE id BETWEEN ? AND ? ORDER BY id", ids)  # noqa: S608
            seen = self._seen_before(database) if scan.table == CLIENT_VERSIONS.name else None
            yield from row_batches(CLEAN_TABLES[scan.table], clean_rows(scan, rows, seen))

    def _seen_before(self, database: sqlite3.Connection) -> SeenAddresses:
        """Return the addresses of earlier rows, of the days on which this task has rows."""
        seen = SeenAddresses()
        of_day = f"SELECT DISTINCT app_id, {ADDRESS_ID} FROM {self.scan.table} WHERE {_EARLIER}"  # noqa: S608
        for day in days_of_binds(database, self.scan.table, self.first_id, self.last_id):
            begin = day * SECONDS_PER_DAY
            for app_id, address in database.execute(of_day, (self.first_id, begin, begin + SECONDS_PER_DAY)):
                seen.add(app_id, begin, address)
        return seen


def days_of_binds(database: sqlite3.Connection, table: str, first_id: int, last_id: int) -> list[int]:
    """Return the days, since 1970, of the binds with an address in a range of ids."""
    day = f"CAST(connect_time / {SECONDS_PER_DAY} AS INTEGER)"
    days = f"SELECT DISTINCT {day} FROM {table} WHERE {_HAS_ADDRESS} AND id BETWEEN ? AND ?"  # noqa: S608
    return [day for (day,) in database.execute(days, (first_id, last_id))]


def copy_earlier_binds(database: UsageDatabase, copied: str, table: str, first_id: int, last_id: int) -> None:
    """Copy the earlier binds of the days on which a range of ids has binds: one of each application and address.

    Only our servers have addresses, and no commit of theirs waits for a reader. One statement reads an hour.
    """
    earlier = (
        f"SELECT min(id), app_id, min(connect_time), {ADDRESS_ID} FROM {table} WHERE {_EARLIER}"  # noqa: S608
        f" GROUP BY app_id, {ADDRESS_ID}"
    )
    for day in days_of_binds(database.copy, f"copy.{copied}", first_id, last_id):
        for begin in range(day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY, 3600):
            into = f"{copied} (id, app_id, connect_time, {ADDRESS_ID})"
            database.insert(into, earlier, (first_id, begin, begin + 3600))
