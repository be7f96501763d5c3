"""Whoever reads the lake reads the same rows, of the same types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from restante.pipeline import views
from restante.pipeline.lake import data_files, delta_log
from restante.pipeline.lake import table as lake_table
from support.pipeline.lakes import (
    LATER_LETTERS,
    add,
    by_spark,
    frame,
    held,
    info,
    letter,
    opened,
    rows,
    seen,
)

ROWS: Final = [
    *(letter(number) for number in range(20)),
    *(letter(number, day="2026-11-02", source="b.2-c_d", hour=number % 3) for number in range(20, 30)),
    *(letter(number, day="1999-12-31", hour=23) for number in range(30, 35)),
]

TYPES: Final = {
    "id": pa.int64(),
    "table": pa.string(),
    "commit": pa.timestamp("us", "UTC"),
    "weight": pa.float64(),
    "body": pa.binary(),
    "seen": pa.bool_(),
    "size": pa.int32(),
    "hour": pa.int32(),
    "day": pa.date32(),
    "source": pa.string(),
}


def plain(read: pa.Table) -> pa.Table:
    """Remove differences in how readers lay out text and bytes, and in how they call UTC."""

    def plainer(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return plainer(kind.value_type)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_timestamp(kind) and kind.tz == "Etc/UTC":
            return pa.timestamp(kind.unit, "UTC")
        return kind

    return read.cast(pa.schema([(field.name, plainer(field.type)) for field in read.schema]))


def by_duckdb(lake: Path) -> pa.Table:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(views.view(seen(lake)))
        return database.sql('FROM "letters"').to_arrow_table()


def by_pandas(lake: Path) -> pa.Table:
    import pandas as pd

    frame = DeltaTable(lake / "letters").to_pandas(types_mapper=pd.ArrowDtype)
    return pa.Table.from_pandas(frame, preserve_index=False)


def by_polars(lake: Path) -> pa.Table:
    import polars as pl

    return pl.scan_delta(lake / "letters").collect().to_arrow()


def by_deltalake(lake: Path) -> pa.Table:
    return DeltaTable(lake / "letters").to_pyarrow_table()


READERS: Final = [by_duckdb, by_pandas, by_polars, by_deltalake]
NAMES: Final = ["lake", 'l\'ägg "#1" & co; (x)~+@:,']


@pytest.fixture(scope="module", params=NAMES)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with rows, some of them replaced, some in a second commit; the first log entries are not kept."""
    path: Path = tmp_path_factory.mktemp("readers") / request.param
    with opened(path) as table, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
        patch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))
        add(table, [*ROWS[:20], letter(99, day="1999-12-31", hour=22)])
        add(table, [*ROWS[20:]], replace={"day": {"1999-12-31"}})
        table.commit(info=info())
    assert not delta_log.file(path / "letters", 0).exists()
    return path


def test_spark_reads_rows_that_were_written_without_it(lake: Path, spark: SparkSession) -> None:
    read = plain(seen(lake).read(spark).toArrow())
    assert rows(read) == ROWS
    assert dict(zip(read.schema.names, read.schema.types, strict=True)) == TYPES


def test_sparks_workers_write_the_same_files_as_are_written_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / NAMES[-1]
    with opened(lake) as table:
        ours, theirs = table.stage(held(ROWS)), table.stage(frame(spark, ROWS))
        assert {str(file.path.relative_to(ours.folder).parent): file.rows for file in ours.files} == {
            str(file.path.relative_to(theirs.folder).parent): file.rows for file in theirs.files
        }
        assert len(ours.files) == len(theirs.files) == 5
        for one, other in zip(ours.files, theirs.files, strict=True):
            assert one.partition == other.partition
            a, b = pq.ParquetFile(one.path), pq.ParquetFile(other.path)
            assert a.schema.equals(b.schema)
            assert a.schema_arrow.equals(b.schema_arrow, check_metadata=True)
            assert a.read().sort_by("id").equals(b.read().sort_by("id"))
            assert a.metadata.row_group(0).column(0).compression == b.metadata.row_group(0).column(0).compression
        ours.discard()
        table.commit([theirs], info=info())
    for reader in READERS:
        if reader is not by_polars:  # see below
            assert rows(plain(reader(lake))) == ROWS, reader
    assert rows(plain(seen(lake).read(spark).toArrow())) == ROWS


@pytest.mark.parametrize("reader", READERS)
def test_other_programs_read_the_same_rows_of_the_same_types(lake: Path, reader: Callable[[Path], pa.Table]) -> None:
    if reader is by_polars and lake.name != "lake":
        with pytest.raises(FileNotFoundError):  # the day it works, the guide can say so
            reader(lake)
        return
    read = plain(reader(lake))
    assert dict(zip(read.schema.names, read.schema.types, strict=True)) == TYPES
    assert rows(read) == ROWS


def test_readers_see_a_column_that_a_later_version_added(spark: SparkSession, tmp_path: Path) -> None:
    def by_views(lake: Path) -> pa.Table:
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            database.execute(views.view(seen(lake, LATER_LETTERS)))
            return database.sql('FROM "letters"').to_arrow_table()

    def by_sessions(lake: Path) -> pa.Table:
        return seen(lake, LATER_LETTERS).read(spark).toArrow()

    old = [letter(1), letter(2), letter(3, day="2026-11-02", source="b")]
    new = [letter(4) | {"answered": 0.5}, letter(5, day="2026-11-03") | {"answered": None}]
    with opened(tmp_path) as table:
        add(table, old)
    known = [row | {"answered": None} for row in old]
    for reader in (by_views, by_sessions):
        assert rows(plain(reader(tmp_path))) == known, reader
    with opened(tmp_path, LATER_LETTERS) as later:
        add(later, new)
    for reader in (by_views, by_sessions, by_deltalake, by_pandas, by_polars):
        read = plain(reader(tmp_path))
        assert read.schema.field("answered").type == pa.float64(), reader
        assert rows(read) == known + new, reader


STRANGE: Final = [
    *("a b", "a:b", "a/b", "a\\b", "a%20b", "a=b", "a#b", "a&b", "it's", '"', "[x]", "{y}", "*", "?", "~", "..", "ü"),
    *("e\u0301", "\u2028", "\U0001f4ee", "__", "NULL", " ", "a\nb", "\x1b[31m"),
]


def test_partition_values_that_paths_cannot_contain_are_read_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    meant = [letter(number, source=source) for number, source in enumerate(STRANGE)]
    with opened(tmp_path) as table:
        add(table, meant)
    there = seen(tmp_path)
    for source in STRANGE:
        assert sum(file.rows for file in data_files.whole(there.files({"source": {source}}))) == 1, source
    assert by_spark(spark, tmp_path) == meant
    for reader in READERS:
        assert [row["source"] for row in rows(plain(reader(tmp_path)))] == STRANGE, reader
    with opened(tmp_path) as table:
        add(table, [], replace={"source": set(STRANGE[1:])})
    assert by_spark(spark, tmp_path) == meant[:1]
