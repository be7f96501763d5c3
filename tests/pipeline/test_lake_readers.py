"""Whoever writes files of the lake writes the same, and whoever reads it reads the same rows, of the same types."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from restante.pipeline import views
from restante.pipeline.build.sources import build_sources
from restante.pipeline.lake import data_files, delta_log
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake import writer as lake_writer
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.url_path import path_below
from restante.pipeline.lake.writer import task_writer
from restante.pipeline.schemas import CLEAN_TABLES, Table
from restante.pipeline.spark import java
from restante.pipeline.tables import TABLES
from support.bounds import PATIENCE
from support.pipeline import lakes
from support.pipeline.busy_week import busy_week
from support.pipeline.lakes import LETTERS, add, held, info, letter, opened, put, rows, seen
from support.pipeline.runs import LakeWorld
from support.pipeline.tables import dicts
from support.processes import run
from support.tools import MissingError, build, fetch, installed, uv

ROWS: Final = [
    *(letter(number) for number in range(20)),
    *(letter(number, day="2026-11-02", source="b.2-c_d", hour=number % 3) for number in range(20, 30)),
    *(letter(number, day="1999-12-31", hour=23) for number in range(30, 35)),
]


PLAIN: Final = {
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
    pa.timestamp("us", "Etc/UTC"): pa.timestamp("us", "UTC"),
}


def plain(read: pa.Table) -> pa.Table:
    """Remove differences in how readers lay out text and bytes, and in how they call UTC."""
    types = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in read.schema.types]
    plain_types = [PLAIN.get(kind, kind) for kind in types]
    return read.cast(pa.schema(list(zip(read.schema.names, plain_types, strict=True))))


def by_duckdb(lake: Path, table: Table = LETTERS) -> pa.Table:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(views.view_statement(seen(lake, table)))
        return database.sql('FROM "letters"').to_arrow_table()


def by_pandas(lake: Path) -> pa.Table:
    import pandas as pd

    read = DeltaTable(lake / "letters").to_pandas(types_mapper=pd.ArrowDtype)
    return pa.Table.from_pandas(read, preserve_index=False)


def by_polars(lake: Path) -> pa.Table:
    import polars as pl

    return pl.scan_delta(lake / "letters").collect().to_arrow()


def by_deltalake(lake: Path) -> pa.Table:
    return DeltaTable(lake / "letters").to_pyarrow_table()


READERS: Final = [by_duckdb, by_pandas, by_polars, by_deltalake]
NAMES: Final = ["lake", 'l\'ägg "#1" & co; (x)~+@:,']


@pytest.fixture(scope="module", params=NAMES)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("readers") / request.param
    with opened(path) as table, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
        patch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))
        add(table, [*ROWS[:20], letter(99, day="1999-12-31", hour=22)])
        add(table, [*ROWS[20:]], replace={"day": {"1999-12-31"}})
        table.commit(info=info())
    assert not delta_log.entry_path(path / "letters", 0).exists()
    return path


def test_sparks_workers_write_the_files_that_we_write(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / NAMES[-1]
    with opened(lake) as table:
        ours, theirs = table.stage(held(ROWS)), table.stage(lakes.frame(spark, ROWS))
        assert len(ours.files) == 5
        for our_file, their_file in zip(ours.files, theirs.files, strict=True):
            assert path_below(our_file.path, ours.folder).parent == path_below(their_file.path, theirs.folder).parent
            assert (our_file.partition, our_file.rows) == (their_file.partition, their_file.rows)
            a, b = pq.ParquetFile(our_file.path), pq.ParquetFile(their_file.path)
            assert a.schema.equals(b.schema)
            assert a.schema_arrow.equals(b.schema_arrow, check_metadata=True)
            assert a.read().sort_by("id").equals(b.read().sort_by("id"))
            assert a.metadata.row_group(0).column(0).compression == b.metadata.row_group(0).column(0).compression
        ours.discard()
        table.commit([theirs], info=info())
    assert lakes.by_spark(spark, lake) == ROWS


def test_spark_and_other_programs_read_the_same_rows_of_the_same_types(spark: SparkSession, lake: Path) -> None:
    for reader in (lambda lake: seen(lake).read(spark).toArrow(), *READERS):
        if reader is by_polars and lake.name != "lake":
            with pytest.raises(FileNotFoundError):  # the day it works, the guide can say so
                reader(lake)
            continue
        read = plain(reader(lake))
        assert read.schema.remove_metadata().equals(lakes.arrow(LETTERS)), reader
        assert rows(read) == ROWS, reader


def test_readers_see_a_column_that_a_later_version_added(spark: SparkSession, tmp_path: Path) -> None:
    ours: list[Callable[[Path], pa.Table]] = [
        lambda lake: by_duckdb(lake, lakes.LATER_LETTERS),
        lambda lake: seen(lake, lakes.LATER_LETTERS).read(spark).toArrow(),
    ]
    old = [letter(1), letter(2), letter(3, day="2026-11-02", source="b")]
    new = [letter(4) | {"answered": 0.5}, letter(5, day="2026-11-03") | {"answered": None}]
    put(tmp_path, old)
    later_rows = [row | {"answered": None} for row in old]
    for reader in ours:
        assert rows(plain(reader(tmp_path))) == later_rows, reader
    put(tmp_path, new, lakes.LATER_LETTERS)
    for reader in (*ours, by_deltalake, by_pandas, by_polars):
        read = plain(reader(tmp_path))
        assert read.schema.field("answered").type == pa.float64(), reader
        assert rows(read) == later_rows + new, reader


STRANGE: Final = [
    *("a b", "a:b", "a/b", "a\\b", "a%20b", "a=b", "a#b", "a&b", "it's", '"', "[x]", "{y}", "*", "?", "~", "..", "ü"),
    *("e\u0301", "\u2028", "\U0001f4ee", "__", "NULL", " ", "a\nb", "\x1b[31m"),
]


def test_partition_values_that_paths_cannot_contain_are_read_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    letters = [letter(number, source=source) for number, source in enumerate(STRANGE)]
    put(tmp_path, letters)
    table = seen(tmp_path)
    for source in STRANGE:
        assert sum(file.rows for file in data_files.existing_files(table.files({"source": {source}}))) == 1, source
    assert lakes.by_spark(spark, tmp_path) == letters
    for reader in READERS:
        assert [row["source"] for row in rows(plain(reader(tmp_path)))] == STRANGE, reader
    put(tmp_path, [], replace={"source": set(STRANGE[1:])})
    assert lakes.by_spark(spark, tmp_path) == letters[:1]


Rows = list[tuple[str | None, int, bytes | None]]

SCHEMA = pa.schema([("text", pa.string()), ("value", pa.binary()), ("number", pa.int32())])
some_rows = st.lists(
    st.tuples(st.sampled_from(["a", "b=c/d%20 .*", "é", None]), st.integers(0, 2), st.none() | st.binary(max_size=4))
)


def batch(rows: Rows) -> pa.RecordBatch:
    columns = [{"text": text, "number": number, "value": value} for text, number, value in rows]
    return pa.RecordBatch.from_pylist(columns, SCHEMA)


def written(folder: Path, *parts: Rows) -> list[Path]:
    [made] = task_writer(folder, ("text", "number"))(map(batch, parts))
    return [Path(path) for path in made.column("path").to_pylist()]


def values(folder: Path, paths: Sequence[Path]) -> Iterator[tuple[str | None, int, bytes | None]]:
    for path in paths:
        partition = data_files.partition_of_path(path.relative_to(folder))
        assert list(partition) == ["text", "number"]
        for value in pq.ParquetFile(path).read().column("value").to_pylist():
            yield partition["text"], int(partition["number"] or ""), value


@given(st.lists(some_rows, max_size=4))
def test_every_row_is_in_a_file_of_its_partition_in_any_order(parts: list[Rows]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = written(folder, *parts)
        assert sorted(folder.rglob("*.parquet")) == sorted(paths)
        assert sorted(values(folder, paths), key=repr) == sorted(chain(*parts), key=repr)


def test_rows_that_come_in_order_are_one_file_a_partition_and_no_folder_is_made(tmp_path: Path) -> None:
    ordered: Rows = [("a", 0, b"1"), ("a", 0, b"2"), ("a", 1, b"3"), ("b", 1, b"4")]
    assert len(written(tmp_path, ordered[:1], [], ordered[1:])) == 3
    with pytest.raises(FileNotFoundError):
        written(tmp_path / "gone", ordered)
    assert not (tmp_path / "gone").exists(), "the job's folder is gone"


def test_the_first_error_is_reported_and_not_the_unfinished_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch([("a", 0, b"x")])
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(task_writer(tmp_path, ("text", "number"))(failing()))
    [path] = tmp_path.rglob("*.parquet")
    assert pq.ParquetFile(path).metadata.num_rows == 0, "what was held is not written"


def test_rows_in_memory_are_written_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few: Rows = [("a", 0, b"x")]
    for name, limit, groups in (("ROW_GROUP_ROWS", 10, 1), ("ROW_GROUP_ROWS", 2, 3), ("ROW_GROUP_BYTES", 1, 5)):
        monkeypatch.setattr(lake_writer, name, limit)
        [path] = written(tmp_path, *[few] * 5)
        assert pq.ParquetFile(path).num_row_groups == groups


def test_a_large_batch_becomes_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_writer, "ROW_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(lake_writer, "PART_BYTES", 1 << 16)
    long = [*(bytes([number]) * 50_000 for number in range(100)), b"x" * (3 << 20)]
    rows_: Rows = [("a", 0, value) for value in long]
    [path] = written(tmp_path, rows_)
    with pq.ParquetFile(path) as parquet:
        sizes = [parquet.metadata.row_group(group).total_byte_size for group in range(parquet.num_row_groups)]
    assert [size > 1 << 20 for size in sizes] == [False] * 5 + [True], "a larger row is a group alone"
    assert list(values(tmp_path, [path])) == rows_


DELTA_SPARK: Final = "delta-spark==4.4.0"
"""It requires PySpark 4.2 at most."""

READ_BY_DELTA: Final = """
import json, sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.memory": "1g",
    "spark.jars.ivy": sys.argv[1],
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}.items():
    builder = builder.config(name, value)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
