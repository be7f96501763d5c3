from __future__ import annotations

import json
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties
from msgspec.structs import replace
from pyspark.sql import SparkSession

from restante.common.errors import Misuse, StoreError
from restante.pipeline.lake import columns, delta_log, delta_table
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import CommitInfo, Ledger, Mark, Point
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import Column, Table
from restante.pipeline.spark.errors import SparkError
from support.pipeline.lakes import (
    LATER_LETTERS,
    LETTERS,
    Row,
    add,
    arrow,
    by_spark,
    contents,
    frame,
    held,
    info,
    infos,
    letter,
    opened,
    rows,
    seen,
    stored,
)


def foreign(*rows: Row) -> pa.Table:
    """Return rows to another program that writes to the lake."""
    return pa.Table.from_pylist(list(rows), arrow(LETTERS))


def test_a_first_commit_makes_the_table_with_its_rows_commit_info_and_transactions(tmp_path: Path) -> None:
    given = CommitInfo(
        run="r1",
        table="letters",
        finished=1_795_000_000.25,
        source="main",
        ledger=Ledger(read=4, clean=3, duplicate=1, counted=4, first=1, last=4),
        marks={"": Mark(4, "d4", 1, "d1")},
        inputs={"other": Point("id", 7, "abcd")},
    )
    with opened(tmp_path) as table:
        staged = table.stage(held([letter(1), letter(2), letter(3, day="2026-11-02", hour=4)]))
        assert (staged.rows, staged.days) == (3, {"2026-11-01", "2026-11-02"})
        assert seen(tmp_path).version is None
        assert table.commit([staged], info=given, transactions={"main": 4, "other": 2**40}) == 0
        assert table.version == 0
    there = seen(tmp_path)
    assert there.version == 0
    [found] = infos(there)
    days = ["2026-11-01", "2026-11-02"]
    assert found == replace(given, days=days, commit=found.commit, state=there.state)
    assert there.state.days() == set(days)
    assert there.marks("main") == {"": Mark(4, "d4", 1, "d1")}
    assert there.state.inputs == given.inputs
    assert [there.transaction(app) for app in ("main", "other", "none")] == [4, 2**40, None]
    assert stored(tmp_path) == [letter(1), letter(2), letter(3, day="2026-11-02", hour=4)]
    [log] = (tmp_path / "letters" / "_delta_log").iterdir()
    assert log.name == "00000000000000000000.json"


def comments(path: Path) -> dict[str, str]:
    """Return the comments of a table's columns, as other programs see them."""
    fields = json.loads(DeltaTable(path / "letters").schema().to_json())["fields"]
    return {field["name"]: field["metadata"].get("comment", "") for field in fields}


@pytest.mark.parametrize("metadata", [{}, {"comment": "of an older version"}])
def test_a_table_with_no_comments_or_others_is_read_and_written(
    metadata: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(table: Table) -> pa.Schema:
        return pa.schema([field.with_metadata(metadata) for field in schema(table)])

    schema = columns.stored
    with monkeypatch.context() as older:
        older.setattr(columns, "stored", before)
        with opened(tmp_path) as table:
            add(table, [letter(1)])
    assert set(comments(tmp_path).values()) == {metadata.get("comment", "")}
    with opened(tmp_path) as table:
        add(table, [letter(2)])
    assert stored(tmp_path) == [letter(1), letter(2)]


def test_a_table_that_has_no_commit_reads_as_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        empty = table.read(spark)
        assert (empty.count(), empty.columns) == (0, [column.name for column in LETTERS.columns])
        add(table, [letter(1)])
        assert table.read(spark, {"day": ()}).schema == table.read(spark).schema == empty.schema


def test_spark_stages_rows_and_reads_all_or_some_partitions(spark: SparkSession, tmp_path: Path) -> None:
    meant = [letter(1), letter(2, source="b"), letter(3, hour=7), letter(4, day="2026-11-02", hour=7)]
    with opened(tmp_path) as table:
        staged = table.stage(frame(spark, meant))
        assert (staged.rows, len(staged.files), staged.days) == (4, 4, {"2026-11-01", "2026-11-02"})
        nothing = table.stage(frame(spark, []))
        assert (nothing.rows, nothing.files) == (0, ())
        table.commit([staged, nothing], info=info())
    assert by_spark(spark, tmp_path) == stored(tmp_path) == meant
    assert by_spark(spark, tmp_path, {"hour": {None, "7"}, "source": ["main"]}) == [meant[0], *meant[2:]]


def test_rows_are_found_by_partition(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(2, source="b"), letter(3, hour=7), letter(4, day="2026-11-02", hour=7)])
    for where, ids in (
        ({}, [1, 2, 3, 4]),
        ({"day": {"2026-11-01"}}, [1, 2, 3]),
        ({"day": {"2026-11-01", "2026-11-02"}, "source": ["main"]}, [1, 3, 4]),
        ({"hour": {None}}, [1, 2]),
        ({"hour": {None, "7"}}, [1, 2, 3, 4]),
        ({"hour": {"7"}, "day": ["2026-11-02"]}, [4]),
        ({"day": {"2026-11-03"}}, []),
        ({"source": ()}, []),
    ):
        assert [row["id"] for row in stored(tmp_path, where)] == ids, where
        assert sum(file.rows for file in seen(tmp_path).files(where)) == len(ids)


