"""A lake at a URL: in a quick run a folder by its URL, which needs no connector; else a bucket and an HDFS, too."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from restante.common.errors import InUse, Misuse, StoreError
from restante.pipeline import views
from restante.pipeline.lake import columns, delta_table, staging, url_path
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.data_files import partition_folder
from restante.pipeline.lake.lake import CredentialsRefused, Lake
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import UrlPath
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import NAMEPLATES, Table
from support.hdfs import hdfs
from support.pipeline import lakes
from support.pipeline.lakes import LETTERS, MONTHLY_LETTERS, Row, info, letter, rows
from support.pipeline.runs import command
from support.pipeline.tables import dicts
from support.pipeline.tables import rows as filled
from support.s3 import s3_bucket
from support.tools import MissingError

LATER: Final = 4e9
"""A time long after the files were written."""

LEFTOVERS: Final = (
    "day=2026-11-01/source=main/hour=__HIVE_DEFAULT_PARTITION__/part.parquet",
    "_temporary/0/task/part.parquet",
    "_temporary/0/mark",
)


@pytest.fixture
def folder_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder: Spark has a connector for it."""
    monkeypatch.setattr(url_path, "SCHEMES", ("file",))
    (tmp_path / "lake").mkdir()
    return (tmp_path / "lake").as_uri()


THOROUGH_HDFS: Final = pytest.param("HDFS", marks=pytest.mark.thorough)


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an HDFS."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(hdfs(tmp_path_factory.mktemp("hdfs")))
        except MissingError as missing:
            pytest.skip(str(missing))
        yield url


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.thorough), THOROUGH_HDFS])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a lake that does not exist."""
    if request.param == "folder":
        yield request.getfixturevalue("folder_url")
        return
    if request.param == "HDFS":
        yield f"{request.getfixturevalue('hadoop')}/{uuid.uuid4()}"
        return
    with ExitStack() as stack:
        use_bucket(stack, monkeypatch)
        yield "s3://lakes/lake"


def use_bucket(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    try:
        variables = stack.enter_context(s3_bucket("lakes", **options))
    except MissingError as missing:
        pytest.skip(str(missing))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def put(table: LakeTable, *letters: Row, **fields: Any) -> int:
    """Commit rows of one partition without Spark."""
    replace = fields.pop("replace", None)
    return table.commit([staged(table, *letters)], info=info(**fields), replace=replace)


def staged(table: LakeTable, *letters: Row) -> StagedFiles:
    schema = columns.file_schema(table.table)
    first = {**letters[0], "month": letters[0]["day"].replace(day=1)}
    partition = {name: None if first[name] is None else str(first[name]) for name in table.table.partitions}
    job = table.job_folder()
    path = job / partition_folder(partition.items()) / "part.parquet"
    return StagedFiles(job, (staging.write_file(path, partition, schema, _batches(letters, schema)),))


def _batches(letters: tuple[Row, ...], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(list(letters), schema).to_batches()
    return batches


def stored(url: str, table: Table = LETTERS) -> list[int]:
    """Return the ids of the rows that Delta's own reader sees, and ours."""
    with Lake.open(url, write=False) as lake:
        theirs = DeltaTable(f"{url}/{table.name}").to_pyarrow_table().column("id").to_pylist()
        lake_table = lake.table(table)
        assert sorted(lake_table.dataset().to_table().column("id").to_pylist()) == sorted(theirs)
        assert sum(file.rows for file in lake_table.files()) == len(theirs)
        return sorted(theirs)


def objects(url: str) -> set[str]:
    return {str(file) for file in UrlPath(url).files()}


def test_a_lake_at_a_url_is_made_once_and_its_rows_are_read(url: str) -> None:
    with pytest.raises(Misuse, match="there is no lake in"), Lake.open(url, write=True):
        pass
    other = UrlPath(url) / "notes.txt"
    other.write_bytes(b"somebody's")
    with pytest.raises(Misuse, match="contains other files, such as notes"), Lake.open(url, write=True, make=True):
        pass
    other.unlink()
    (UrlPath(url) / "lake.json.probe-0" / "0.json").write_bytes(b"of a run that makes the lake at the same time")
    with Lake.open(url, write=True, make=True) as lake:
        assert lake.tables() == []
        table = lake.table(LETTERS)
        put(table, letter(1), letter(2), source="main", ledger=Ledger(read=2), marks={"": Mark(2, "a", 1, "b")})
        put(table, letter(3, source="a b%'\u2603"))
    with Lake.open(url, write=False) as lake:
        assert (lake.tables(), lake.is_written_by_another()) == (["letters"], False)
        table = lake.table(LETTERS)
        assert (table.version, table.marks("main")) == (1, {"": Mark(2, "a", 1, "b")})
        assert [file.partition["source"] for file in table.files({"source": {"main"}})] == ["main"]
    assert stored(url) == [1, 2, 3]
    assert [name for name in objects(url) if "probe" in name] == [f"{url}/lake.json.probe-0/0.json"]