for table, version, read in json.loads(sys.argv[2]):
    spark.read.format("delta").option("versionAsOf", version).load(table).coalesce(1).write.parquet(read)
"""
SPARK_VARIABLES: Final = {"JAVA_HOME": str(java.find_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def install_delta_spark(new: Path) -> None:
    build(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
    python = new / "venv" / "bin" / "python"
    fetch("uv", uv(), "pip", "install", "--quiet", "--python", python, DELTA_SPARK, cwd=new)
    fetch("Spark", python, "-c", READ_BY_DELTA, new / "ivy", "[]", cwd=new, variables=SPARK_VARIABLES)


def in_order(read: pa.Table) -> list[dict[str, object]]:
    return sorted(read.to_pylist(), key=lambda row: repr(sorted(row.items())))


@pytest.mark.thorough
def test_deltas_own_package_reads_every_table_and_older_versions_of_one(spark: SparkSession, tmp_path: Path) -> None:
    try:
        folder = installed("delta-spark", f"{DELTA_SPARK} {sys.version}".encode(), install_delta_spark)
    except MissingError as missing:
        pytest.skip(str(missing))
    world = LakeWorld(spark, tmp_path)
    week = busy_week(Random(3), 100)
    for name in CLEAN_TABLES:
        for part in range(2):
            new = dicts(name, week.get(name, ())[part::2])
            world.add(name, new, source="main", ledger=Ledger(read=len(new), clean=len(new)))
    world.build()
    with world.run() as building:
        build_sources(building)
    world.merge("nameplates")
    tables = {name: str(world.path / name) for name in TABLES}
    last = {name: DeltaTable(path).version() for name, path in tables.items()}
    versions = [*last.items(), *(("nameplates", version) for version in range(last["nameplates"]))]
    read = {(name, version): str(tmp_path / f"{name}-{version}") for name, version in versions}
    done = run(
        folder / "venv" / "bin" / "python",
        "-c",
        READ_BY_DELTA,
        folder / "ivy",
        json.dumps([(tables[name], version, path) for (name, version), path in read.items()]),
        variables=SPARK_VARIABLES,
        bound=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    for (name, version), path in read.items():
        ours, theirs = DeltaTable(tables[name], version=version).to_pyarrow_table(), pq.read_table(path)
        assert in_order(plain(theirs)) == in_order(plain(ours)), (name, version)
    assert [name for name in TABLES if not world.rows(name)] == ["quarantine"]
