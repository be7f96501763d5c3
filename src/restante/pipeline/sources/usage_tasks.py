"""Cuts usage records into tasks: Spark's workers read the copy of a database and clean its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.rows import batches
from restante.pipeline.sources.snapshot import reading
from restante.pipeline.sources.source import Part
from restante.pipeline.sources.usage_scan import (
    MAX_BIND_SECONDS,
    SeenAddresses,
    UsageScan,
    clean_rows,
)

ROWS_PER_TASK: Final = 100_000
"""Rows that one task reads: a second of work, so that every core has tasks and progress is visible."""


class UsageTask(NamedTuple):
    """A task that reads a range of a copy's rows; both ends are included."""

    scan: UsageScan
    first: int
    last: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cleaned."""
        scan, id_ = self.scan, self.scan.columns[0]
        columns = ", ".join((*scan.columns, *scan.addresses))
        select = f"SELECT {columns} FROM {scan.name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_}"  # noqa: S608
        with reading(Path(scan.copy), scan.source, Path(scan.path)) as database:
            found = database.execute(select, (self.first, self.last))
            yield from batches(CLEAN_TABLES[scan.table], clean_rows(scan, found, self._seen_before(database)))

    def _seen_before(self, database: sqlite3.Connection) -> SeenAddresses:
        """Return the addresses of earlier rows, of the days on which this task has rows."""
        scan, seen = self.scan, SeenAddresses()
        for address in scan.addresses:  # none or one
            id_, known = scan.columns[0], f"{address} IS NOT NULL AND abs(connect_time) < {MAX_BIND_SECONDS}"
            days = f"SELECT DISTINCT CAST(connect_time / {SECONDS_PER_DAY} AS INTEGER) FROM {scan.name}"  # noqa: S608
            before = f"SELECT DISTINCT app_id, {address} FROM {scan.name}"  # noqa: S608
            # `+` keeps SQLite from using the ids: the index of times finds fewer rows.
            of_day = f"{before} WHERE {known} AND +{id_} < ? AND connect_time >= ? AND connect_time < ?"
            rows = (self.first, self.last)
            for (day,) in database.execute(f"{days} WHERE {known} AND {id_} BETWEEN ? AND ?", rows).fetchall():
                begin = day * SECONDS_PER_DAY
                for app_id, value in database.execute(of_day, (self.first, begin, begin + SECONDS_PER_DAY)):
                    seen.add(app_id, begin, value)
        return seen


def cut(scan: UsageScan, parts: Sequence[Part]) -> list[UsageTask]:
    """Return the parts cut into tasks of ROWS_PER_TASK rows each, whichever ids are missing. Raises SourceError."""
    id_ = scan.columns[0]
    step = f"SELECT {id_} FROM {scan.name} WHERE {id_} >= ? ORDER BY {id_} LIMIT 1 OFFSET {ROWS_PER_TASK}"  # noqa: S608
    tasks = []
    with reading(Path(scan.copy), scan.source, Path(scan.path)) as database:
        for part in parts:
            first = part.first
            while (following := database.execute(step, (first,)).fetchone()) and following[0] <= part.last:
                tasks.append(UsageTask(scan, first, following[0] - 1))
                first = following[0]
            tasks.append(UsageTask(scan, first, part.last))
    return tasks
