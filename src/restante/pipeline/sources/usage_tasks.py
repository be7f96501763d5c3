"""Cuts usage records into tasks: Spark's workers read the copy of a database and clean its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.rows import batches
from restante.pipeline.sources.snapshot import reading
from restante.pipeline.sources.source import Part
from restante.pipeline.sources.usage_scan import UsageScan, clean_rows

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
        select = f"SELECT {', '.join(scan.columns)} FROM {scan.name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_}"  # noqa: S608
        with reading(Path(scan.copy), scan.source, Path(scan.path)) as database:
            found = database.execute(select, (self.first, self.last))
            yield from batches(CLEAN_TABLES[scan.table], clean_rows(scan, found))


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
