"""A Python Data Source over a copy of a database: usage records, cleaned where they are read, by Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from restante.pipeline.cleaning import DAY, RULES, Fault, Limits, clean, digest, text
from restante.pipeline.schemas import CLEAN
from restante.pipeline.sources import DUPLICATE, Part
from restante.pipeline.sources.rows import batches, ddl
from restante.pipeline.sources.snapshot import reading

ROWS: Final = 200_000
"""Rows that one task reads: a second or two of work, so that every core has some and progress can be seen."""


class Job(msgspec.Struct, frozen=True):
    """What is to be read, whole: it goes to the workers as an option."""

    source: str
    table: str
    """Of the lake."""
    copy: str
    name: str
    """Of the table in the copy."""
    columns: tuple[str, ...]
    """In the copy: the id, the origin, then those of the table's rules."""
    parts: tuple[Part, ...]
    limits: Limits
    blur_us: int | None
    duplicates: frozenset[str]
    """Origins whose rows another source has."""


def rows(spark: SparkSession, job: Job) -> DataFrame:
    """Give the rows of a job, one for each."""
    spark.dataSource.register(UsageRows)
    return spark.read.format(UsageRows.name()).option("job", msgspec.json.encode(job).decode()).load()


class UsageRows(DataSource):
    """One job."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._job = msgspec.json.decode(options["job"], type=Job)

    @classmethod
    def name(cls) -> str:
        return "restante_usage"

    def schema(self) -> str:
        return ddl(CLEAN[self._job.table])

    def reader(self, schema: StructType) -> UsageReader:  # noqa: ARG002 - it is ours
        return UsageReader(self._job)


class Ids(InputPartition):
    """The rows of one task, both ends included."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first, self.last = first, last


class UsageReader(DataSourceReader):
    """Reads it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def partitions(self) -> Sequence[Ids]:
        """Cut the parts into tasks of so many rows each, wherever ids are missing."""
        job, id_ = self._job, self._job.columns[0]
        found = []
        step = f"SELECT {id_} FROM {job.name} WHERE {id_} >= ? ORDER BY {id_} LIMIT 1 OFFSET {ROWS}"  # noqa: S608
        with reading(Path(job.copy), job.source) as database:
            for part in job.parts:
                first = part.first
                while (following := database.execute(step, (first,)).fetchone()) and following[0] <= part.last:
                    found.append(Ids(first, following[0] - 1))
                    first = following[0]
                found.append(Ids(first, part.last))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a task."""
        assert isinstance(partition, Ids)
        job, id_ = self._job, self._job.columns[0]
        select = f"SELECT {', '.join(job.columns)} FROM {job.name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_}"  # noqa: S608
        with reading(Path(job.copy), job.source) as database:
            found = database.execute(select, (partition.first, partition.last))
            yield from batches(CLEAN[job.table], finished(job, found))


def finished(job: Job, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Clean rows: each becomes one of the lake's table, and what is wrong with it; with a fault it has no content."""
    rules, source, blur = RULES[job.table], job.source, job.blur_us
    when = next(place for place, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    nothing = (None,) * (len(rules) + 3)  # origin, blur and day
    for row_id, *row in found:
        fault = DUPLICATE if row[0] in job.duplicates else None
        if fault is None:
            origin, values = text(row[0]), clean(rules, row[1:], job.limits)
            if not isinstance(values, Fault) and not isinstance(origin, Fault):
                yield (row_id, origin, *values, blur, values[when] // DAY, source, None, None, None)
                continue
            fault = values if isinstance(values, Fault) else origin
        yield (row_id, *nothing, source, str(fault), str(row_id), digest(row))
