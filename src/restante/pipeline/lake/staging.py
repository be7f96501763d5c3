"""Files that Spark's jobs have written and no commit has taken yet.

A job writes into its own folder in the table's folder, run-RUN-JOB. A commit moves its files beside the existing
ones, into the partition folders, and flushes them to disk before the log names them. One run at a time has the lake's
lock, so the folders of other runs belong to runs that were killed: a job removes them first.

At a URL, where to move a file is to copy it, files stay in the job's folder, run=RUN-JOB. `vacuum` removes those of
runs that were killed. The rows that Spark reads back must be as many as it wrote: a job's tasks may fail, and be
repeated, so no listing of ours decides which files belong to the result.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from restante.common.atomic_file import flush
from restante.common.errors import StoreError, plain
from restante.common.texts import counted
from restante.pipeline.lake import columns, data_files, delta_table, statistics
from restante.pipeline.lake.data_files import RUN_FOLDER, DataFile
from restante.pipeline.lake.statistics import ColumnRange
from restante.pipeline.lake.url_path import LakePath, UrlPath, path_below, spark_path
from restante.pipeline.lake.writer import WRITTEN_DDL, OpenFile, task_writer
from restante.pipeline.schemas import MONTH_COLUMN, Table
from restante.pipeline.spark import errors
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.spark.session import is_local
from restante.pipeline.spark.small_jobs import is_small, one_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

RUN_PREFIX: Final = "run-"
"""Prefix of the name of a job's folder."""

GONE_SUFFIX: Final = ".gone"
"""Suffix of that name while the folder is being removed."""

_JOB_FOLDER: Final = re.compile(rf"{RUN_PREFIX}[0-9a-f]{{32}}-[0-9a-f]{{32}}({re.escape(GONE_SUFFIX)})?")


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


class StagedFiles(NamedTuple):
    """Files that no commit has taken yet."""

    folder: LakePath
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(file.rows for file in self.files)

    def discard(self) -> None:
        """Remove the files: no commit will take them."""
        remove_job(self.folder)


def remove_job(run: LakePath) -> None:
    """Remove a job's folder, if it exists. Rename it first, so that tasks that are still writing do not find it."""
    if isinstance(run, UrlPath):
        with contextlib.suppress(OSError):  # `vacuum` removes the others
            run.remove_all()
        return
    removed_folder = run.with_name(f"{run.name.removesuffix(GONE_SUFFIX)}{GONE_SUFFIX}")
    with contextlib.suppress(OSError):
        run.rename(removed_folder)
    shutil.rmtree(removed_folder, ignore_errors=True)


def job_folder(table: LakePath, run: str) -> LakePath:
    """Return a new name for a job's folder; the caller creates it."""
    if isinstance(table, UrlPath):
        return table / f"{RUN_FOLDER}{run}-{uuid.uuid4().hex}"
    return table / f"{RUN_PREFIX}{run}-{uuid.uuid4().hex}"


def job_folders(table: LakePath) -> list[Path]:
    """Return the folders of jobs in a table's folder. x.gone comes before x, which is renamed to x.gone.

    At a URL none are known: the runs that wrote them may still be active.
    """
    if isinstance(table, UrlPath):
        return []
    folders = (path for path in table.glob(f"{RUN_PREFIX}*") if _JOB_FOLDER.fullmatch(path.name))
    return sorted((path for path in folders if path.is_dir() and not path.is_symlink()), reverse=True)


def stage_rows(frame: DataFrame, folder: LakePath, table: Table, run: str) -> StagedFiles:
    """Write rows for a table with Spark, and remove what other runs left in the table's folder.

    Raises StoreError if Spark cannot write or a row has NULL in a column that is not nullable, SparkError if the job
    fails; then its files are removed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for old_job in job_folders(folder):
        if not old_job.name.startswith(f"{RUN_PREFIX}{run}-"):
            remove_job(old_job)
    job = job_folder(folder, run)
    try:
        rows = _table_rows(frame, table)
        if isinstance(job, UrlPath):
            return StagedFiles(job, tuple(_write_at_url(rows, job, table)))
        return StagedFiles(job, tuple(_written_files(_write_rows(rows, job, table), job, table)))
    except (PySparkException, Py4JError) as error:
        remove_job(job)
        if errors.java_has_ended(error):
            raise SparkError(errors.JAVA_ENDED) from error
        raise _job_failure(error, table, folder) from error
    except BaseException:
        remove_job(job)
        raise


def _table_rows(frame: DataFrame, table: Table) -> DataFrame:
    """Return rows with the columns and types of a table."""
    schema = columns.spark_schema(table)
    if missing := set(schema.names).difference(frame.columns):  # DataFrame.to would add the missing columns
        raise SparkError(
            f"the rows for the table {table.name} could not be computed: there is no column {min(missing)}"
        )
    return frame.to(schema)


def _write_rows(rows: DataFrame, run: Path, table: Table) -> list[Path]:
    """Write rows below `run` with Spark, and return the files that belong to the result."""
    spark = rows.sparkSession
    if not is_local(spark):  # workers on other machines may lack Python or our modules
        _sorted_writer(rows, table).parquet(str(run))
        # Not in _temporary, where a killed attempt at a task may still write (spark.speculation).
        return sorted(run.glob("/".join([*(f"{name}=*" for name in table.partitions), "*.parquet"])))
    try:
        run.mkdir(parents=True)
    except OSError as error:
        raise StoreError(f"cannot write to {run.parent}: {plain(error)}; these rows were not committed") from error
    rows = one_task(rows)
    if table.order:
        rows = rows.sortWithinPartitions(*table.order)
    write = task_writer(run, table.partitions)
    if not is_small(spark):
        return sorted(Path(row["path"]) for row in rows.mapInArrow(write, WRITTEN_DDL).collect())
    batches = rows.toArrow().to_batches()
    with _writing(run):
        return sorted(Path(path) for written in write(batches) for path in written.column("path").to_pylist())


def _sorted_writer(rows: DataFrame, table: Table) -> DataFrameWriter:
    """Return Spark's writer of rows, with a file per task and partition."""
    from pyspark.sql import functions as f

    if table.by_month:
        rows = rows.withColumn(MONTH_COLUMN.name, f.trunc("day", "month"))
    # Spark sorts by the partitions unless the rows are sorted by them already; then their order stays.
    order = dict.fromkeys((*table.partitions, *table.order))
    sorted_ = rows.sortWithinPartitions(*order) if order else rows
    return sorted_.write.partitionBy(*table.partitions)