def test_a_replaced_day_is_the_new_rows_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(2, source="b"), letter(3, day="2026-11-02")], run="r0")
        assert add(table, [letter(9)], replace={"day": {"2026-11-01"}}, run="r1") == 1
        assert stored(tmp_path) == [letter(3, day="2026-11-02"), letter(9)]
        add(table, [letter(8)], replace={"day": {"2026-11-02"}, "source": {"main"}}, run="r2")
        assert stored(tmp_path) == [letter(8), letter(9)]
        assert [(each.run, each.days) for each in infos(table)] == [
            ("r2", ["2026-11-01", "2026-11-02"]),  # it was the second that lost a row
            ("r1", ["2026-11-01"]),
            ("r0", ["2026-11-01", "2026-11-02"]),
        ]


def test_a_day_replaced_with_nothing_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(3, day="2026-11-02")])
        staged = table.stage(held([]))
        assert (staged.rows, staged.files, staged.days) == (0, (), set())
        table.commit([staged], info=info(), replace={"day": {"2026-11-01"}})
        assert stored(tmp_path) == [letter(3, day="2026-11-02")]
        table.commit(info=info(), replace={})
        assert stored(tmp_path) == []
        assert [each.days for each in infos(table)][:2] == [["2026-11-02"], ["2026-11-01"]]
        table.commit(info=info(), replace={"day": {"2026-11-01"}})  # there is no such day: that is well
        assert table.version == 3


def test_columns_are_found_by_name_and_rows_that_do_not_fit_are_not_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = frame(spark, [letter(1)])
    turned = given.selectExpr("'x' AS more", *reversed(given.columns)).withColumn("id", given["id"].cast("INT"))
    with opened(tmp_path) as table:
        staged = table.stage(turned)
        assert staged.rows == 1
        staged.discard()
        for unfit in (
            given.drop("seen"),
            given.drop("weight"),
            given.withColumn("size", given["table"]),
            given.selectExpr("*", "1 AS id"),
            given.withColumn("id", given["id"] + (2**63 - 1)),
        ):
            with pytest.raises(SparkError, match=r"\Athe rows for the table letters could not be computed: [^\n]+\Z"):
                table.stage(unfit)
        assert table.version is None
        assert not list((tmp_path / "letters").glob("*"))


def test_rows_without_a_value_that_the_table_needs_are_not_staged(spark: SparkSession, tmp_path: Path) -> None:
    def refused(column: str) -> AbstractContextManager[object]:
        return pytest.raises(
            StoreError, match=f"a row for the table letters has no {column}: these rows were not committed"
        )

    with opened(tmp_path) as table:
        for column in ("seen", "day", "source"):
            with refused(column):
                table.stage(held([letter(1), {**letter(2), column: None}]))
        with refused("seen"):
            table.stage(frame(spark, [letter(1), {**letter(2), "seen": None}]))
        assert table.version is None
        assert not list((tmp_path / "letters").glob("*"))


def test_a_concurrent_commit_of_another_program_is_kept_and_its_rows_are_replaced_too(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(2, day="2026-11-02")], run="ours")
        theirs = foreign(letter(3), letter(4, day="2026-11-02"))
        write_deltalake(tmp_path / "letters", theirs, mode="append", partition_by=list(LETTERS.partitions))
        assert add(table, [letter(9)], replace={"day": {"2026-11-01"}}, run="ours too") == 2
        assert stored(tmp_path) == [letter(2, day="2026-11-02"), letter(4, day="2026-11-02"), letter(9)]
        [_, between, _] = infos(table)
        assert (between.run, between.days) == ("", ["2026-11-01", "2026-11-02"])
        assert between.finished > 0


