"""The folder of a lake: who may write to it, what is no lake, and what is said of a damaged one or of a full disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import restante.pipeline
from restante.common import lock_file
from restante.common.errors import InUse, Misuse, RestanteError, StoreError
from restante.pipeline import views
from restante.pipeline.lake import staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import TableState
from restante.pipeline.lake.lake import LOCK_FILE, Lake
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.errors import SparkError
from support.disk import no_file_beyond
from support.pipeline.lakes import LETTERS, add, frame, held, info, infos, letter, opened, put, seen, stored

ONE_SENTENCE = r"\A\S[^\n]+\Z"


def make(path: Path) -> Path:
    with Lake.open(path, write=True, make=True):
        return path


def test_a_lake_is_made_once_even_after_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lake"
    path.mkdir(parents=True)
    (path / "lock").touch()
    (path / "lake.json.x81").touch()
    make(path)
    made = (path / "lake.json").stat()
    make(path)
    assert (path / "lake.json").stat() == made
    make(tmp_path / "deeper" / "lake")


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "lock").unlink()
    before = sorted(tmp_path.rglob("*"))
    with Lake.open(tmp_path, write=False) as lake:
        table = lake.table(LETTERS)
        assert (table.version, table.current_commit, table.state, table.files()) == (None, None, TableState(), [])
        assert lake.tables() == []
    assert restante.pipeline.files(tmp_path, "nameplates") == []
    with Lake.open(tmp_path / "other", write=False, make=True) as planned:
        assert planned.table(LETTERS).version is None
    assert sorted(tmp_path.rglob("*")) == before


def test_one_run_writes_others_are_refused_and_a_reader_sees_it_and_takes_no_lock(tmp_path: Path) -> None:
    lake = make(tmp_path / "lake")
    with Lake.open(lake, write=False) as reader:
        assert not reader.is_written_by_another()
        with Lake.open(lake, write=True) as own:
            assert reader.is_written_by_another()
            assert not own.is_written_by_another()
            with pytest.raises(InUse, match=ONE_SENTENCE) as refused, Lake.open(lake, write=True):
                pass
            assert "wait until it is done" in str(refused.value)
            (lake / LOCK_FILE).unlink()  # the folder stays locked
            assert reader.is_written_by_another()
            with pytest.raises(InUse, match="wait until it is done"), Lake.open(lake, write=True):
                pass
        (lake / LOCK_FILE).touch()
        before = lake.stat().st_mtime_ns, (lake / LOCK_FILE).stat().st_mtime_ns
        # A lock that is held for a moment would make a writer fail.
        with patch.multiple(fcntl, flock=pytest.fail, lockf=pytest.fail, fcntl=pytest.fail):
            assert not reader.is_written_by_another()
        assert (lake.stat().st_mtime_ns, (lake / LOCK_FILE).stat().st_mtime_ns) == before
        with patch.object(lock_file, "LOCKS", tmp_path / "none"), Lake.open(lake, write=True):
            assert not reader.is_written_by_another(), "the system does not tell"
        (lake / LOCK_FILE).unlink()
        assert not reader.is_written_by_another()
        assert not (lake / LOCK_FILE).exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "damaged"),
        ('{"format": "1"}', "damaged"),
        ("{}", "damaged"),
        ('{"format": 7, "anything": ["else"]}', "newer version of Restante"),
        ('{"format": 5}', "name a new folder with --lake, and run ingest and build again"),
    ],
)
def test_a_lake_that_cannot_be_understood_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    make(tmp_path)
    (tmp_path / "lake.json").write_text(content)
    for write in (False, True, True):  # the lock does not outlive an error
        with pytest.raises(RestanteError, match=ONE_SENTENCE) as refused, Lake.open(tmp_path, write=write):
            pass
        assert sentence in str(refused.value)
        assert str(tmp_path) in str(refused.value)


def test_a_folder_that_is_no_lake_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full" / "of").mkdir(parents=True)
    write_deltalake(tmp_path / "foreign", pa.table({"x": [1]}))
    write_deltalake(make(tmp_path / "lake") / "letters", pa.table({"x": [1]}))
    before = sorted(tmp_path.rglob("*"))
    for name, make_it, sentence in (
        ("file", True, "is not a folder"),
        ("file/within", False, "file is not a folder"),
        ("full", True, "contains other files, such as of"),
        ("full", False, "there is no lake"),
        ("nowhere", False, "there is no lake"),
        ("foreign", False, "is a Delta table"),
        ("foreign/_delta_log/x", True, "is a Delta table"),
        ("lake/letters", True, "is a Delta table"),
    ):
        opening = Lake.open(tmp_path / name, write=make_it, make=make_it)
        with pytest.raises(RestanteError, match=ONE_SENTENCE) as refused, opening:
            pass
        assert sentence in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        (Path("s3://bucket/lake"), "--lake s3:/bucket/lake: write a URL with two slashes"),
        ("file:///lake", "--lake file:///lake: name a folder, or a URL with s3://, s3a://, gs://"),
        ("s3://canary:canary@bucket/lake", r"--lake s3://\*\*\*@bucket/lake: leave out what is no part of a path"),
        ("abfss://container:canary@account/lake", r"--lake abfss://\*\*\*@account/lake: leave out"),
        ("s3://bucket/lake?key=canary", "--lake s3://bucket/lake: leave out"),
        ("gs://bucket/a=b", "--lake gs://bucket/a=b: other programs misread '=' in a URL"),
    ],
)
def test_an_address_of_no_lake_is_refused_and_no_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: Path | str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match=sentence) as refused:
        Lake.open(address, write=True, make=True).__enter__()
    assert "canary" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("character", "*?[]{}\\%=\n\x7f")
def test_a_path_that_other_programs_misread_is_refused(tmp_path: Path, character: str) -> None:
    with pytest.raises(Misuse, match="must not contain"):
        make(tmp_path / f"a{character}b" / "lake")
    assert not list(tmp_path.iterdir())


def test_the_error_for_an_unknown_table_lists_all_tables(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("NAMEPLATES", "", "..", "nameplates/_delta_log"):
        with pytest.raises(Misuse, match=r"there are addresses, archived, .*nameplates"):
            restante.pipeline.files(tmp_path, name)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    path = tmp_path / "lake"
    with opened(path) as table:
        add(table, [letter(1)], run="first")
        add(table, [letter(2)], run="second")
    return path


def log(lake: Path, version: int) -> Path:
    return lake / "letters" / "_delta_log" / f"{version:020}.json"


def spoil_a_checkpoint(lake: Path) -> None:
    DeltaTable(lake / "letters").create_checkpoint()
    for path in log(lake, 0).parent.glob("*.parquet"):
        path.write_bytes(b"PAR1")


def put_a_file_for_the_log(lake: Path) -> None:
    log(lake, 0).parent.rename(lake / "letters" / "away")
    log(lake, 0).parent.write_text("")


@pytest.mark.parametrize(
    "damage",
    [
        lambda lake: log(lake, 1).write_bytes(log(lake, 1).read_bytes()[:200]),
        lambda lake: log(lake, 0).unlink(),
        lambda lake: log(lake, 0).write_bytes(b""),
        lambda lake: log(lake, 1).rename(log(lake, 2)),
        spoil_a_checkpoint,
        put_a_file_for_the_log,
    ],
)
def test_a_damaged_log_is_reported(lake: Path, damage: Callable[[Path], None]) -> None:
    damage(lake)
    with pytest.raises(StoreError, match=ONE_SENTENCE) as refused:
        seen(lake)
    assert f"the lake is damaged: {lake}/letters/_delta_log cannot be read" in str(refused.value)
    assert "restore it from a backup" in str(refused.value)


def test_damage_that_only_commit_infos_show_is_reported(lake: Path) -> None:
    log(lake, 1).write_bytes(log(lake, 1).read_bytes().replace(b'"second"', b"17"))
    with pytest.raises(StoreError, match=rf"\A\S[^\n]+{log(lake, 1)} cannot be read[^\n]*\Z"):
        _ = seen(lake).state
    table = seen(lake)
    log(lake, 1).unlink()
    with pytest.raises(StoreError, match="No such file or directory"):
        _ = table.state


def test_an_empty_last_version_is_a_commit_that_was_not_reported(lake: Path) -> None:
    """A power cut may leave the name of a file whose bytes it took."""
    log(lake, 2).write_bytes(b"")
    assert stored(lake) == [letter(1), letter(2)]
    assert [commit.run for commit in infos(seen(lake))] == ["second", "first"]
    assert put(lake, [letter(3)]) == 3
    assert stored(lake) == [letter(1), letter(2), letter(3)]


def test_a_table_of_a_newer_protocol_is_refused(lake: Path) -> None:
    log(lake, 0).write_text(log(lake, 0).read_text().replace('"minReaderVersion":1', '"minReaderVersion":2'))
    with pytest.raises(Misuse, match="features of Delta tables that Restante cannot read"):
        seen(lake)
    log(lake, 0).write_text(log(lake, 0).read_text().replace('"minReaderVersion":2', '"minReaderVersion":9'))
    with pytest.raises(StoreError, match="Unsupported minimum reader version 9"):
        seen(lake)


def test_a_missing_file_is_reported_to_every_reader_and_its_day_can_be_built_again(lake: Path) -> None:
    gone = seen(lake).files()[0].path
    gone.unlink()
    with pytest.raises(StoreError, match=rf"\Athe lake is damaged: {gone} cannot be read .it is missing.[^\n]*\Z"):
        seen(lake).read(cast(SparkSession, None))  # Spark is not asked for anything
    with pytest.raises(StoreError, match="is missing"):
        views.view_statement(seen(lake))
    put(lake, [letter(1), letter(2)], replace={"day": {"2026-11-01"}})
    assert stored(lake) == [letter(1), letter(2)]


def test_a_commit_without_room_is_reported_and_changes_nothing(lake: Path) -> None:
    with opened(lake) as table:
        staged = table.stage(held([letter(3)]))
        with no_file_beyond(100), pytest.raises(StoreError) as refused:
            table.commit([staged], info=info())
        assert str(refused.value) == f"cannot commit to {lake}/letters: File too large; this commit was not made"
        assert table.version == 1
        assert stored(lake) == [letter(1), letter(2)]
        assert add(table, [letter(4)]) == 2
    assert stored(lake) == [letter(1), letter(2), letter(4)]


def test_a_lake_is_not_half_created_without_room(tmp_path: Path) -> None:
    with no_file_beyond(3), pytest.raises(StoreError):
        make(tmp_path / "lake")
    make(tmp_path / "lake")


def test_a_commit_that_may_not_be_on_disk_is_reported(lake: Path) -> None:
    refused = OSError(5, os.strerror(5))
    with opened(lake) as table:
        staged = table.stage(held([letter(3)]))
        not_committed = pytest.raises(StoreError, match="Input/output error; these rows were not committed")
        with patch.object(staging, "flush", side_effect=refused), not_committed:
            table.commit([staged], info=info())
        assert seen(lake).version == 1
        unsure = pytest.raises(StoreError, match="it may not be on disk: Input/output error")
        with patch.object(lake_table, "flush", side_effect=refused), unsure:
            table.commit(info=info())


def test_a_failed_spark_job_is_reported_and_leaves_nothing(spark: SparkSession, lake: Path) -> None:
    third = frame(spark, [letter(3)])
    with opened(lake) as table:
        for fails, error, sentence in (
            (lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"), StoreError, rf"{lake}/letters[^\n]+\Z"),
            (lambda _: 1 // 0, SparkError, r"[^\n]+: ZeroDivisionError: [^\n]+\Z"),
            (lambda _: (_ for _ in ()).throw(ValueError("two\nlines")), SparkError, r"[^\n]+: ValueError: two"),
        ):
            begin = r"\Athe disk has no room for " if error is StoreError else r"\Athe rows for the table letters "
            with pytest.raises(error, match=begin + sentence):
                table.stage(third.withColumn("id", udf(fails, "BIGINT")("id")))
        small = small_jobs.session_for(spark, small_jobs.JobSize(0))
        full = rf"\Acannot write to {lake}/letters/[^\n]+: File too large; these rows were not committed\Z"
        with no_file_beyond(100), pytest.raises(StoreError, match=full):
            table.stage(frame(small, [letter(3)]))
        assert not list((lake / "letters").glob("run-*"))
    with opened(lake, LETTERS._replace(name="other")) as table:
        (lake / "other").write_text("")
        sentence = rf"cannot write to {lake}/other: Not a directory; these rows were not committed"
        with pytest.raises(StoreError, match=sentence):
            table.stage(third)
