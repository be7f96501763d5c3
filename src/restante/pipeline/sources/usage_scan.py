"""Tasks that read a usage table: Spark's workers read the rows from the copy of a database and clean them.

Our servers store a hash of the client's address with each bind. Whoever has the hashes knows which binds of a day
came from the same address. So they stay in the task: a row only says whether it is the first from its address.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
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
from restante.pipeline.sources.rows import row_batches
from restante.pipeline.sources.snapshot import reading
from restante.pipeline.sources.source import DUPLICATE, SpanPart

ROWS_PER_TASK: Final = 100_000
"""Rows that one task reads: a second of work, so that every core has tasks and progress is visible."""

MAX_BIND_SECONDS: Final = 10**12
"""Seconds since 1970 from which the day of a bind is not looked at: a clock that shows the year 33,000 is wrong, and
SQLite has no integer for the day of infinity."""


class UsageScan(NamedTuple):
    """The rows to read and how to clean them; part of each task."""

    source: str
    table: str
    """Name of the lake's table."""
    copy: str
    path: str
    """The path of the original, for errors."""
    name: str
    """Name of the table in the copy."""
    columns: tuple[str, ...]
    """Columns in the copy: the id, the origin, those of the table's rules, then those of our own servers' rules."""
    limits: TimeLimits
    setting_us: int | None
    """The unit that the server floors times to now, in microseconds, for its own rows that do not record theirs."""
    duplicates: frozenset[str]
    """Origins whose rows another source has."""
    addresses: tuple[str, ...] = ()
    """The column with the hash of the client's address, or () if the table has none. A row has it last."""


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
    new: tuple[bool | None, ...] = (None, None) if scan.table == CLIENT_VERSIONS.name else ()
    rules, limits, source = (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]), scan.limits, scan.source
    when = next(index for index, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    nothing = (None,) * (len(rules) + len(new) + 1)  # one value for each rule and of the address, and one for the day
    for row_id, *row in rows:
        if scan.addresses:
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
    """A task that reads a range of a copy's rows; both ends are included."""

    scan: UsageScan
    first_id: int
    last_id: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cleaned."""
        scan, id_ = self.scan, self.scan.columns[0]
        columns = ", ".join((*scan.columns, *scan.addresses))
        select = f"SELECT {columns} FROM {scan.name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_}"  # noqa: S608
        with reading(Path(scan.copy), scan.source, Path(scan.path)) as database:
            rows = database.execute(select, (self.first_id, self.last_id))
            yield from row_batches(CLEAN_TABLES[scan.table], clean_rows(scan, rows, self._seen_before(database)))

    def _seen_before(self, database: sqlite3.Connection) -> SeenAddresses:
        """Return the addresses of earlier rows, of the days on which this task has rows."""
        scan, seen = self.scan, SeenAddresses()
        for address in scan.addresses:  # none or one
            id_, has_address = scan.columns[0], f"{address} IS NOT NULL AND abs(connect_time) < {MAX_BIND_SECONDS}"
            days = f"SELECT DISTINCT CAST(connect_time / {SECONDS_PER_DAY} AS INTEGER) FROM {scan.name}"  # noqa: S608
            before = f"SELECT DISTINCT app_id, {address} FROM {scan.name}"  # noqa: S608
            # `+` keeps SQLite from using the ids: the index of times finds fewer rows.
            of_day = f"{before} WHERE {has_address} AND +{id_} < ? AND connect_time >= ? AND connect_time < ?"
            ids = (self.first_id, self.last_id)
            for (day,) in database.execute(f"{days} WHERE {has_address} AND {id_} BETWEEN ? AND ?", ids).fetchall():
                begin = day * SECONDS_PER_DAY
                for app_id, value in database.execute(of_day, (self.first_id, begin, begin + SECONDS_PER_DAY)):
                    seen.add(app_id, begin, value)
        return seen


def cut_into_tasks(scan: UsageScan, parts: Sequence[SpanPart]) -> list[UsageTask]:
    """Return the parts cut into tasks of ROWS_PER_TASK rows each, whichever ids are missing. Raises SourceError."""
    id_ = scan.columns[0]
    step = f"SELECT {id_} FROM {scan.name} WHERE {id_} >= ? ORDER BY {id_} LIMIT 1 OFFSET {ROWS_PER_TASK}"  # noqa: S608
    tasks = []
    with reading(Path(scan.copy), scan.source, Path(scan.path)) as database:
        for part in parts:
            first_id = part.first_id
            while (following := database.execute(step, (first_id,)).fetchone()) and following[0] <= part.last_id:
                tasks.append(UsageTask(scan, first_id, following[0] - 1))
                first_id = following[0]
            tasks.append(UsageTask(scan, first_id, part.last_id))
    return tasks