def test_endless_commits_of_another_program_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
        properly = delta_table.open_table
        theirs = foreign(letter(3))

        def interfere(folder: Path, meant: Table) -> DeltaTable | None:
            found = properly(folder, meant)
            write_deltalake(folder, theirs, mode="append", partition_by=list(LETTERS.partitions))
            return found

        monkeypatch.setattr(delta_table, "open_table", interfere)
        write_deltalake(tmp_path / "letters", theirs, mode="append", partition_by=list(LETTERS.partitions))
        with pytest.raises(StoreError, match="another program keeps changing"):
            table.commit(info=info())


def test_rewriting_rows_does_not_count_as_a_change_of_their_day(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
        add(table, [letter(2)])
        DeltaTable(tmp_path / "letters").optimize.compact()
    there = seen(tmp_path)
    assert (there.version, len(there.files())) == (2, 1)
    assert [each.run for each in infos(there)] == ["r", "r"]
    assert stored(tmp_path) == [letter(1), letter(2)]


def test_commit_infos_outlive_checkpoints_and_other_programs_that_clean_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 3)
    with opened(tmp_path) as table:
        add(table, [letter(1)], run="0", transactions={"a": 1})
        for number in range(1, 8):
            table.commit(info=info(str(number)), transactions={"a": number})
    log = tmp_path / "letters" / "_delta_log"
    assert sorted(path.name for path in log.glob("*.checkpoint.parquet")) == [
        f"{version:020}.checkpoint.parquet" for version in (3, 6)
    ]
    for path in log.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))  # long before what others keep
    theirs = DeltaTable(tmp_path / "letters")
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    theirs.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    there = seen(tmp_path)
    assert [each.run for each in infos(there)] == [str(number) for number in reversed(range(8))]
    assert there.transaction("a") == 7
    assert stored(tmp_path) == [letter(1)]


def test_log_entries_that_nobody_needs_are_removed_thirty_days_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 3)
    log = tmp_path / "letters" / "_delta_log"
    written = 1_000_000_000

    def there(kind: str) -> list[int]:
        return sorted(int(path.name[:20]) for path in log.glob(f"*.{kind}"))

    def commits(count: int, days: float, **fields: Any) -> None:
        """Commit so many times, this many days after the first commit."""
        for _ in range(count):
            version = table.commit(info=info(finished=written + days * 86400, **fields))
            for path in log.glob(f"{version:020}.*"):
                os.utime(path, (written + days * 86400,) * 2)

    with opened(tmp_path) as table:
        commits(2, 0, source="idle", ledger=Ledger(), marks={"": Mark(1, "a", 2, "b")})  # 0, 1
        commits(6, 1)  # 2 to 7
        commits(1, 20)  # 8
        commits(1, 29)  # 9
        assert (there("json"), there("checkpoint.parquet")) == ([*range(10)], [3, 6, 9])
        commits(3, 40)  # 10 to 12: all before 8 are a month old, and 7 was the table's until 8 came
        assert (there("json"), there("checkpoint.parquet")) == ([1, *range(6, 13)], [6, 9, 12])
        commits(3, 49.9)
        assert there("json") == [1, *range(6, 16)], "the table of day 20 can still be read"
        assert table.marks("idle") == {"": Mark(1, "a", 2, "b")}
        commits(3, 100, source="idle", ledger=Ledger(), marks={"": Mark(2, "c", 2, "c")})
        assert (there("json"), there("checkpoint.parquet")) == ([15, 16, 17, 18], [15, 18])
        assert table.marks("idle") == {"": Mark(2, "c", 2, "c")}
    assert DeltaTable(tmp_path / "letters", version=15).version() == 15


