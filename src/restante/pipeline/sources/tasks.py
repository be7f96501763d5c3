"""Makes a DataFrame of tasks that read a source; each task runs in one of Spark's workers.

A task is pickled, and a pickle contains data and names, so the worker must have the task's module. Workers on this
machine have it.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from restante.pipeline.schemas import Table
from restante.pipeline.sources import rows
from restante.pipeline.sources.source import Task
from restante.pipeline.spark.small_jobs import is_small, one_task

DATA_SOURCE: Final = "restante.tasks"


def frame(spark: SparkSession, table: Table, tasks: Sequence[Task]) -> DataFrame:
    """Return the rows that the tasks read for a table of the lake. Spark reads them when a job runs.

    The session must be on this machine.
    """
    if not tasks:
        return spark.createDataFrame(rows.arrow_schema(table).empty_table(), rows.ddl(table))
    if is_small(spark):
        batches = chain.from_iterable(task.batches() for task in tasks)
        return one_task(spark.createDataFrame(pa.Table.from_batches(list(batches), rows.arrow_schema(table))))
    spark.dataSource.register(TaskSource)
    pickled_tasks = base64.b64encode(pickle.dumps(list(tasks))).decode()
    return spark.read.format(DATA_SOURCE).schema(rows.ddl(table)).option("tasks", pickled_tasks).load()


class TaskSource(DataSource):
    """A data source whose tasks are passed in an option."""

    @classmethod
    def name(cls) -> str:
        return DATA_SOURCE

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - every batch has it
        return _TaskReader(self.options["tasks"])


class _TaskReader(DataSourceReader):
    def __init__(self, pickled_tasks: str) -> None:
        self._pickled_tasks = pickled_tasks

    def partitions(self) -> Sequence[InputPartition]:
        tasks: list[Task] = pickle.loads(base64.b64decode(self._pickled_tasks))  # noqa: S301 - `frame` made it
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task = partition.value
        return task.batches()
