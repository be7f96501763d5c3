"""Tasks that read a usage table: Spark's workers read the copies of new rows and clean them.

Our servers store a hash of the client's address with each bind. Whoever has the hashes knows which binds of a day
came from the same address. So they stay in the copy: a row only says whether it is the first from its address.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from restante.pipeline.sources.rows import fault_row, row_batches
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

_DAY: Final = f"CAST(connect_time / {SECONDS_PER_DAY} AS INTEGER)"
"""The day of a bind, since 1970."""

NEW_ADDRESS: Final = ("new_address", "new_address_of_app")
"""Columns of copied binds: whether a bind is the first of its day from its address, and the first for its
application. NULL: not known."""


def clean_rows(scan: UsageScan, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a row of the lake's table and its fault. A row with a fault has no other values.

    Behind the columns that have rules, a bind has those of `NEW_ADDRESS`.
    """
    rules, table = (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]), CLEAN_TABLES[scan.table]
    when = next(index for index, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    for row_id, *columns in rows:
        row, flags = columns[: len(rules)], columns[len(rules) :]
        fault: str = DUPLICATE
        if row[0] not in scan.duplicates:
            values = clean_values(rules, row, scan.limits)
            if not isinstance(values, Fault):
                own = values[0] == ""  # another server wrote an imported row, with its own setting
                values[-1] = blur_us(values[-1], scan.setting_us if own else None, values[when])
                new = [None if flag is None else bool(flag) for flag in flags]
                yield (row_id, *values, *new, values[when] // MICROSECONDS_PER_DAY, scan.source, None, None, None)
                continue
            fault = values
        yield fault_row(table, (row_id,), scan.source, fault, str(row_id), row_digest(row))


class UsageTask(NamedTuple):
    """A task that reads a range of the copied rows; both ends are included."""

    scan: UsageScan
    first_id: int
    last_id: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cleaned."""
        scan, ids = self.scan, (self.first_id, self.last_id)
        names = ["id", *(rule.source for rule in (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]))]
        names += NEW_ADDRESS if scan.table == CLIENT_VERSIONS.name else ()
        select = f"SELECT {', '.join(names)} FROM {scan.table} WHERE id BETWEEN ? AND ? ORDER BY id"  # noqa: S608
        with reading(Path(scan.copy), scan.source) as database:
            yield from row_batches(CLEAN_TABLES[scan.table], clean_rows(scan, database.execute(select, ids)))


def mark_new_addresses(copy: sqlite3.Connection, table: str) -> None:
    """Write into copied binds whether each is the first of its day from its address, and for its application.

    Binds are compared as the source has them, also those that are put into quarantine. So whatever is read in one run
    or in several, the same binds are the first.
    """
    is_known = f"{_HAS_ADDRESS} AND typeof(connect_time) IN ('integer', 'real')"
    firsts = f"SELECT min(id) FROM copy.{table} WHERE {is_known} GROUP BY {_DAY}, {ADDRESS_ID}"  # noqa: S608
    of_day, of_app = NEW_ADDRESS
    for name in NEW_ADDRESS:
        copy.execute(f"ALTER TABLE copy.{table} ADD COLUMN {name}")
    marked = f"{of_day} = id IN ({firsts}), {of_app} = id IN ({firsts}, app_id)"
    copy.execute(f"UPDATE copy.{table} SET {marked} WHERE {is_known}")  # noqa: S608


def copy_earlier_binds(database: UsageDatabase, copied: str, table: str, first_id: int) -> None:
    """Copy the binds before an id of the days of those that were copied: one of each hour, application and address.

    Only our servers have addresses, and no commit of theirs waits for a reader. One statement reads an hour.
    """
    # `+` keeps SQLite from using the ids: the index of times finds fewer rows.
    earlier = (
        f"SELECT min(id), app_id, min(connect_time), {ADDRESS_ID} FROM {table} WHERE {_HAS_ADDRESS}"  # noqa: S608
        f" AND +id < ? AND connect_time >= ? AND connect_time < ? GROUP BY app_id, {ADDRESS_ID}"
    )
    days = f"SELECT DISTINCT {_DAY} FROM copy.{copied} WHERE {_HAS_ADDRESS}"  # noqa: S608
    for (day,) in database.copy.execute(days).fetchall():
        for begin in range(day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY, 3600):
            into = f"{copied} (id, app_id, connect_time, {ADDRESS_ID})"
            database.insert(into, earlier, (first_id, begin, begin + 3600))