def test_an_interrupted_clean_up_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "lake") as table:
        for number in range(6):
            add(table, [letter(number)], source="main", ledger=Ledger(), marks={"": Mark(number, "a", 2, "b")})
            DeltaTable(table.folder).create_checkpoint()
        state = table.state
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    monkeypatch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))
    properly = Path.unlink
    cut_off = 0
    for count in range(0, 20, 3):
        lake = shutil.copytree(tmp_path / "lake", tmp_path / str(count))
        left = [count]

        def unlink(path: Path, left: list[int] = left, **others: bool) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            properly(path, **others)

        with monkeypatch.context() as patch, opened(lake) as table:
            patch.setattr(Path, "unlink", unlink)
            try:
                add(table, [letter(6)])
            except KeyboardInterrupt:
                cut_off += 1
        with opened(lake) as table:
            assert table.state.days() == state.days()
            assert table.marks("main") == {"": Mark(5, "a", 2, "b")}
            add(table, [letter(7)])
            assert vacuum(table, grace=0, now=4e9) == []
        assert stored(lake) == [letter(number) for number in range(8)]
        assert len(list((lake / "letters" / "_delta_log").glob("*.json"))) == 3, "of the marks, the last two"
    assert 3 <= cut_off < 7


def test_a_log_that_cannot_be_cleaned_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    monkeypatch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))

    def refuse(*_given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with opened(tmp_path) as table:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            for number in range(4):
                add(table, [letter(number)])
        assert len(infos(table)) == 4
        add(table, [letter(4)])
        assert len(infos(table)) == 2


def test_the_next_commit_writes_a_missed_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 3)
    with opened(tmp_path) as table:
        add(table, [letter(1)])
        theirs = foreign(letter(3))
        for _ in range(3):
            write_deltalake(tmp_path / "letters", theirs, mode="append", partition_by=list(LETTERS.partitions))
        add(table, [letter(2)])
    assert [path.name for path in (tmp_path / "letters" / "_delta_log").glob("*.checkpoint.parquet")] == [
        f"{4:020}.checkpoint.parquet"
    ]


def test_a_commit_is_known_from_those_of_other_tables_and_of_backups(tmp_path: Path) -> None:
    with opened(tmp_path / "lake") as table:
        add(table, [letter(1)])
        write_deltalake(
            table.folder, foreign(letter(2)), mode="append", partition_by=list(LETTERS.partitions)
        )  # its commit has an id, too
    first = seen(tmp_path / "lake").point
    other = shutil.copytree(tmp_path / "lake", tmp_path / "other")
    points = []
    for lake in (tmp_path / "lake", other):
        with opened(lake) as table:
            for _ in range(2):
                add(table, [letter(3)])
                points.append(table.point)
    with opened(tmp_path / "new") as table:
        for _ in range(3):
            add(table, [letter(1)])
        points.append(table.point)
    assert first is not None
    for lake, expected in (
        (tmp_path / "lake", [True, True, False, False, False]),
        (other, [False, False, True, True, False]),
        (tmp_path / "new", [False, False, False, False, True]),
    ):
        there = seen(lake)
        assert [point is not None and there.follows(point) for point in points] == expected
        assert there.follows(first) == (lake.name != "new")


def test_old_days_are_dropped_at_once_and_do_not_count_as_touched(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(day, day=f"2026-11-0{day}") for day in (1, 2, 3, 4)])
        assert table.keep("2026-11-03", info("keep")) == 2
        assert table.version == 1
        assert [row["day"].day for row in stored(tmp_path)] == [3, 4]
        assert table.keep("2026-11-03", info("again")) == 0
        assert table.version == 1
        newest = infos(table)[0]
        assert (newest.run, newest.kept, newest.days) == ("keep", "2026-11-03", [])


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
    for other in (
        LETTERS._replace(columns=LETTERS.columns[1:]),
        LETTERS._replace(columns=(*LETTERS.columns, Column("more", "INT", "", null=True))),
        LETTERS._replace(columns=(LETTERS.columns[0]._replace(type="INT"), *LETTERS.columns[1:])),
        LETTERS._replace(columns=(LETTERS.columns[0]._replace(null=True), *LETTERS.columns[1:])),
        LETTERS._replace(partitions=("day", "source")),
    ):
        with pytest.raises(Misuse, match=r"\Athe table \S+/letters has other columns [^\n]+\Z"):
            seen(tmp_path, other)


