"""A table of the lake: commits, what they replace, its log, and columns that a later version adds."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark.sql import DataFrameWriter, SparkSession

from restante.common.errors import Misuse, StoreError
from restante.pipeline.lake import columns, commit_info, delta_log, delta_table, staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.commit_info import (
    CommitInfo,
    Ledger,
    Mark,
    SourceCommit,
    TableCommit,
)
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.data_files import DataFile, Selected
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.statistics import ColumnRange
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import Column, Table
from restante.pipeline.spark.errors import SparkError
from support.disk import no_file_beyond
from support.effort import examples
from support.pipeline import lakes
from support.pipeline.lakes import (
    LETTERS,
    MONTHLY_LETTERS,
    Row,
    add,
    held,
    info,
    letter,
    local,
    opened,
    rows,
    seen,
    stored,
)

DAYS = ["2026-10-31", "2026-11-01", "2026-11-03"]
SOURCES = ["a", "b.c"]

some_rows = st.lists(
    st.builds(
        letter,
        st.integers(min_value=0, max_value=500),
        day=st.sampled_from(DAYS),
        source=st.sampled_from(SOURCES),
        hour=st.sampled_from([None, 0, 13]),
    ),
    max_size=6,
)
wheres = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "day": st.sets(st.sampled_from(DAYS)),
        "source": st.sets(st.sampled_from(SOURCES)),
        "hour": st.sets(st.sampled_from([None, "0", "13"])),
    },
)

steps = st.builds(
    SimpleNamespace,
    stages=st.lists(some_rows, max_size=2),
    replace=wheres,
    keep=st.sampled_from([None, None, *DAYS]),
    compact=st.booleans(),
    vacuum=st.booleans(),
    foreign=st.just([]) | some_rows,  # before them, another program's
    optimize=st.booleans(),  # after them, another program does that
)


def days_of(files: Iterable[DataFile]) -> set[str]:
    return {day for file in files for day in file.days()}


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"], row["day"], row["source"], str(row["hour"])))


@examples(14)
@given(st.lists(steps, min_size=1, max_size=4), st.sampled_from([LETTERS, MONTHLY_LETTERS]))
def test_any_sequence_of_commits_is_what_a_list_of_rows_would_be(steps: list[Any], letters: Table) -> None:
    model: list[Row] = []
    commits: list[tuple[TableCommit | None, set[str]]] = []
    kept_from, foreign = "", 0
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 2)
        patched.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))  # no entry is kept that is not needed
        lake = Path(folder)
        for step in steps:
            with opened(lake, letters) as table:
                if step.foreign and commits:
                    lakes.add_foreign(lake, step.foreign, letters)
                    model = model + step.foreign
                    foreign = len(commits)
                    commits.append((seen(lake, letters).current_commit, set()))
                before, before_model = seen(lake, letters), model
                added = [row for stage in step.stages for row in stage]
                gone = [row for row in model if step.replace is not None and lakes.matches(row, step.replace)]
                model = [row for row in model if row not in gone] + added
                stages = [table.stage(held(stage, letters)) for stage in step.stages]
                assert table.commit(stages, info=info(), replace=step.replace) == len(commits)
                commits.append((table.current_commit, {str(row["day"]) for row in (*gone, *added)}))
                kept_by_reader = lakes.contents(before).to_pylist()
                assert ordered(kept_by_reader) == ordered(before_model), "a reader keeps its version"
                if step.keep:
                    old = [row for row in model if str(row["day"]) < step.keep]
                    assert table.drop_before(step.keep, info()) == len(old)
                    model = [row for row in model if row not in old]
                    if old:
                        commits.append((table.current_commit, set()))
                        kept_from = max(kept_from, str(max(row["day"] for row in old) + timedelta(1)))
                if step.compact:
                    if compact(table, "compact", lambda: 2e9):
                        commits.append((table.current_commit, set()))
                    partitions = {tuple(file.partition.values()) for file in table.files() if file.rows}
                    assert len([file for file in table.files() if file.rows]) == len(partitions)
                    assert compact(table, "again", lambda: 2e9) == []
                if step.vacuum:
                    vacuum(table, grace=0, now=4e9)
                assert ordered(lakes.contents(table).to_pylist()) == ordered(model)
                assert table.version == len(commits) - 1
                for number, (commit, _) in enumerate(commits):
                    later = set().union(*(days for _, days in commits[number + 1 :]))
                    assert table.state.days(number) == {day for day in later if day >= kept_from}
                    assert commit is not None
                    assert table.has_commit(commit) == (number >= foreign)
                assert (table.state.kept or "") == kept_from
            if step.optimize and DeltaTable(lake / "letters").optimize.compact()["numFilesAdded"]:
                commits.append((seen(lake, letters).current_commit, set()))
            assert ordered(stored(lake, letters)) == ordered(model)


def test_a_first_commit_makes_the_table_with_its_rows_and_commit_info(tmp_path: Path) -> None:
    made = CommitInfo(
        run="r1",
        finished=1_795_000_000.25,
        sources={
            "main": SourceCommit(Ledger(read=4, clean=3, duplicate=1), {"": Mark(4, "d4", 1, "d1")}),
            "west": SourceCommit(Ledger(read=1, clean=1), {"": Mark(1, "d1", 1, "d1")}),
        },
        inputs={"other": TableCommit("id", 7, "abcd")},
    )
    letters = [letter(1), letter(2), letter(3, day="2026-11-02", hour=4)]
    days = ["2026-11-01", "2026-11-02"]
    with opened(tmp_path) as table:
        staged = table.stage(held(letters))
        assert (staged.rows, days_of(staged.files)) == (3, set(days))
        assert seen(tmp_path).version is None
        assert table.commit([staged], info=made) == 0
        assert not list(local(table.folder).glob("run-*"))
    table = seen(tmp_path)
    assert table.version == 0
    [stored_info] = lakes.infos(table)
    assert stored_info == replace(made, days=days, commit=stored_info.commit, state=table.state)
    assert table.state.days(-1) == set(days)
    assert {name: SourceCommit(c.ledger, dict(table.marks(name))) for name, c in made.sources.items()} == (
        made.sources
    )
    assert table.state.inputs == made.inputs
    assert stored(tmp_path) == letters
    assert comments(tmp_path) == {column.name: column.meaning for column in LETTERS.columns}
    assert all(file.size == file.path.stat().st_size for file in table.files())


def comments(path: Path) -> dict[str, str]:
    fields = json.loads(DeltaTable(path / "letters").schema().to_json())["fields"]
    return {field["name"]: field["metadata"].get("comment", "") for field in fields}


def test_a_table_with_other_comments_is_read_and_written(tmp_path: Path) -> None:
    schema = pa.schema([field.with_metadata({"comment": "older"}) for field in columns.delta_arrow_schema(LETTERS)])
    with patch.object(columns, "delta_arrow_schema", return_value=schema):
        lakes.put(tmp_path, [letter(1)])
    assert set(comments(tmp_path).values()) == {"older"}
    lakes.put(tmp_path, [letter(2)])
    assert stored(tmp_path) == [letter(1), letter(2)]


def test_spark_stages_rows_and_reads_all_or_some_partitions(spark: SparkSession, tmp_path: Path) -> None:
    letters = [letter(1), letter(2, source="b"), letter(3, hour=7), letter(4, day="2026-11-02", hour=7)]
    with opened(tmp_path) as table:
        empty = table.read(spark)
        assert (empty.count(), empty.columns) == (0, [column.name for column in LETTERS.columns])
        staged, nothing = table.stage(lakes.frame(spark, letters)), table.stage(lakes.frame(spark, []))
        assert (staged.rows, len(staged.files), days_of(staged.files)) == (4, 4, {"2026-11-01", "2026-11-02"})
        assert (nothing.rows, nothing.files) == (0, ())
        table.commit([staged, nothing], info=info())
        assert table.read(spark, {"day": ()}).schema == table.read(spark).schema == empty.schema
    assert lakes.by_spark(spark, tmp_path) == stored(tmp_path) == letters
    assert lakes.by_spark(spark, tmp_path, {"hour": {None, "7"}, "source": ["main"]}) == [letters[0], *letters[2:]]


def test_many_files_are_read_without_a_job_that_looks_for_them(spark: SparkSession, tmp_path: Path) -> None:
    """By default Spark starts one with a task for each file if there are more than 32."""
    with opened(tmp_path) as table:
        add(table, [letter(n, source=f"s{n}") for n in range(33)])
        assert len(table.files()) == 33
        spark.sparkContext.setJobGroup(str(tmp_path), "")
        rows = table.read(spark)
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(str(tmp_path))) == []
        assert rows.count() == 33
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(tmp_path))) > 0
    spark.sparkContext.setJobGroup("", "")


def test_columns_are_found_by_name_and_unfit_rows_are_not_staged(spark: SparkSession, tmp_path: Path) -> None:
    frame = lakes.frame(spark, [letter(1)])
    turned = frame.selectExpr("'x' AS more", *reversed(frame.columns)).withColumn("id", frame["id"].cast("INT"))
    sentence = "a row for the table letters has no {}: these rows were not committed"
    with opened(tmp_path) as table:
        staged = table.stage(turned)
        assert staged.rows == 1
        staged.discard()
        for unfit in (
            frame.drop("weight"),
            frame.withColumn("size", frame["table"]),
            frame.selectExpr("*", "1 AS id"),
            frame.withColumn("id", frame["id"] + (2**63 - 1)),
        ):
            with pytest.raises(SparkError, match=r"\Athe rows for the table letters could not be computed: [^\n]+\Z"):
                table.stage(unfit)
        with pytest.raises(StoreError, match=sentence.format("seen")):
            table.stage(lakes.frame(spark, [letter(1), {**letter(2), "seen": None}]))
        assert table.version is None
        assert not list((tmp_path / "letters").glob("*"))
    for letters in (LETTERS, MONTHLY_LETTERS):
        with opened(tmp_path, letters) as table:
            for column in ("seen", "day", "source"):
                with pytest.raises(StoreError, match=sentence.format(column)):
                    table.stage(held([letter(1), {**letter(2), column: None}], letters))
            assert not list((tmp_path / "letters").glob("*"))


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    lakes.put(tmp_path, [letter(1)])
    first, *others = LETTERS.columns
    text = r"\Athe table \S+/letters has other columns [^\n]+: remove it, and run ingest and build again, [^\n]+\Z"
    for copy in (
        LETTERS._replace(columns=(*others,)),
        LETTERS._replace(columns=(*LETTERS.columns, Column("more", "INT", "", null=True))),
        LETTERS._replace(columns=(first._replace(type="INT"), *others)),
        LETTERS._replace(columns=(first._replace(null=True), *others)),
        LETTERS._replace(partitions=("day", "source")),
    ):
        with pytest.raises(Misuse, match=text):
            seen(tmp_path, copy)


def test_the_first_commit_of_a_later_version_adds_its_columns(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        marks = {"": Mark(2, "d2", 1, "d1")}
        add(table, [letter(1), letter(2, day="2026-11-02")], source="main", ledger=Ledger(), marks=marks)
    assert "answered" not in comments(tmp_path)
    with opened(tmp_path, lakes.LATER_LETTERS) as later:
        lakes.add_foreign(tmp_path, [letter(5, day="2026-11-02")])
        commit = seen(tmp_path, lakes.LATER_LETTERS).current_commit
        assert commit is not None
        for number in (3, 4):
            add(later, [letter(number) | {"answered": 0.5}], replace={"day": {"2026-11-01"}})
        assert later.version == 4, "a commit of another program, one for the column, and two for rows"
        assert later.has_commit(commit)
    table = seen(tmp_path, lakes.LATER_LETTERS)
    first, second = "2026-11-01", "2026-11-02"
    assert [info.days for info in lakes.infos(table)] == [[first], [first], [], [], [first, second]]
    assert table.marks("main") == marks
    assert comments(tmp_path)["answered"] == "when; NULL: nobody knows"
    old = [letter(number, day=second) | {"answered": None} for number in (2, 5)]
    assert rows(lakes.contents(table)) == [old[0], letter(4) | {"answered": 0.5}, old[1]]
    with pytest.raises(Misuse, match="other columns"):
        seen(tmp_path)


def test_endless_commits_of_another_program_are_reported(tmp_path: Path) -> None:
    properly = delta_table.open_table

    def interfere(folder: Path, expected_table: Table) -> DeltaTable | None:
        opened_table = properly(folder, expected_table)
        lakes.add_foreign(tmp_path, [letter(3)])
        return opened_table

    with opened(tmp_path) as table, patch.object(delta_table, "open_table", interfere):
        add(table, [letter(1)])
        lakes.add_foreign(tmp_path, [letter(3)])
        with pytest.raises(StoreError, match="another program keeps changing"):
            table.commit(info=info())


def test_commits_before_another_program_changed_rows_do_not_count(tmp_path: Path) -> None:
    lakes.put(tmp_path, [letter(1), letter(2, day="2026-11-02")])
    first = seen(tmp_path).current_commit
    assert first is not None
    theirs = DeltaTable(tmp_path / "letters")
    theirs.optimize.compact()
    assert seen(tmp_path).has_commit(first), "it only moved rows"
    theirs.delete("day = '2026-11-02'")
    after = seen(tmp_path)
    assert not after.has_commit(first)
    assert after.current_commit is not None
    assert after.has_commit(after.current_commit)
    assert after.state.last_change == after.version
    lakes.put(tmp_path, [letter(3)])
    assert [seen(tmp_path).has_commit(commit) for commit in (first, after.current_commit)] == [False, True]


def test_a_foreign_file_outside_its_folder_is_reported(tmp_path: Path) -> None:
    lakes.put(tmp_path, [letter(1)])
    partition: dict[str, str | None] = {"day": "2026-11-01", "source": "main", "hour": "2"}
    theirs = AddAction("day=2026-11-01/source=main/hour=1/x.parquet", 1, partition, 1, True, "{}")
    delta = DeltaTable(tmp_path / "letters")
    delta.create_write_transaction([theirs], "append", columns.delta_schema(LETTERS), list(LETTERS.partitions))
    with pytest.raises(StoreError, match=r"hour=1/x\.parquet is not in the folder of its partition"):
        seen(tmp_path).files()


def log_lines(path: Path) -> list[dict[str, Any]]:
    log = (path / "letters" / "_delta_log").glob("*.json")
    return [json.loads(line) for entry in sorted(log) for line in entry.read_text().splitlines()]


def test_the_log_says_what_delta_readers_need(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1), letter(2, hour=3)], run="r1", finished=1_795_000_000.5)
        add(table, [], replace={"hour": {"3"}}, finished=1_795_000_001.5)
    lines = log_lines(tmp_path)
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


def test_the_log_has_the_statistics_of_a_month(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, OTHER, letter(3, day="2026-11-30") | {"table": "y" * 129}])
        [file] = table.files()
    last_day = letter(0, day="2026-11-30")["day"]
    assert file.ranges == {"day": ColumnRange(FIRST["day"], last_day, 0), "source": ColumnRange("main", "other", 0)}
    [added] = [line["add"] for line in log_lines(tmp_path) if "add" in line]
    minimum, maximum, nulls = (json.loads(added["stats"])[name] for name in ("minValues", "maxValues", "nullCount"))
    assert (minimum["day"], maximum["hour"], nulls["hour"]) == ("2026-11-01", 7, 2)
    assert "table" not in maximum, "it is too long"
    assert not {"weight", "body", "seen"} & minimum.keys()


def test_commit_infos_outlive_checkpoints_and_cleaned_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 3)
    with opened(tmp_path) as table:
        add(table, [letter(1)], run="0")
        for number in range(1, 8):
            table.commit(info=info(str(number)))
    log = tmp_path / "letters" / "_delta_log"
    for path in log.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))  # long before what others keep
    theirs = DeltaTable(tmp_path / "letters")
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    theirs.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    table = seen(tmp_path)
    assert [commit.run for commit in lakes.infos(table)] == [str(number) for number in reversed(range(8))]
    assert stored(tmp_path) == [letter(1)]


def test_unneeded_log_entries_are_removed_after_thirty_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 3)
    log = tmp_path / "letters" / "_delta_log"
    written = 1_000_000_000

    def versions(kind: str) -> list[int]:
        return sorted(int(path.name[:20]) for path in log.glob(f"*.{kind}"))

    def commits(count: int, days: float, **fields: Any) -> None:
        for _ in range(count):
            version = table.commit(info=info(finished=written + days * 86400, **fields))
            for path in log.glob(f"{version:020}.*"):
                os.utime(path, (written + days * 86400,) * 2)

    with opened(tmp_path) as table:
        commits(2, 0, source="idle", ledger=Ledger(), marks={"": Mark(1, "a", 2, "b")})  # 0, 1
        commits(6, 1)  # 2 to 7
        commits(1, 20)  # 8
        commits(1, 29)  # 9
        assert (versions("json"), versions("checkpoint.parquet")) == ([*range(10)], [3, 6, 9])
        commits(3, 40)  # 10 to 12: all before 8 are a month old, and 7 was the table's until 8 came
        assert (versions("json"), versions("checkpoint.parquet")) == ([1, *range(6, 13)], [6, 9, 12])
        commits(3, 49.9)
        assert versions("json") == [1, *range(6, 16)], "the table of day 20 can still be read"
        assert table.marks("idle") == {"": Mark(1, "a", 2, "b")}
        commits(3, 100, source="idle", ledger=Ledger(), marks={"": Mark(2, "c", 2, "c")})
        assert (versions("json"), versions("checkpoint.parquet")) == ([15, 16, 17, 18], [15, 18])
        assert table.marks("idle") == {"": Mark(2, "c", 2, "c")}
        assert DeltaTable(str(table.folder), version=15).version() == 15
        for _ in range(3):
            lakes.add_foreign(tmp_path, [letter(3)])
        add(table, [letter(2)])
        assert versions("checkpoint.parquet")[-1] == 22, "the next commit writes a missed one"


@pytest.mark.parametrize("error", [KeyboardInterrupt, PermissionError], ids=["interrupted", "refused"])
def test_a_clean_up_that_was_cut_off_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with opened(tmp_path / "lake") as table:
        for number in range(6):
            add(table, [letter(number)], source="main", ledger=Ledger(), marks={"": Mark(number, "a", 2, "b")})
            DeltaTable(str(table.folder)).create_checkpoint()
        state = table.state
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    monkeypatch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))
    properly = Path.unlink
    cut_off = 0
    for count in range(0, 20, 3):
        lake = shutil.copytree(tmp_path / "lake", tmp_path / str(count))
        failures_left = [count]

        def unlink(path: Path, failures_left: list[int] = failures_left, **others: bool) -> None:
            failures_left[0] -= 1
            if failures_left[0] < 0:
                raise error
            properly(path, **others)

        with patch.object(Path, "unlink", unlink), opened(lake) as table:
            with nullcontext() if error is PermissionError else suppress(error):  # it fails no commit
                add(table, [letter(6)])
            cut_off += failures_left[0] < 0
        with opened(lake) as table:
            assert table.state.days(-1) == state.days(-1)
            assert table.marks("main") == {"": Mark(5, "a", 2, "b")}
            add(table, [letter(7)])
            assert vacuum(table, grace=0, now=4e9) == []
        assert stored(lake) == [letter(number) for number in range(8)]
        assert len(list((lake / "letters" / "_delta_log").glob("*.json"))) == 3, "of the marks, the last two"
    assert 3 <= cut_off < 7


OCTOBER = letter(1, day="2026-10-31")
FIRST, SECOND, THIRD = (letter(number + 1, day=f"2026-11-0{number}") for number in (1, 2, 3))
OTHER = letter(9, day="2026-11-02", source="other", hour=7)


@pytest.mark.parametrize("local", [True, False], ids=["our writer", "Spark's own writer"])
def test_the_days_and_sources_of_a_month_are_one_sorted_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.setattr(staging, "is_local", lambda _: local)
    letters = [THIRD, OTHER, SECOND, OCTOBER, FIRST]
    staged = staging.stage_rows(lakes.frame(spark, letters), tmp_path, MONTHLY_LETTERS, "r")
    assert [file.partition for file in staged.files] == [{"month": "2026-10-01"}, {"month": "2026-11-01"}]
    assert days_of(staged.files) == {"2026-10-31", "2026-11-01", "2026-11-02", "2026-11-03"}
    ids = [pq.ParquetFile(file.path).read(columns=["id"]).column("id").to_pylist() for file in staged.files]
    assert ids == [[1], [2, 3, 9, 4]]
    [_, november] = staged.files
    assert november.ranges["source"] == ColumnRange("main", "other", 0)
    assert november.ranges["id"] == ColumnRange(2, 9, 0)


def test_what_a_slower_attempt_writes_after_its_job_is_not_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts two attempts at a task with spark.speculation. A job removes their folders when it ends."""
    monkeypatch.setattr(staging, "is_local", lambda _: False)
    parquet = DataFrameWriter.parquet

    def then_late(writer: DataFrameWriter, folder: str) -> None:
        parquet(writer, folder)
        for file in list(Path(folder).rglob("*.parquet")):
            late = Path(folder, "_temporary/0/_temporary/attempt_0_m_0_0", file.relative_to(folder))
            late.parent.mkdir(parents=True)
            shutil.copy(file, late)

    monkeypatch.setattr(DataFrameWriter, "parquet", then_late)
    staged = staging.stage_rows(lakes.frame(spark, [OCTOBER, FIRST]), tmp_path, MONTHLY_LETTERS, "r")
    assert (len(staged.files), staged.rows) == (2, 2)