def _write_at_url(rows: DataFrame, folder: UrlPath, table: Table) -> list[DataFile]:
    """Write rows into a folder, and return the files. Raises StoreError if they do not have all rows, or a NULL."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation("written")
    never = [column.name for column in table.columns if not column.null]
    nulls = [f.count_if(f.col(f"`{name}`").isNull()).alias(name) for name in never]
    observed = one_task(rows).observe(observation, f.count(f.lit(1)).alias(_ROWS), *nulls)
    _sorted_writer(observed, table).options(**WRITER_OPTIONS).parquet(spark_path(folder))
    counts = observation.get
    written = int(counts.pop(_ROWS))
    if missing := ", ".join(sorted(name for name, count in counts.items() if count)):
        raise StoreError(f"a row for the table {table.name} has no {missing}: these rows were not committed")
    files = list(_files_read_back(rows, folder, table)) if written else []
    read = sum(file.rows for file in files)
    if read != written:
        raise StoreError(
            f"of {counted(written, 'row')} that Spark wrote to {folder} it reads {read:,}: these rows were not"
            " committed; run this again"
        )
    return files


def _files_read_back(rows: DataFrame, folder: UrlPath, table: Table) -> Iterator[DataFile]:
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


def _job_failure(error: Exception, table: Table, folder: LakePath) -> SparkError | StoreError:
    message = str(error)
    if "No space left on device" in message:  # ENOSPC, as Java words it
        return StoreError(
            f"the disk has no room for {folder}, or for Spark's temporary files: make room and run this again;"
            " these rows were not committed"
        )
    if "Mkdirs failed" in message or "Permission denied" in message:  # Hadoop's RawLocalFileSystem
        return StoreError(f"Spark cannot write to {folder}: check who owns it; these rows were not committed")
    return SparkError(f"the rows for the table {table.name} could not be computed: {errors.job_failure(message)}")


def _written_files(paths: Iterable[Path], run: Path, table: Table) -> list[DataFile]:
    never = {column.name for column in table.columns if not column.null}
    files = []
    for path in paths:
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(
                f"what Spark wrote to {path} cannot be read: {error}; these rows were not committed"
            ) from error
        if not footer.num_rows:
            continue  # Spark writes an empty file if there are no rows and no partitions
        partition = data_files.partition_of_path(path.relative_to(run))
        nulls = _null_columns(footer) | {name for name, value in partition.items() if value is None}
        if nulls & never:
            missing = ", ".join(sorted(nulls & never))
            raise StoreError(f"a row for the table {table.name} has no {missing}: these rows were not committed")
        files.append(data_file(path, partition, footer))
    return files


def write_file(
    path: LakePath, partition: Mapping[str, str | None], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> DataFile:
    """Write a file that no commit has taken yet, of at least one row. Raises StoreError if it cannot be written."""
    with _writing(path):
        if isinstance(path, UrlPath):
            file = OpenFile(path.open_output(), schema)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = OpenFile(str(path), schema)
    try:
        for batch in batches:
            with _writing(path):
                file.add(batch)
        with _writing(path):
            file.close()
    except BaseException:
        file.abandon()
        raise
    with _writing(path), data_files.native_file(path) as written:
        return data_file(path, partition, pq.read_metadata(written))


@contextlib.contextmanager
def _writing(path: LakePath) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = delta_table.error_message(error)
        raise StoreError(f"cannot write to {path}: {reason}; these rows were not committed") from error


def data_file(path: LakePath, partition: Mapping[str, str | None], footer: pq.FileMetaData) -> DataFile:
    """Return a file that was written, with the statistics of its footer."""
    return DataFile(path, partition, footer.num_rows, path.stat().st_size, statistics.column_ranges(footer))


def _null_columns(footer: pq.FileMetaData) -> set[str]:
    """Return the columns of a file that contain NULL, according to its statistics."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    chunks = [group.column(index) for group in groups for index in range(footer.num_columns)]
    return {chunk.path_in_schema for chunk in chunks if chunk.statistics and chunk.statistics.null_count}


def move_into_table(staged: StagedFiles, table: LakePath) -> list[DataFile]:
    """Move files into the table's folder. They survive a power cut once this returns. At a URL they stay.

    Raises StoreError if the disk refuses.
    """
    if isinstance(table, UrlPath):
        return list(staged.files)
    moved, folders = [], {table, table.parent}
    try:
        for file in staged.files:
            assert isinstance(file.path, Path)
            flush(file.path)
            path = table / path_below(file.path, staged.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            file.path.rename(path)
            moved.append(file._replace(path=path))
            folders |= {folder for folder in path.parents if folder.is_relative_to(table)}
        for folder in folders:
            flush(folder)
    except OSError as error:
        raise StoreError(f"cannot write to {table}: {plain(error)}; these rows were not committed") from error
    assert isinstance(staged.folder, Path)
    shutil.rmtree(staged.folder, ignore_errors=True)
    return moved