def test_the_first_commit_of_a_later_version_adds_its_columns(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        marks = {"": Mark(2, "d2", 1, "d1")}
        add(table, [letter(1), letter(2, day="2026-11-02")], source="main", ledger=Ledger(), marks=marks)
    before = seen(tmp_path, LATER_LETTERS)
    point = before.point
    assert point is not None
    assert "answered" not in comments(tmp_path)
    with opened(tmp_path, LATER_LETTERS) as later:
        for number in (3, 4):
            add(later, [letter(number) | {"answered": 0.5}], replace={"day": {"2026-11-01"}})
        assert later.version == 3, "a commit for the column, and two for rows"
        assert later.follows(point)
    there = seen(tmp_path, LATER_LETTERS)
    assert [info.days for info in infos(there)] == [["2026-11-01"], ["2026-11-01"], [], ["2026-11-01", "2026-11-02"]]
    assert there.state.days(after=point.version) == {"2026-11-01"}
    assert there.marks("main") == marks
    assert comments(tmp_path)["answered"] == "when; NULL: nobody knows"
    assert rows(contents(there)) == [letter(2, day="2026-11-02") | {"answered": None}, letter(4) | {"answered": 0.5}]
    with pytest.raises(Misuse, match="other columns"):
        seen(tmp_path)


def test_a_column_is_added_although_another_program_commits_first(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
    with opened(tmp_path, LATER_LETTERS) as later:
        theirs = foreign(letter(2))
        write_deltalake(tmp_path / "letters", theirs, mode="append", partition_by=list(LETTERS.partitions))
        add(later, [letter(3) | {"answered": 0.5}])
        known = [letter(1) | {"answered": None}, letter(2) | {"answered": None}, letter(3) | {"answered": 0.5}]
        assert rows(contents(later)) == known


def test_a_table_without_partitions_is_replaced_as_a_whole(tmp_path: Path) -> None:
    whole = Table("whole", "thing", (Column("id", "BIGINT", ""), Column("day", "DATE", "")), ())
    with opened(tmp_path, whole) as table:
        for given in ([], [letter(1), letter(2)], [letter(3)]):
            table.commit([table.stage(held(given, whole))], info=info(), replace={})
            assert contents(table).column("id").to_pylist() == [row["id"] for row in given]


def test_the_log_says_what_delta_readers_need(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(2, hour=3)], run="r1", finished=1_795_000_000.5)
        add(table, [], replace={"hour": {"3"}}, finished=1_795_000_001.5)
    log = tmp_path / "letters" / "_delta_log"
    lines = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    [protocol] = [line["protocol"] for line in lines if "protocol" in line]
    assert protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    [metadata] = [line["metaData"] for line in lines if "metaData" in line]
    nullable = {field["name"] for field in json.loads(metadata["schemaString"])["fields"] if field["nullable"]}
    assert nullable == {"weight", "body", "hour"}
    for added in (line["add"] for line in lines if "add" in line):
        number = 1 if added["partitionValues"]["hour"] is None else 2
        same = {"id": number, "table": letter(number)["table"], "size": number}
        assert json.loads(added["stats"]) == {
            "numRecords": 1,
            "minValues": {**same, "commit": "2026-11-01T00:00:00.000Z"},
            "maxValues": {**same, "commit": "2026-11-01T00:00:00.001Z"},  # rounded up to a millisecond
            "nullCount": {"id": 0, "table": 0, "commit": 0, "size": 0},
        }
        assert added["modificationTime"] == 1_795_000_000_500
    [removed] = [line["remove"] for line in lines if "remove" in line]
    assert removed["deletionTimestamp"] == 1_795_000_001_500
    assert removed["partitionValues"] == {"day": "2026-11-01", "source": "main", "hour": "3"}
    assert lines[0]["commitInfo"]["restante"]["run"] == "r1"


def test_a_foreign_file_outside_its_folder_is_reported(tmp_path: Path) -> None:
    from deltalake.transaction import AddAction

    from restante.pipeline.lake import columns

    with opened(tmp_path) as table:
        add(table, [letter(1)])
        theirs = AddAction(
            "day=2026-11-01/source=main/hour=1/x.parquet",
            1,
            {"day": "2026-11-01", "source": "main", "hour": "2"},
            1,
            True,
            "{}",
        )
        DeltaTable(tmp_path / "letters").create_write_transaction(
            [theirs],
            "append",
            columns.delta(LETTERS),
            list(LETTERS.partitions),
            commit_properties=CommitProperties(),
        )
    with pytest.raises(StoreError, match=r"hour=1/x\.parquet is not in the folder of its partition"):
        seen(tmp_path).files()
