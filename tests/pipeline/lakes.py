"""A table with a column of every type, rows for it, and lakes that have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from restante.pipeline import columns
from restante.pipeline.lake import Lake
from restante.pipeline.laketable import LakeTable
from restante.pipeline.notes import Note
from restante.pipeline.partfiles import Where
from restante.pipeline.schemas import Column, Table

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

Row = dict[str, Any]

STRANGE = [
    "",
    "plain",
    'it\'s "quoted"',
    "a;b--c",
    "<b>&amp;</b>",
    "=1+1",
    "\x1b[31m",
    "naïve ☃ \U0001f4ee",
    "x" * 200,
]


def letter(number: int, day: str = "2026-11-01", source: str = "main", hour: int | None = None) -> Row:
    """Give a row; all that is not named follows from its number."""
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
    """Give rows to Spark, in one piece: a file per partition."""
    import json

    schema = StructType.fromJson(json.loads(columns.schema(table, nulls=True)))
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema).coalesce(1)


def note(run: str = "r", finished: float = 1_795_000_000.0, **others: Any) -> Note:
    return Note(run=run, table="letters", finished=finished, **others)


@contextmanager
def opened(path: Path, table: Table = LETTERS) -> Iterator[LakeTable]:
    """Open a lake to write to, and give its table."""
    with Lake.open(path, write=True, make=True) as lake:
        yield lake.table(table)


def add(
    spark: SparkSession,
    table: LakeTable,
    rows: Sequence[Row],
    *,
    replace: Where | None = None,
    transactions: Mapping[str, int] | None = None,
    **noted: Any,
) -> int:
    """Stage rows and commit them."""
    staged = [table.stage(frame(spark, rows, table.table))] if rows else []
    return table.commit(staged, note=note(**noted), replace=replace, transactions=transactions)


def seen(path: Path, table: Table = LETTERS) -> LakeTable:
    """Give the table as somebody sees it who opens the lake now."""
    with Lake.open(path, write=False) as lake:
        return lake.table(table)


def rows(read: pa.Table) -> list[Row]:
    """Give what a reader read, in the order of ids."""
    found: list[Row] = read.to_pylist()
    return sorted(found, key=lambda row: row["id"])


def stored(spark: SparkSession, path: Path, where: Where | None = None) -> list[Row]:
    """Have Spark read the table anew."""
    return rows(seen(path).read(spark, where).toArrow())
