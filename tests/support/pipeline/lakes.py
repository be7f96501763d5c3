"""A table with a column of every type, rows for it, and lakes that have it, staged and read with or without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from restante.pipeline.lake import columns, data_files, delta_log
from restante.pipeline.lake.commit_info import CommitInfo, Ledger, SourceCommit
from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import LakePath
from restante.pipeline.schemas import BY_MONTH, MONTH_COLUMN, Column, Table
from support.pipeline.tables import ARROW

LETTERS = Table(
    "letters",
    "letter",
    (
        Column("id", "BIGINT", "its number"),
        Column("table", "STRING", "a word of SQL, and of strangers"),
        Column("commit", "TIMESTAMP", "when it came"),
        Column("weight", "DOUBLE", "what it weighs", null=True),
        Column("body", "BINARY", "what it says", null=True),
        Column("seen", "BOOLEAN", "whether it was read"),
        Column("size", "INT", "bytes"),
        Column("hour", "INT", "of the day; NULL: all of it", null=True),
        Column("day", "DATE", "when it came"),
        Column("source", "STRING", "whence"),
    ),
    ("day", "source", "hour"),
)

MONTHLY_LETTERS = LETTERS._replace(partitions=BY_MONTH)
"""The same table, of which a file has many days, sources and hours."""

Row = dict[str, Any]

STRANGE = ["", "abc", 'it\'s "quoted"', "a;b--c", "<b>&amp;</b>", "=1+1", "\x1b[31m", "naïve ☃ \U0001f4ee", "x" * 200]

LATER_LETTERS = LETTERS._replace(
    columns=(
        *LETTERS.columns[:3],
        Column("answered", "DOUBLE", "when; NULL: nobody knows", null=True, added=True),
        *LETTERS.columns[3:],
    )
)
"""The table of a later version, which has a column more."""


def letter(number: int, day: str = "2026-11-01", source: str = "main", hour: int | None = None) -> Row:
    """Return a row; all that is not named follows from its number."""
    return {
        "id": number,
        "table": STRANGE[number % len(STRANGE)],
        "commit": datetime(2026, 11, 1, tzinfo=UTC) + timedelta(microseconds=number),
        "weight": None if number % 3 == 0 else number / 3,
        "body": None if number % 5 == 0 else bytes([number % 256, 0]),
        "seen": number % 2 == 0,
        "size": number % 100,
        "hour": hour,
        "day": date.fromisoformat(day),
        "source": source,
    }


def frame(spark: SparkSession, rows: Sequence[Row], table: Table = LETTERS) -> DataFrame:
    schema = columns.spark_schema(table)
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema).coalesce(1)


def arrow(table: Table) -> pa.Schema:
    return pa.schema([(column.name, ARROW[column.type]) for column in table.columns])


class Held:
    """Rows with the methods of a DataFrame that LakeTable.stage calls; test_lake_readers.py compares the files."""

    sparkSession = SimpleNamespace(_sc=SimpleNamespace(master="local[1]"))  # noqa: N815 - as DataFrame has it

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def columns(self) -> list[str]:
        return list(self._rows.schema.names)

    def to(self, schema: StructType) -> Held:
        return Held(self._rows.select(schema.names))

    def sortWithinPartitions(self, *names: str) -> Held:  # noqa: N802 - as DataFrame has it
        order = [(name, "ascending") for name in names]
        return Held(self._rows.sort_by(order))

    def mapInArrow(  # noqa: N802 - as DataFrame has it
        self, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str
    ) -> Held:
        return Held(pa.Table.from_batches(task(self._rows.combine_chunks().to_batches())))

    def collect(self) -> Any:
        return self._rows.to_pylist()


def held(rows: Sequence[Row], table: Table = LETTERS) -> DataFrame:
    return cast(DataFrame, Held(pa.Table.from_pylist(list(rows), arrow(table))))


def info(run: str = "r", finished: float = 1_795_000_000.0, **others: Any) -> CommitInfo:
    """Return a commit info, of one source if `source`, and perhaps `ledger` and `marks`, are among the others."""
    if source := others.pop("source", None):
        others["sources"] = {source: SourceCommit(others.pop("ledger", Ledger()), others.pop("marks", {}))}
    return CommitInfo(run=run, finished=finished, **others)


def local(path: LakePath) -> Path:
    """Return a path of a lake that is a folder."""
    assert isinstance(path, Path)
    return path


@contextmanager
def opened(path: Path, table: Table = LETTERS) -> Iterator[LakeTable]:
    with Lake.open(path, write=True, make=True) as lake:
        yield lake.table(table)


def add(
    table: LakeTable,
    rows: Sequence[Row],
    *,
    replace: Where | None = None,
    **fields: Any,
) -> int:
    """Stage rows without Spark and commit them."""
    staged = [table.stage(held(rows, table.table))] if rows else []
    return table.commit(staged, info=info(**fields), replace=replace)


def put(path: Path, rows: Sequence[Row], table: Table = LETTERS, **options: Any) -> int:
    """Open a lake, add rows to its table, and close it."""
    with opened(path, table) as lake_table:
        return add(lake_table, rows, **options)


def add_foreign(lake: Path, rows: Sequence[Row], table: Table = LETTERS) -> None:
    """Append rows to a table as another program does, which knows all columns of the Delta table."""
    theirs = pa.Table.from_pylist(list(rows), arrow(table))
    if table.by_month:
        months = pa.array([row["day"].replace(day=1) for row in rows], pa.date32())
        theirs = theirs.append_column(MONTH_COLUMN.name, months)
    write_deltalake(lake / table.name, theirs, mode="append", partition_by=list(table.partitions))


def seen(path: Path, table: Table = LETTERS) -> LakeTable:
    """Return the table as somebody sees it who opens the lake now."""
    with Lake.open(path, write=False) as lake:
        return lake.table(table)


def infos(table: LakeTable) -> list[CommitInfo]:
    """Return the commit infos of its versions, as far as their entries are there, newest first."""
    last = -1 if table.version is None else table.version
    versions = [version for version in range(last, -1, -1) if delta_log.entry_path(table.folder, version).exists()]
    read = [delta_log.read_info(table.folder, version) for version in versions]
    return [info for info in read if info.run or info.foreign]


def rows(read: pa.Table) -> list[Row]:
    """Return what a reader read, in the order of ids."""
    return sorted(read.to_pylist(), key=lambda row: row["id"])


def contents(table: LakeTable, where: Where | None = None) -> pa.Table:
    """Read the selected rows of a table's files without Spark; values of partitions are those of the log."""
    schema = arrow(table.table)
    parts = [schema.empty_table()]
    for file in data_files.existing_files(table.files(where)):
        part = pq.ParquetFile(file.path).read()
        assert part.num_rows == file.rows
        for name, value in file.partition.items():
            if name not in schema.names:
                continue
            part = part.append_column(name, pa.array([value] * file.rows, pa.string()).cast(schema.field(name).type))
        for column in table.table.columns:
            if column.added and column.name not in part.schema.names:
                part = part.append_column(column.name, pa.nulls(file.rows, schema.field(column.name).type))
        parts.append(part.select(schema.names).cast(schema))
    rows = pa.concat_tables(parts)
    return rows.filter(pa.array([matches(row, where or {}) for row in rows.to_pylist()], pa.bool_()))


def matches(row: Row, where: Where) -> bool:
    return all((None if row[name] is None else str(row[name])) in values for name, values in where.items())


def stored(path: Path, table: Table = LETTERS) -> list[Row]:
    """Read the table anew, without Spark; delta-rs must read the same."""
    lake_table = seen(path, table)
    ours = rows(contents(lake_table))
    if lake_table.version is not None:
        theirs = DeltaTable(str(lake_table.folder)).to_pyarrow_table()
        assert rows(theirs.select([column.name for column in table.columns])) == ours
    return ours


def by_spark(spark: SparkSession, path: Path, where: Where | None = None, table: Table = LETTERS) -> list[Row]:
    return rows(seen(path, table).read(spark, where).toArrow())