def test_of_two_runs_the_second_one_to_commit_ends_and_its_files_are_removed(url: str) -> None:
    with Lake.open(url, write=True, make=True) as first, Lake.open(url, write=True) as second:
        for number in range(2):
            ours, theirs = first.table(LETTERS), second.table(LETTERS)
            put(ours, letter(number))
            before = objects(url)
            with pytest.raises(InUse, match=r"another run committed to .*/letters first, .* run this again"):
                put(theirs, letter(5), replace={} if number else None)
            assert objects(url) == before
    assert stored(url) == [0, 1]


@pytest.mark.parametrize("error", [OSError("the answer was lost"), CommitFailedError("version exists")])
def test_a_commit_whose_answer_was_lost_is_made(url: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may have made the object, and then its client tries again and is refused."""
    append = delta_table.append_commit

    def lose(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        raise error

    monkeypatch.setattr(delta_table, "append_commit", lose)
    with Lake.open(url, write=True, make=True) as lake:
        assert [put(lake.table(LETTERS), letter(number)) for number in range(2)] == [0, 1]
    assert stored(url) == [0, 1]


def test_an_error_without_a_commit_names_no_signature(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lake.open(url, write=True, make=True) as lake:
        table = lake.table(LETTERS)
        put(table, letter(1))
        failure = OSError(
            "Generic S3 error\n  ↳ Error performing PUT https://host/x?sig=canary in 1 s\n  ↳ Forbidden"
        )
        monkeypatch.setattr(delta_table, "append_commit", Mock(side_effect=failure))
        with pytest.raises(StoreError, match="Generic S3 error: Forbidden; this commit was not made") as refused:
            put(table, letter(2))
    assert "canary" not in str(refused.value)
    assert stored(url) == [1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Generic S3 error\n  \u21b3 <Error><Code>ExpiredToken</Code><Message>It has.</Message></Error>",
            "ExpiredToken",
        ),
        ("Error performing PUT https://host/x in 1 s\n  \u21b3 403 Forbidden\n  \u21b3 <html>", "403 Forbidden"),
        ("S3Exception: Forbidden (Service: S3, Status Code: 403, Request ID: 1)", "Status Code: 403"),
    ],
)
def test_refused_credentials_are_one_error(url: str, text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = rf"^the store of {url} refused the credentials \({reason}\): [^;]* run this again$"
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(CredentialsRefused, match=sentence))
        lake = stack.enter_context(Lake.open(url, write=True, make=True))
        put(lake.table(LETTERS), letter(1))
        monkeypatch.setattr(delta_table, "append_commit", Mock(side_effect=OSError(text)))
        put(lake.table(LETTERS), letter(2))
    assert stored(url) == [1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "moment",
    ["probe", r"PUT .*/lake\.json", "PUT .*/run=", "GET .*/run=", r"PUT .*/_delta_log/0*1\.json", "PUT .*/rest-"],
)
def test_after_credentials_expired_the_next_run_does_the_rest(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_missing(url: str) -> None:
        with Lake.open(url, write=True, make=True) as lake:
            for number in range(3):
                table = lake.table(MONTHLY_LETTERS)
                if table.version is None or table.version < number:
                    put(table, letter(number), letter(9, source=str(number)), replace={"source": {str(number - 1)}})

    with ExitStack() as stack:
        use_bucket(stack, monkeypatch, expires=moment)
        with pytest.raises(CredentialsRefused, match=r"^the store of s3://lakes/lake refused .* run this again(;|$)"):
            write_missing("s3://lakes/lake")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        write_missing("s3://lakes/lake")
        assert stored("s3://lakes/lake", MONTHLY_LETTERS) == [0, 1, 2, 9]


def test_rows_within_files_are_replaced_merged_and_dropped(url: str) -> None:
    with Lake.open(url, write=True, make=True) as lake:
        table = lake.table(MONTHLY_LETTERS)
        put(table, letter(1, "2026-11-01"), letter(2, "2026-11-01", "b"), letter(3, "2026-11-02"))
        put(table, letter(4, "2026-11-01"), replace={"day": {"2026-11-01"}, "source": {"main"}})
        assert stored(url, MONTHLY_LETTERS) == [2, 3, 4]
        assert len(table.files()) == 2
        assert len(compact(table, "merge", lambda: 1e9)) == 1
        [merged] = table.files()
        assert merged.rows == 3
        assert stored(url, MONTHLY_LETTERS) == [2, 3, 4]
        assert table.drop_before("2026-11-02", info()) == 2
        assert stored(url, MONTHLY_LETTERS) == [3]
        assert table.state.kept == "2026-11-02"


def test_vacuum_removes_what_killed_runs_left_and_nothing_that_is_young(url: str) -> None:
    with Lake.open(url, write=True, make=True) as lake:
        table = lake.table(LETTERS)
        put(table, letter(1), finished=1e9)
        put(table, letter(2), replace={}, finished=1e9)
        kept = objects(url)
        leftover = staged(table, letter(3)).folder
        assert isinstance(leftover, UrlPath)
        (leftover / "_temporary" / "0" / "task" / "part.parquet").write_bytes(b"PAR1")
        (leftover / "_temporary" / "0" / "mark").write_bytes(b"x")
        written = max(file.stat().st_mtime for file in leftover.files())
        young = vacuum(table, grace=3600, now=written + 3500)
        [old] = [file.path for file in young]
        removed = vacuum(table, grace=3600, now=LATER)
        assert {str(file.path) for file in removed} == {str(leftover / path) for path in LEFTOVERS}
        assert objects(url) == kept - {str(old)}
    assert stored(url) == [2]


def test_vacuum_keeps_the_log_of_a_table_at_a_url(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    with Lake.open(url, write=True, make=True) as lake:
        for number in (1, 2, 3):
            put(lake.table(LETTERS), letter(number), replace={}, finished=1e9)
        log = {path for path in objects(url) if "/_delta_log/" in path}
        assert any(path.endswith(".checkpoint.parquet") for path in log)
        assert len(vacuum(lake.table(LETTERS), grace=3600, now=LATER)) == 2
        assert {path for path in objects(url) if "/_delta_log/" in path} == log
    assert stored(url) == [3]


def test_polars_reads_a_table_at_a_url_with_pyarrow(folder_url: str, tmp_path: Path) -> None:
    import polars as pl

    with Lake.open(folder_url, write=True, make=True) as lake:
        put(lake.table(LETTERS), letter(1), letter(2, hour=3))
    letters = pl.scan_delta(str(tmp_path / "lake" / "letters"), use_pyarrow=True)
    assert letters.select("id").collect()["id"].sort().to_list() == [1, 2]


def test_vacuum_keeps_the_files_of_a_table_at_a_url_whose_log_is_lost(folder_url: str) -> None:
    with Lake.open(folder_url, write=True, make=True) as lake:
        put(lake.table(LETTERS), letter(1))
        (UrlPath(folder_url) / "letters" / "_delta_log").remove_all()
        files = objects(folder_url)
        assert vacuum(lake.table(LETTERS), grace=3600, now=LATER) == []
    assert objects(folder_url) == files


def test_vacuum_removes_what_a_run_left_that_was_killed_while_it_tried_the_store(folder_url: str) -> None:
    with Lake.open(folder_url, write=True, make=True):
        pass
    young, old = (UrlPath(folder_url) / f"lake.json.probe-{name}" / "_delta_log" / "0.json" for name in "ab")
    for file in (young, old):
        file.write_bytes(b"{}")
    day_ago = time.time() - 24 * 3600
    os.utime(str(old).removeprefix("file://"), (day_ago, day_ago))
    assert command("vacuum", "--lake", folder_url, "--plan").stdout == "1 file to remove, 2 bytes\n"
    assert command("vacuum", "--lake", folder_url).stdout == "1 file removed, 2 bytes\n"
    assert objects(folder_url) == {str(young), f"{folder_url}/lake.json"}


def test_a_query_of_a_lake_at_a_url_reads_it_with_delta_rs(url: str, tmp_path: Path) -> None:
    with Lake.open(url, write=True, make=True) as lake:
        put(lake.table(NAMEPLATES), *dicts("nameplates", filled("nameplates", [{"id": 1}, {"id": 2}])))
    done = command("query", "--lake", url, "--format", "csv", "SELECT id, source FROM nameplates ORDER BY id DESC")
    assert done.stdout.split() == ["id,source", "2,main", "1,main"]
    sql = command("sql", "--lake", url).stdout
    assert f"    '{url}/nameplates/run=" in sql
    refused = command("query", "--lake", url, f"SELECT * FROM read_text('{url}/lake.json')", ends=2)
    assert "cannot be run" in refused.stderr
    for file in UrlPath(url).files():
        if file.name.endswith(".parquet"):
            file.write_bytes(b"PAR1")
    damaged = command("query", "--lake", url, "SELECT sum(id) FROM nameplates", ends=1)
    assert re.match(f"restante: cannot read the lake {url} .* or restore the file\n$", damaged.stderr)


def test_a_store_whose_commits_may_overwrite_others_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(Misuse, match="AWS_S3_ALLOW_UNSAFE_RENAME is set"), Lake.open(url, write=True, make=True):
        pass
    monkeypatch.delenv("AWS_S3_ALLOW_UNSAFE_RENAME")
    # One thread is done before the other looks. Then both make the same table.
    outcomes = [None, DeltaError("a table already exists"), None, None]
    monkeypatch.setattr(DeltaTable, "create", Mock(side_effect=outcomes))
    with pytest.raises(Misuse, match="asked not to"), Lake.open(url, write=True, make=True):
        pass
    assert objects(url) == set()


@pytest.mark.thorough
def test_a_run_leaves_no_folder_of_what_it_tried_on_hdfs(hadoop: str) -> None:
    with Lake.open(f"{hadoop}/lake", write=True, make=True):
        assert UrlPath(f"{hadoop}/lake").names() == ["lake.json"]


@pytest.mark.thorough
def test_a_bucket_without_conditional_puts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        use_bucket(stack, monkeypatch, conditional=False)
        with pytest.raises(Misuse, match=r"the store of s3://lakes/lake writes over an object .*\(If-None-Match\)"):
            Lake.open("s3://lakes/lake", write=True, make=True).__enter__()
        assert objects("s3://lakes/lake") == set()


@pytest.mark.parametrize("url", ["folder", THOROUGH_HDFS], indirect=True)
def test_spark_writes_the_files_where_they_stay_and_reads_them_back(
    url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = ("2026-10-31", "2026-11-01", "2026-11-03")
    letters = [letter(n, days[n % 3], ["a", "b c%'"][n % 2], [None, 3][n % 2]) for n in range(40)]
    with Lake.open(url, write=True, make=True) as lake:
        for kind in (LETTERS, MONTHLY_LETTERS._replace(name="monthly")):
            table = lake.table(kind)
            spark_files = table.stage(lakes.frame(spark, letters, kind))
            ours = {
                (str(f.partition), f.rows, f.ranges["id"])
                for f in (staged(table, *part).files[0] for part in parts(kind, letters))
            }
            assert {(str(f.partition), f.rows, f.ranges["id"]) for f in spark_files.files} == ours
            assert table.commit([spark_files], info=info()) == 0
            assert rows(table.read(spark).toArrow()) == rows(pa.Table.from_pylist(letters, lakes.arrow(kind)))
            one = table.read(spark, {"source": {"a"}, "day": {days[0]}})
            assert sorted(row.id for row in one.collect()) == [n for n in range(40) if n % 6 == 0]
        before = objects(url)
        unnamed = [letter(1) | {"source": None}]
        schema = StructType([StructField(f.name, f.dataType) for f in columns.spark_schema(LETTERS).fields])
        bad = spark.createDataFrame([tuple(unnamed[0][name] for name in schema.names)], schema)
        with pytest.raises(StoreError, match="a row for the table letters has no source: these rows were not"):
            lake.table(LETTERS).stage(bad)
        empty = lake.table(LETTERS).stage(lakes.frame(spark, letters).where("false"))
        assert empty.rows == 0
        monkeypatch.setattr(staging, "_files_read_back", lambda *_: iter(spark_files.files[:1]))
        with pytest.raises(StoreError, match=r"of 40 rows that Spark wrote to \S+ it reads \d+: these rows were not"):
            lake.table(LETTERS).stage(lakes.frame(spark, letters))
        assert objects(url) == before


def parts(kind: Table, letters: list[Row]) -> list[list[Row]]:
    def key(row: Row) -> str:
        return str([row["day"].month] if kind.by_month else [row[name] for name in kind.partitions])

    return [list(part) for _, part in groupby(sorted(letters, key=key), key)]


def test_a_lake_that_was_moved_is_read_and_written_where_it_is(
    folder_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    url = folder_url
    here = tmp_path / "folder"
    lakes.put(here, [letter(1), letter(2, "2026-11-02")])
    shutil.copytree(here, tmp_path / "lake", dirs_exist_ok=True)
    with Lake.open(url, write=True) as lake:
        put(lake.table(LETTERS), letter(3))
        assert rows(lake.table(LETTERS).read(spark).toArrow()) == rows(whole(1, 2, 3))
    assert stored(url) == [1, 2, 3]
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "lake", here)
    lakes.put(here, [letter(4)], replace={"day": {"2026-11-02"}})
    table = lakes.seen(here)
    assert rows(table.read(spark).toArrow()) == rows(whole(1, 3, 4))
    with duckdb.connect() as database:
        database.execute(views.view_statement(table))
        assert database.execute("SELECT id, source FROM letters ORDER BY id").fetchall() == [
            (number, "main") for number in (1, 3, 4)
        ]
    with lakes.opened(here) as ours:
        assert vacuum(ours, grace=0, now=LATER) != []
    assert rows(lakes.seen(here).read(spark).toArrow()) == rows(whole(1, 3, 4))


def whole(*numbers: int) -> pa.Table:
    letters = [letter(number, "2026-11-02") if number == 2 else letter(number) for number in numbers]
    return pa.Table.from_pylist(letters, lakes.arrow(LETTERS))
