"""Tables whose days are small: a file has many days and sources, and a day or a source is replaced within it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from restante.common.errors import StoreError
from restante.pipeline import views
from restante.pipeline.lake import data_files, staging
from restante.pipeline.lake.data_files import DataFile, Selected
from restante.pipeline.lake.lake import LAKE_FORMAT
from restante.pipeline.lake.statistics import Range
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES
from support.disk import no_file_beyond
from support.pipeline.lakes import (
    LETTERS,
    MONTHLY_LETTERS,
    Row,
    add,
    add_foreign,
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
)
from support.pipeline.lakes import stored as stored_of

OCTOBER = letter(1, day="2026-10-31")
FIRST, SECOND, THIRD = (letter(number + 1, day=f"2026-11-0{number}") for number in (1, 2, 3))
OTHER = letter(9, day="2026-11-02", source="other", hour=7)


def stored(path: Path, where: dict[str, Any] | None = None) -> list[Row]:
    return stored_of(path, where, MONTHLY_LETTERS)


def one_file(table: LakeTable) -> Path:
    """Return the path of the only file."""
    [file] = table.files()
    return file.path


LARGE = {
    "archived": ("day", "source_kind", "source"),
    "envelopes": ("day", "hour"),
    **dict.fromkeys(("server_commands", "client_events", "timing"), ("day", "source")),
}


def test_only_tables_whose_days_are_large_are_not_partitioned_by_month() -> None:
    others = {name: table.partitions for name, table in TABLES.items() if not table.by_month}
    assert (LAKE_FORMAT, others) == (4, LARGE), "a lake with another layout has another format"


@pytest.mark.parametrize("here", [True, False], ids=["our writer", "Spark's own writer"])
def test_the_days_and_sources_of_a_month_are_one_sorted_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(staging, "local", lambda _: here)
    given = [THIRD, OTHER, SECOND, OCTOBER, FIRST]
    staged = staging.stage(frame(spark, given), tmp_path, MONTHLY_LETTERS, "r")
    assert [file.partition for file in staged.files] == [{"month": "2026-10-01"}, {"month": "2026-11-01"}]
    assert staged.days == {"2026-10-31", "2026-11-01", "2026-11-02", "2026-11-03"}
    ids = [pq.ParquetFile(file.path).read(columns=["id"]).column("id").to_pylist() for file in staged.files]
    assert ids == [[1], [2, 3, 9, 4]]
    [_, november] = staged.files
    assert november.ranges["source"] == Range("main", "other", 0)
    assert november.ranges["id"] == Range(2, 9, 0)


def test_selected_rows_are_read_from_within_files(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER])
    wheres: list[tuple[dict[str, Any], list[int]]] = [
        ({"day": {"2026-10-31", "2026-11-02"}}, [1, 3, 9]),
        ({"day": {"2026-11-02"}, "source": {"main"}}, [3]),
        ({"source": {"other", "none"}}, [9]),
        ({"hour": {None}}, [1, 2, 3, 4]),
        ({"hour": {"7"}, "day": {"2026-11-02", "2026-11-03"}}, [9]),
        ({"day": {"2026-12-01"}}, []),
        ({"day": ()}, []),
    ]
    for where, ids in wheres:
        assert [row["id"] for row in stored(tmp_path, where)] == ids, where
    for where, ids in wheres[:2]:
        assert [row["id"] for row in by_spark(spark, tmp_path, where, MONTHLY_LETTERS)] == ids, where


@pytest.mark.parametrize("letters", [LETTERS, MONTHLY_LETTERS], ids=["by day", "by month"])
def test_the_days_and_sources_of_a_file_are_found(tmp_path: Path, letters: Table) -> None:
    with opened(tmp_path, letters) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER, letter(10, day="2026-11-02")])
        files = table.files()
    main = {(day, "main") for day in ("2026-10-31", "2026-11-01", "2026-11-02", "2026-11-03")}
    assert {each for file in files for each in file.days_and_sources()} == main | {("2026-11-02", "other")}
    if letters.by_month:
        assert {file.last_day: file.latest_days() for file in files} == {
            "2026-10-31": {"main": "2026-10-31"},
            "2026-11-03": {"main": "2026-11-03", "other": "2026-11-02"},
        }


def test_statistics_of_one_day_and_source_spare_reading_the_file() -> None:
    ranges = {"day": Range(FIRST["day"], FIRST["day"], 0), "source": Range("main", "main", 0)}
    file = DataFile(Path("none.parquet"), {"month": "2026-11-01"}, 3, 1, ranges)
    assert set(file.days_and_sources()) == {("2026-11-01", "main")}
    with pytest.raises(StoreError):
        file._replace(ranges={**ranges, "source": Range("main", "other", 0)}).days_and_sources()


def test_a_day_is_replaced_within_a_file_in_one_commit(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER])
        new = letter(20, day="2026-11-02")
        assert add(table, [new], replace={"day": {"2026-11-02"}}) == 1
        assert stored(tmp_path) == [OCTOBER, FIRST, THIRD, new]
        assert infos(table)[0].days == ["2026-11-02"]
        october, *november = sorted(file.partition["month"] or "" for file in table.files())
        assert (october, november) == ("2026-10-01", ["2026-11-01"] * 2)


def test_a_source_is_replaced_and_only_its_days_count_as_changed(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER])
        before = {file.path for file in table.files()}
        add(table, [], replace={"source": {"other"}})
        assert stored(tmp_path) == [OCTOBER, FIRST, SECOND, THIRD]
        assert infos(table)[0].days == ["2026-11-02"]
        assert len({file.path for file in table.files()} & before) == 1, "October had no such row"


def test_a_file_that_may_have_a_selected_row_and_has_none_stays(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, THIRD])
        before = one_file(table)
        assert len(table.files({"day": {"2026-11-02"}})) == 1, "the range of its days has this one"
        add(table, [], replace={"day": {"2026-11-02"}})
        assert one_file(table) == before
        assert infos(table)[0].days == []


def test_keep_drops_the_first_days_of_a_month_and_keeps_the_others(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER])
        assert table.keep("2026-11-02", info("keep")) == 2
        assert stored(tmp_path) == [SECOND, THIRD, OTHER]
        newest = infos(table)[0]
        assert (newest.run, newest.kept, newest.days) == ("keep", "2026-11-02", [])
        assert table.keep("2026-11-02", info("again")) == 0
        assert table.version == 1


def test_a_row_without_a_day_is_refused_for_its_day(tmp_path: Path) -> None:
    with (
        opened(tmp_path, MONTHLY_LETTERS) as table,
        pytest.raises(StoreError, match="a row for the table letters has no day: these rows were not committed"),
    ):
        table.stage(held([FIRST, {**SECOND, "day": None}], MONTHLY_LETTERS))


def test_files_without_statistics_are_looked_into(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, SECOND, OTHER])
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
        assert stored(tmp_path) == [FIRST, SECOND]
        assert infos(table)[0].days == ["2026-11-02"]


def test_the_days_that_another_program_changed_are_known(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST])
    add_foreign(tmp_path, [SECOND, THIRD], MONTHLY_LETTERS)
    assert infos(seen(tmp_path, MONTHLY_LETTERS))[0].days == ["2026-11-02", "2026-11-03"]
    DeltaTable(tmp_path / "letters").delete("day = '2026-11-02'")
    assert infos(seen(tmp_path, MONTHLY_LETTERS))[0].days == ["2026-11-02", "2026-11-03"], "of both files"
    gone = DeltaTable(tmp_path / "letters")
    gone.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    days = infos(seen(tmp_path, MONTHLY_LETTERS))[0].days
    assert (days[0], days[-1], len(days)) == ("2026-11-01", "2026-11-30", 30), "of a file that is gone: its month"
    assert stored(tmp_path) == [FIRST, THIRD]


def test_the_rest_of_a_file_is_not_written_again_when_another_program_commits_first(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, SECOND])
        add_foreign(tmp_path, [THIRD, OTHER], MONTHLY_LETTERS)
        add(table, [letter(20, day="2026-11-02")], replace={"day": {"2026-11-02"}})
        assert [row["id"] for row in stored(tmp_path)] == [2, 4, 20]
        written = {path.name for path in (tmp_path / "letters").rglob("rest-*.parquet")}
        assert len(written) == 2, "one of our file, one of theirs"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        many = [letter(number, day=f"2026-11-0{1 + number % 3}") | {"body": bytes(4000)} for number in range(300)]
        add(table, many)
        before = one_file(table)
        with (
            no_file_beyond(500),
            pytest.raises(StoreError, match=r"\Acannot write to \S+/rest-\S+: File too large; these rows were not"),
        ):
            table.commit(info=info(), replace={"day": {"2026-11-02"}})
        assert (one_file(table), table.version) == (before, 0)
        assert not list((tmp_path / "letters").glob("run-*"))


def test_a_damaged_file_is_reported_and_nothing_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, SECOND])
        one_file(table).write_bytes(b"PAR1")
        with pytest.raises(StoreError, match=r"cannot be read \(it is not a Parquet file\): restore it"):
            table.commit(info=info(), replace={"day": {"2026-11-02"}})
        assert table.version == 0


def test_duckdb_reads_only_the_files_and_rows_of_a_day(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table, duckdb.connect() as database:
        add(table, [OCTOBER, FIRST, SECOND, THIRD, OTHER])
        database.execute(views.view(table))
        database.execute("SET TimeZone = 'UTC'")
        assert rows(database.sql("FROM letters").to_arrow_table()) == stored(tmp_path)
        assert database.sql("SELECT id FROM letters WHERE day = '2026-11-03'").fetchall() == [(4,)]


RANGES = {"day": Range(FIRST["day"], THIRD["day"], 0), "source": Range("b", "d", 0)}


@pytest.mark.parametrize(
    ("where", "ranges", "expected"),
    [
        ({}, RANGES, Selected.ALL),
        ({"month": {"2026-12-01"}}, RANGES, Selected.NONE),
        ({"day": {"2026-10-31", "2026-11-04"}}, RANGES, Selected.NONE),
        ({"day": {"2026-11-01", "2026-11-03"}}, RANGES, Selected.SOME),
        ({"day": {"2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"}}, RANGES, Selected.ALL),
        ({"day": {None}}, RANGES, Selected.NONE),
        ({"source": {"a", "e", "da"}}, RANGES, Selected.NONE),
        ({"source": {"b", "d"}}, RANGES, Selected.SOME),
        ({"source": {"c"}, "day": {"2026-11-04"}}, RANGES, Selected.NONE),
        ({"source": {"b"}}, {"source": Range("b", "b", 0)}, Selected.ALL),
        ({"source": {"b"}}, {"source": Range("b", "b", 1)}, Selected.SOME),
        ({"source": {"b", None}}, {"source": Range("b", "b", 1)}, Selected.ALL),
        ({"source": {"a", None}}, {"source": Range("b", "b", 1)}, Selected.SOME),
        ({"source": {"a", None}}, {"source": Range(None, None, 3)}, Selected.ALL),
        ({"source": {"a"}}, {"source": Range(None, None, 3)}, Selected.NONE),
        ({"source": {"b"}}, {}, Selected.SOME),
        ({"source": set()}, {}, Selected.NONE),
        ({"id": {"7"}}, {"id": Range(7, 7, 0)}, Selected.SOME),
    ],
)
def test_a_range_shows_which_rows_of_a_file_are_selected(
    where: dict[str, set[str | None]], ranges: dict[str, Range], expected: Selected
) -> None:
    file = DataFile(Path("x.parquet"), {"month": "2026-11-01"}, 3, 1, ranges)
    assert file.selected(where) is expected


def test_selected_rows_are_those_whose_text_is_named() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, None], "b": ["x", None, "x"]})
    for where, expected in (
        ({}, [True, True, True]),
        ({"a": {"1", None}}, [True, False, True]),
        ({"b": {"x"}, "a": {"1", "2"}}, [True, False, False]),
        ({"a": set()}, [False, False, False]),
        ({"none": {None}}, [True, True, True]),
        ({"none": {"1"}}, [False, False, False]),
    ):
        assert data_files.selected_rows(batch, where).to_pylist() == expected, where


def test_the_log_has_the_statistics_of_a_month(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        add(table, [FIRST, OTHER, letter(3, day="2026-11-30") | {"table": "y" * 129}])
        [file] = table.files()
        assert file.ranges == {
            "day": Range(FIRST["day"], letter(0, day="2026-11-30")["day"], 0),
            "source": Range("main", "other", 0),
        }
    [entry] = (tmp_path / "letters" / "_delta_log").glob("*.json")
    [line] = [json.loads(line)["add"] for line in entry.read_text().splitlines() if "add" in json.loads(line)]
    statistics = json.loads(line["stats"])
    assert statistics["minValues"]["day"] == "2026-11-01"
    assert statistics["maxValues"]["hour"] == 7
    assert statistics["nullCount"]["hour"] == 2
    assert "table" not in statistics["maxValues"], "it is too long"
    assert not {"weight", "body", "seen"} & statistics["minValues"].keys()
    assert rows(contents(table, {"day": {"2026-11-30"}}))[0]["id"] == 3