def test_selected_rows_are_read_from_within_files(spark: SparkSession, tmp_path: Path) -> None:
    lakes.put(tmp_path, [OCTOBER, FIRST, SECOND, THIRD, OTHER], MONTHLY_LETTERS)
    selections: list[tuple[dict[str, Any], list[int]]] = [
        ({"day": {"2026-10-31", "2026-11-02"}}, [1, 3, 9]),
        ({"day": {"2026-11-02"}, "source": {"main"}}, [3]),
        ({"hour": {"7", None}, "source": {"other", "none"}}, [9]),
    ]
    for where, ids in selections:
        assert [row["id"] for row in lakes.by_spark(spark, tmp_path, where, MONTHLY_LETTERS)] == ids, where


@pytest.mark.parametrize("letters", [LETTERS, MONTHLY_LETTERS], ids=["by day", "by month"])
def test_the_days_and_sources_of_a_file_are_found(tmp_path: Path, letters: Table) -> None:
    with opened(tmp_path, letters) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER, letter(10, day="2026-11-02")])
        files = table.files()
    main = {(day, "main") for day in ("2026-10-31", "2026-11-01", "2026-11-02", "2026-11-03")}
    assert {pair for file in files for pair in file.days_and_sources()} == main | {("2026-11-02", "other")}
    if letters.by_month:
        assert {file.last_day: file.latest_days() for file in files} == {
            "2026-10-31": {"main": "2026-10-31"},
            "2026-11-03": {"main": "2026-11-03", "other": "2026-11-02"},
        }
    ranges = {"day": ColumnRange(FIRST["day"], FIRST["day"], 0), "source": ColumnRange("main", "main", 0)}
    missing = DataFile(Path("none.parquet"), {"month": "2026-11-01"}, 3, 1, ranges)
    assert set(missing.days_and_sources()) == {("2026-11-01", "main")}, "statistics of one spare reading the file"


