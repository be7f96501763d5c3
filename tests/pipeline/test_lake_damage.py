"""What goes wrong with a lake's disk is told in one sentence, and harms nothing that was there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import restante.pipeline
from restante.common.errors import Misuse, StoreError
from restante.pipeline import views
from restante.pipeline.lake import staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.lake import Lake
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.spark.errors import SparkError
from support.disk import no_file_beyond
from support.pipeline.lakes import LETTERS, add, frame, held, info, infos, letter, opened, seen, stored

ONE_SENTENCE: Final = r"\A\S[^\n]+\Z"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake with two commits, and a checkpoint after them."""
    path = tmp_path / "lake"
    with opened(path) as table:
        add(table, [letter(1)], run="first")
        add(table, [letter(2)], run="second")
    return path


def log(lake: Path, version: int) -> Path:
    return lake / "letters" / "_delta_log" / f"{version:020}.json"


def lose_one_between(lake: Path) -> None:
    with opened(lake) as table:
        table.commit(info=info())
    log(lake, 1).unlink()


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
        lambda lake: log(lake, 1).write_bytes(b"\xff\x00 nothing of ours"),
        lambda lake: log(lake, 0).unlink(),
        lambda lake: log(lake, 0).write_bytes(b""),
        lose_one_between,
        spoil_a_checkpoint,
        put_a_file_for_the_log,
    ],
)
def test_a_damaged_log_is_reported(lake: Path, damage: Callable[[Path], None]) -> None:
    damage(lake)
    with pytest.raises(StoreError, match=ONE_SENTENCE) as told:
        seen(lake)
    assert f"the lake is damaged: {lake}/letters/_delta_log cannot be read" in str(told.value)
    assert "restore it from a backup" in str(told.value)


def test_damage_that_only_commit_infos_show_is_reported(lake: Path) -> None:
    log(lake, 1).write_bytes(log(lake, 1).read_bytes().replace(b'"second"', b"17"))
    with pytest.raises(StoreError, match=ONE_SENTENCE) as told:
        _ = seen(lake).state
    assert f"{log(lake, 1)} cannot be read" in str(told.value)
    table = seen(lake)
    log(lake, 1).unlink()
    with pytest.raises(StoreError, match="No such file or directory"):
        _ = table.state


def test_an_empty_last_version_is_a_commit_that_was_not_reported(lake: Path) -> None:
    """A power cut may leave the name of a file whose bytes it took."""
    log(lake, 2).write_bytes(b"")
    assert stored(lake) == [letter(1), letter(2)]
    assert [each.run for each in infos(seen(lake))] == ["second", "first"]
    with opened(lake) as table:
        assert add(table, [letter(3)]) == 3
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
    words = f"the lake is damaged: {gone} is missing"
    with pytest.raises(StoreError, match=ONE_SENTENCE) as told:
        seen(lake).read(cast(SparkSession, None))  # Spark is not asked for anything
    assert words in str(told.value)
    with pytest.raises(StoreError, match="is missing"):
        views.view(seen(lake))
    (lake / "letters").rename(lake / "nameplates")
    with Lake.open(lake, write=False) as there, pytest.raises(Misuse, match="other columns"):
        there.table(NAMEPLATES)
    with pytest.raises(Misuse, match="other columns"):
        restante.pipeline.files(lake, "nameplates")
    (lake / "nameplates").rename(lake / "letters")
    with opened(lake) as table:
        add(table, [letter(1), letter(2)], replace={"day": {"2026-11-01"}})
    assert stored(lake) == [letter(1), letter(2)]


def test_a_commit_without_room_is_reported_and_changes_nothing(lake: Path) -> None:
    with opened(lake) as table:
        staged = table.stage(held([letter(3)]))
        with no_file_beyond(100), pytest.raises(StoreError, match=ONE_SENTENCE) as told:
            table.commit([staged], info=info())
        assert str(told.value) == f"cannot commit to {lake}/letters: File too large; this commit was not made"
        assert table.version == 1
        assert stored(lake) == [letter(1), letter(2)]
        assert add(table, [letter(4)]) == 2
    assert stored(lake) == [letter(1), letter(2), letter(4)]


def test_an_error_names_what_was_committed_before_it(tmp_path: Path) -> None:
    def made(*sources: str) -> None:
        with Lake.open(tmp_path / "lake", write=True, make=True) as there:
            for source in sources:
                add(there.table(LETTERS), [letter(1)], source=source)
            add(there.table(LETTERS._replace(name="other")), [letter(1)])
            with no_file_beyond(100):
                there.table(LETTERS).commit(info=info())

    with pytest.raises(StoreError, match=ONE_SENTENCE) as told:
        made("west", "main", "west")
    cause = f"cannot commit to {tmp_path}/lake/letters: File too large; this commit was not made"
    assert str(told.value) == f"{cause}; committed before it: letters (west, main), other"


def test_a_lake_is_not_half_created_without_room(tmp_path: Path) -> None:
    with no_file_beyond(3), pytest.raises(StoreError), Lake.open(tmp_path / "lake", write=True, make=True):
        pass
    with Lake.open(tmp_path / "lake", write=True, make=True):
        pass


def test_a_commit_that_may_not_be_on_disk_is_reported(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, os.strerror(5))

    with opened(lake) as table:
        staged = table.stage(held([letter(3)]))
        with monkeypatch.context() as patch:
            patch.setattr(staging, "flush", refuse)
            with pytest.raises(StoreError, match="Input/output error; these rows were not committed"):
                table.commit([staged], info=info())
        assert seen(lake).version == 1
        with monkeypatch.context() as patch:
            patch.setattr(lake_table, "flush", refuse)
            with pytest.raises(StoreError, match="it may not be on disk: Input/output error"):
                table.commit(info=info())


def test_a_failed_spark_job_is_reported_and_leaves_nothing(spark: SparkSession, lake: Path) -> None:
    given = frame(spark, [letter(3)])
    full = given.withColumn("id", udf(lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"), "BIGINT")("id"))
    lines = given.withColumn("id", udf(lambda _: (_ for _ in ()).throw(ValueError("two\nlines")), "BIGINT")("id"))
    wrong = given.withColumn("id", udf(lambda _: 1 // 0, "BIGINT")("id"))
    with opened(lake) as table:
        with pytest.raises(StoreError, match=rf"\Athe disk has no room for {lake}/letters[^\n]+\Z"):
            table.stage(full)
        with pytest.raises(SparkError, match=r"\Athe rows for the table letters [^\n]+: ZeroDivisionError: [^\n]+\Z"):
            table.stage(wrong)
        with pytest.raises(SparkError, match=r"\Athe rows for the table letters [^\n]+: ValueError: two"):
            table.stage(lines)
        assert not list((lake / "letters").glob("run-*"))
    with opened(lake, LETTERS._replace(name="other")) as table:
        (lake / "other").write_text("")
        with pytest.raises(
            StoreError, match=rf"cannot write to {lake}/other: Not a directory; these rows were not committed"
        ):
            table.stage(given)
