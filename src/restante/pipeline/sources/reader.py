"""A Python Data Source over a copy of a database: usage records, cleaned where they are read, by Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.job import Job, finished
from restante.pipeline.sources.rows import batches, ddl
from restante.pipeline.sources.snapshot import reading

ROWS_PER_TASK: Final = 100_000
"""Rows that one task reads: a second of work, so that every core has some and progress can be seen."""


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
        return ddl(CLEAN_TABLES[self._job.table])

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
        step = f"SELECT {id_} FROM {job.name} WHERE {id_} >= ? ORDER BY {id_} LIMIT 1 OFFSET {ROWS_PER_TASK}"  # noqa: S608
        with reading(Path(job.copy), job.source, Path(job.path)) as database:
            for part in job.parts:
                first = part.first
                while (following := database.execute(step, (first,)).fetchone()) and following[0] <= part.last:
                    found.append(Ids(first, following[0] - 1))
                    first = following[0]
                found.append(Ids(first, part.last))
        return found or [Ids(1, 0)]  # Spark wants one, where there is nothing to read

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of a task."""
        assert isinstance(partition, Ids)
        job, id_ = self._job, self._job.columns[0]
        select = f"SELECT {', '.join(job.columns)} FROM {job.name} WHERE {id_} BETWEEN ? AND ? ORDER BY {id_}"  # noqa: S608
        with reading(Path(job.copy), job.source, Path(job.path)) as database:
            found = database.execute(select, (partition.first, partition.last))
            yield from batches(CLEAN_TABLES[job.table], finished(job, found))
