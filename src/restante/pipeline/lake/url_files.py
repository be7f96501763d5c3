"""Files that Spark's own writer makes: at a URL, in the folder that stays, with what Spark reads back of them.

A job's tasks may fail, and be repeated. The rows that Spark reads back must be as many as it wrote; no listing of
ours decides which files belong to the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from restante.common.errors import StoreError
from restante.common.texts import counted
from restante.pipeline.lake import columns
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.statistics import ColumnRange
from restante.pipeline.lake.url_path import UrlPath, spark_path
from restante.pipeline.schemas import MONTH_COLUMN, Table
from restante.pipeline.spark.small_jobs import one_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

WRITER_OPTIONS: Final = {
    # A task's files get their place when it ends, and are not moved again by the driver. Until the commit nobody
    # reads them.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Options of Hadoop's committer (mapred-default.xml)."""

_RANGED_TYPES: Final = ("BIGINT", "DATE", "INT", "STRING", "TIMESTAMP")
"""Types of the columns of which a file's range is known, as from a footer (statistics.column_ranges)."""

_ROWS: Final = "rows"
_PARTS: Final = ("minimum", "maximum", "values")


def sorted_writer(rows: DataFrame, table: Table) -> DataFrameWriter:
    """Return Spark's writer of rows, with a file per task and partition."""
    from pyspark.sql import functions as f

    if table.by_month:
        rows = rows.withColumn(MONTH_COLUMN.name, f.trunc("day", "month"))
    # Spark sorts by the partitions unless the rows are sorted by them already; then their order stays.
    order = dict.fromkeys((*table.partitions, *table.order))
    sorted_ = rows.sortWithinPartitions(*order) if order else rows
    return sorted_.write.partitionBy(*table.partitions)


def write_rows(rows: DataFrame, folder: UrlPath, table: Table) -> list[DataFile]:
    """Write rows into a folder, and return the files. Raises StoreError if they do not have all rows, or a NULL."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation("written")
    never = [column.name for column in table.columns if not column.null]
    nulls = [f.count_if(f.col(f"`{name}`").isNull()).alias(name) for name in never]
    observed = one_task(rows).observe(observation, f.count(f.lit(1)).alias(_ROWS), *nulls)
    sorted_writer(observed, table).options(**WRITER_OPTIONS).parquet(spark_path(folder))
    counts = observation.get
    written = int(counts.pop(_ROWS))
    if missing := ", ".join(sorted(name for name, count in counts.items() if count)):
        raise StoreError(f"a row for the table {table.name} has no {missing}: these rows were not committed")
    files = list(_files_of(rows, folder, table)) if written else []
    read = sum(file.rows for file in files)
    if read != written:
        raise StoreError(
            f"of {counted(written, 'row')} that Spark wrote to {folder} it reads {read:,}: these rows were not"
            " committed; run this again"
        )
    return files


def _files_of(rows: DataFrame, folder: UrlPath, table: Table) -> Iterator[DataFile]:
    """Yield the files of a folder, as Spark reads them."""
    from pyspark.sql import functions as f

    stored = rows.sparkSession.read.schema(columns.spark_schema(table)).parquet(spark_path(folder))
    ranged = [c.name for c in table.columns if c.type in _RANGED_TYPES and c.name not in table.partitions]
    ranges = [
        aggregate(f.col(f"`{name}`")).alias(f"{part} {name}")
        for name in ranged
        for part, aggregate in zip(_PARTS, (f.min, f.max, f.count), strict=True)
    ]
    partition = [f.min(f.col(f"`{name}`").cast("string")).alias(f"partition {name}") for name in table.partitions]
    files = stored.groupBy("_metadata.file_path", "_metadata.file_size").agg(
        f.count(f.lit(1)).alias(_ROWS), *ranges, *partition
    )
    for row in files.toArrow().to_pylist():
        # The path is a URL, whose special characters are encoded, and of whose scheme there may be another name.
        _, _, below = row["file_path"].partition(f"/{folder.name}/")
        yield DataFile(
            folder / unquote(below),
            {name: row[f"partition {name}"] for name in table.partitions},
            row[_ROWS],
            row["file_size"],
            {name: _range(row, name) for name in ranged},
        )


def _range(row: Mapping[str, Any], name: str) -> ColumnRange:
    minimum, maximum, values = (row[f"{part} {name}"] for part in _PARTS)
    return ColumnRange(minimum, maximum, row[_ROWS] - values)