def test_only_files_and_days_with_replaced_rows_change(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [OCTOBER, FIRST, THIRD, letter(9, day="2026-11-03", source="other")])
        before = {file.path for file in table.files()}
        assert len(table.files({"day": {"2026-11-02"}})) == 1, "the range of its days has this one"
        add(table, [], replace={"day": {"2026-11-02"}})
        assert (lakes.infos(table)[0].days, {file.path for file in table.files()}) == ([], before)
        add(table, [], replace={"source": {"other"}})
        assert stored(tmp_path, MONTHLY_LETTERS) == [OCTOBER, FIRST, THIRD]
        assert lakes.infos(table)[0].days == ["2026-11-03"]
        assert len({file.path for file in table.files()} & before) == 1, "October had no such row"
        add(table, [], replace={"day": {"2026-11-01", "2026-11-03"}})
        assert stored(tmp_path, MONTHLY_LETTERS) == [OCTOBER], "none of the rows of a file stays"


@pytest.mark.parametrize(
    "replace",
    [
        {"day": {"2026-11-02"}},
        {"source": {"other"}},
        {"source": {"main"}, "hour": {"7"}},
        {"hour": {None}},
        {"day": {"2026-11-02"}, "source": {"none"}},
    ],
    ids=str,
)
def test_spark_replaces_the_same_rows_within_files_of_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: dict[str, Any]
) -> None:
    monkeypatch.setattr(lake_table, "MAX_REWRITTEN_ROWS", 3)
    monkeypatch.setattr(lake_table, "MAX_READ_ROWS", 3)
    started: list[None] = []

    def session() -> SparkSession:
        started.append(None)
        return spark

    results = []
    for name in ("driver", "spark"):
        with Lake.open(tmp_path / name, write=True, make=True) as lake:
            table = lake.table(MONTHLY_LETTERS, session if name == "spark" else None)
            add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER, letter(20, day="2026-11-02", hour=7)])
            add(table, [], replace=replace)
            days = dict(table.rows_by_day(table.files()))
        results.append((stored(tmp_path / name, MONTHLY_LETTERS), days, [info.days for info in lakes.infos(table)]))
    assert results[0] == results[1]
    assert started
    assert not list((tmp_path / "spark").rglob("rest-*")), "this process wrote none"


def test_files_without_statistics_are_looked_into(tmp_path: Path) -> None:
    lakes.put(tmp_path, [FIRST, SECOND, OTHER], MONTHLY_LETTERS)
    [entry] = (tmp_path / "letters" / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = json.dumps({"numRecords": 3})
    entry.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        [file] = table.files()
        assert (file.ranges, file.days()) == ({}, {"2026-11-01": 1, "2026-11-02": 2})
        add(table, [], replace={"source": {"other"}})
        assert stored(tmp_path, MONTHLY_LETTERS) == [FIRST, SECOND]
        assert lakes.infos(table)[0].days == ["2026-11-02"]


def test_an_attempt_at_a_commit_leaves_no_file_if_another_program_commits_first(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, SECOND])
        lakes.add_foreign(tmp_path, [THIRD, OTHER], MONTHLY_LETTERS)
        add(table, [letter(20, day="2026-11-02")], replace={"day": {"2026-11-02"}})
        assert [row["id"] for row in stored(tmp_path, MONTHLY_LETTERS)] == [2, 4, 20]
        written = {path.name for path in (tmp_path / "letters").rglob("rest-*.parquet")}
        assert len(written) == 2, "one of our file, one of theirs"


def test_a_commit_that_was_made_and_refused_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on another host may refuse an entry that it has made, when it is asked for it again."""
    append = delta_table.append_commit

    def refuse(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        raise CommitFailedError

    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, SECOND])
        monkeypatch.setattr(delta_table, "append_commit", refuse)
        add(table, [letter(20, day="2026-11-02")], replace={"day": {"2026-11-02"}})
        assert table.version == 1
    assert [row["id"] for row in stored(tmp_path, MONTHLY_LETTERS)] == [2, 20]


def test_a_full_disk_or_a_damaged_file_is_reported_and_nothing_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [letter(at, day=f"2026-11-0{1 + at % 3}") | {"body": bytes(4000)} for at in range(300)])
        [before] = table.files()
        full = r"\Acannot write to \S+/rest-\S+: File too large; these rows were not"
        with no_file_beyond(500), pytest.raises(StoreError, match=full):
            table.commit(info=info(), replace={"day": {"2026-11-02"}})
        assert (table.files(), table.version) == ([before], 0)
        assert not list((tmp_path / "letters").glob("run-*"))
        before.path.write_bytes(b"PAR1")
        with pytest.raises(StoreError, match=r"cannot be read \(it is not a Parquet file\): restore it"):
            table.commit(info=info(), replace={"day": {"2026-11-02"}})
        assert table.version == 0


RANGES = {"day": ColumnRange(FIRST["day"], THIRD["day"], 0), "source": ColumnRange("b", "d", 0)}


@pytest.mark.parametrize(
    ("where", "ranges", "expected"),
    [
        ({}, RANGES, Selected.ALL),
        ({"month": {"2026-12-01"}}, RANGES, Selected.NONE),
        ({"day": {"2026-10-31", "2026-11-04"}}, RANGES, Selected.NONE),
        ({"day": {"2026-11-01", "2026-11-03"}}, RANGES, Selected.SOME),
        ({"day": {"2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"}}, RANGES, Selected.ALL),
        ({"day": {None}}, RANGES, Selected.NONE),
        ({"source": {"b", "d"}}, RANGES, Selected.SOME),
        ({"source": {"c"}, "day": {"2026-11-04"}}, RANGES, Selected.NONE),
        ({"source": {"b"}}, {"source": ColumnRange("b", "b", 0)}, Selected.ALL),
        ({"source": {"b"}}, {"source": ColumnRange("b", "b", 1)}, Selected.SOME),
        ({"source": {"b", None}}, {"source": ColumnRange("b", "b", 1)}, Selected.ALL),
        ({"source": {"a", None}}, {"source": ColumnRange("b", "b", 1)}, Selected.SOME),
        ({"source": {"a", None}}, {"source": ColumnRange(None, None, 3)}, Selected.ALL),
        ({"source": {"a"}}, {"source": ColumnRange(None, None, 3)}, Selected.NONE),
        ({"source": {"b"}}, {}, Selected.SOME),
        ({"source": set()}, {}, Selected.NONE),
        ({"id": {"7"}}, {"id": ColumnRange(7, 7, 0)}, Selected.SOME),
    ],
)
def test_a_file_s_ranges_tell_whether_all_some_or_none_of_its_rows_are_selected(
    where: dict[str, set[str | None]], ranges: dict[str, ColumnRange], expected: Selected
) -> None:
    file = DataFile(Path("x.parquet"), {"month": "2026-11-01"}, 3, 1, ranges)
    assert file.selected(where) is expected


def test_a_summary_has_the_ids_and_days_of_the_last_commits_only(tmp_path: Path) -> None:
    with opened(tmp_path) as table, patch.object(commit_info, "MAX_COMMIT_IDS", 3):
        commits = []
        for number in range(1, 6):
            add(table, [letter(number, day=f"2026-11-0{number}")])
            commits.append(table.current_commit)
        assert [table.has_commit(commit) for commit in commits if commit] == [False, False, True, True, True]
        assert table.state.days(-1) == {"2026-11-03", "2026-11-04", "2026-11-05"}


marks_of_files = st.dictionaries(
    st.sampled_from("abcdefgh"), st.builds(Mark, st.integers(0, 3), st.just(""), st.just(0), st.just(""))
)


@examples(30)
@given(st.lists(st.tuples(st.sampled_from(["logs", "more"]), marks_of_files), min_size=1, max_size=8), st.booleans())
def test_the_marks_of_a_source_are_those_of_its_last_commit(
    commits: list[tuple[str, dict[str, Mark]]], expire: bool
) -> None:
    """If entries of the log `expire`, those with marks stay."""
    with tempfile.TemporaryDirectory() as folder, patch.object(commit_info, "MAX_MARK_COMMITS", 3):
        lake = Path(folder)
        expected: dict[str, dict[str, Mark]] = {}
        for number, (source, marks) in enumerate(commits):
            with opened(lake) as table, patch.object(lake_table, "COMMITS_PER_CHECKPOINT", 2):
                finished = 4e9 if expire else 1e9
                add(table, [letter(number)], source=source, ledger=Ledger(), marks=marks, finished=finished)
            expected[source] = marks
            table = seen(lake)
            assert {name: table.marks(name) for name in table.state.sources} == expected
            assert all(len(table.state.sources[name]) <= 3 for name in expected)


def test_a_commit_has_the_marks_of_new_files_only(tmp_path: Path) -> None:
    marks = {f"{number:064x}": Mark(number, "", 0, "", seen="x" * 40) for number in range(3000)}
    sizes = []
    with opened(tmp_path) as table:
        for number in range(3):
            marks[f"{number:064x}"] = Mark(7, "", 0, "")
            version = add(table, [letter(number)], source="logs", ledger=Ledger(), marks=dict(marks))
            sizes.append(delta_log.entry_path(table.folder, version).stat().st_size)
    assert sizes[0] > 300_000
    assert max(sizes[1:]) < 4_000
    assert seen(tmp_path).marks("logs") == marks
