"""Many small files become few large ones, and no reader notices but by its speed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import StoreError
from restante.pipeline.lake import coded, data_files, staging
from restante.pipeline.lake import compact as lake_compact
from restante.pipeline.lake import writer as lake_writer
from restante.pipeline.lake.commit_info import Ledger, Mark
from restante.pipeline.lake.compact import (
    MAX_MERGED_BYTES,
    MAX_MERGED_MEMORY,
    MAX_MERGED_ROWS,
    Merge,
    compact,
    merges,
)
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.digest import digest
from restante.pipeline.schemas import Table
from support.effort import examples
from support.pipeline.lakes import (
    LATER_LETTERS,
    LETTERS,
    MONTHLY_LETTERS,
    Row,
    add,
    add_foreign,
    arrow,
    contents,
    infos,
    letter,
    opened,
    rows,
    seen,
    stored,
)

NOW = 1_795_000_000.0


def merged(path: Path, table: Table = MONTHLY_LETTERS) -> list[Merge]:
    with opened(path, table) as there:
        return compact(there, "compact", lambda: NOW)


def days_of_november() -> list[Row]:
    return [letter(day, day=f"2026-11-{day:02}", source="ab"[day % 2]) for day in range(1, 31)]


@pytest.mark.parametrize("table", [MONTHLY_LETTERS, LETTERS], ids=["by month", "by day"])
def test_the_files_of_a_partition_become_one_and_the_rows_stay(tmp_path: Path, table: Table) -> None:
    marks = {"": Mark(2, "d2", 1, "d1")}
    with opened(tmp_path, table) as there:
        for row in days_of_november()[:9]:
            for hour in (None, 7):
                add(there, [row | {"hour": hour}, letter(99, day="2026-10-31")])
        add(there, [], source="a", ledger=Ledger(), marks=marks)
        before, point = len(there.files()), there.point
    assert point is not None
    old = stored(tmp_path, table=table)
    done = merged(tmp_path, table)
    after = seen(tmp_path, table)
    assert len(after.files()) == len({tuple(file.partition.values()) for file in after.files()}) < before
    assert sum(len(each.files) for each in done) + len(after.files()) - len(done) == before
    assert sorted(stored(tmp_path, table=table), key=repr) == sorted(old, key=repr)
    assert after.follows(point)
    assert after.state.days(after=point.version) == set(), "nothing is to be built again"
    assert (infos(after)[0].run, after.marks("a")) == ("compact", marks)
    assert merged(tmp_path, table) == []
    assert seen(tmp_path, table).version == after.version, "there was nothing to commit"


def test_a_merged_file_is_sorted_and_other_programs_are_told_that_no_row_changed(tmp_path: Path) -> None:
    days = days_of_november()[::5]
    given = [row | {"source": source} for row in days for source in "bAa"]
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for row in Random(1).sample(given, len(given)):
            add(table, [row])
    merged(tmp_path)
    [file] = seen(tmp_path, MONTHLY_LETTERS).files()
    found = pq.ParquetFile(file.path).read(columns=["day", "source"]).to_pylist()
    assert found == sorted(found, key=lambda row: (row["day"], row["source"]))
    assert (file.ranges["day"].least, file.ranges["day"].greatest) == (days[0]["day"], days[-1]["day"])
    log = tmp_path / "letters" / "_delta_log" / f"{len(given):020}.json"
    changes = [line for line in log.read_text().splitlines() if '"add"' in line or '"remove"' in line]
    assert len(changes) == len(given) + 1
    assert all('"dataChange":false' in line for line in changes)


def test_the_files_of_other_programs_and_of_other_versions_are_merged_too(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
    add_foreign(tmp_path, [letter(2)])
    with opened(tmp_path, LATER_LETTERS) as later:
        add(later, [letter(3) | {"answered": 0.5}])
        before = rows(contents(later))
    assert [len(each.files) for each in merged(tmp_path, LATER_LETTERS)] == [3]
    assert rows(contents(seen(tmp_path, LATER_LETTERS))) == before


def file(number: int, size: int, rows: int = 1, month: str = "2026-11-01") -> DataFile:
    return DataFile(Path(f"{number}.parquet"), {"month": month}, rows, size)


@pytest.mark.parametrize(
    ("files", "memory", "expected"),
    [
        ([], [], []),
        ([file(1, 9)], [1], []),
        ([file(1, 9), file(2, 9), file(3, 9, month="2026-12-01")], [1] * 3, [[1, 2]]),
        ([file(1, 9), file(2, MAX_MERGED_BYTES // 2 + 1), file(3, 9)], [1] * 3, [[1, 3]]),
        ([file(1, 9), file(2, 9, MAX_MERGED_ROWS // 2 + 1), file(3, 9)], [1] * 3, [[1, 3]]),
        ([file(1, 9), file(2, 9, rows=0), file(3, 9)], [1] * 3, [[1, 3]]),
        ([file(at, MAX_MERGED_BYTES // 2) for at in range(1, 6)], [1] * 5, [[1, 2], [3, 4]]),
        ([file(at, 1, MAX_MERGED_ROWS // 3) for at in range(1, 7)], [1] * 6, [[1, 2, 3], [4, 5, 6]]),
        ([file(at, 1) for at in range(1, 4)], [1, None, 1], [[1, 3]]),
        ([file(at, 1) for at in range(1, 4)], [1, MAX_MERGED_MEMORY // 2 + 1, 1], [[1, 3]]),
        ([file(at, 1) for at in range(1, 4)], [MAX_MERGED_MEMORY // 2 + 1] * 3, []),
        ([file(at, 1) for at in range(1, 6)], [MAX_MERGED_MEMORY // 2] * 5, [[1, 2], [3, 4]]),
    ],
)
def test_files_are_merged_up_to_a_size_a_number_of_rows_and_what_these_take_in_memory(
    files: list[DataFile], memory: list[int | None], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coded, "needed", lambda file, _: memory[int(file.path.stem) - 1])
    table: Any = SimpleNamespace(table=MONTHLY_LETTERS, files=lambda: files)
    assert [[int(each.path.stem) for each in merge.files] for merge in merges(table)] == expected


def long_texts(path: Path, *, same: bool) -> list[Row]:
    """Add two files of 2,000 rows with long texts, which take 4.2 MB in memory each."""
    texts = ["\U0001f4ee" * 127 + ("x" if same else chr(0x10000 + at)) for at in range(2_000)]
    given = [letter(at) | {"table": text, "body": text.encode() * 3} for at, text in enumerate(texts)]
    for _ in range(2):
        with opened(path, MONTHLY_LETTERS) as table:
            add(table, given)
    return given * 2


@pytest.mark.parametrize("same", [True, False], ids=["the same text", "each row its own"])
def test_long_texts_are_in_small_groups_and_in_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, same: bool
) -> None:
    group_bytes = 1 << 19
    monkeypatch.setattr(lake_writer, "ROW_GROUP_BYTES", group_bytes)
    for module in (coded, lake_writer):
        monkeypatch.setattr(module, "PART_BYTES", group_bytes >> 4)
    given = long_texts(tmp_path, same=same)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        [merge] = merged(tmp_path)
    finally:
        pa.set_memory_pool(before)
    assert merge.rows == len(given)
    assert not same or pool.max_memory() < 8 * group_bytes < 8_400_000
    [file] = seen(tmp_path, MONTHLY_LETTERS).files()
    with data_files.opened(file.path) as parquet:
        for group in range(parquet.num_row_groups):
            assert parquet.metadata.row_group(group).total_byte_size <= group_bytes
            assert parquet.read_row_group(group).nbytes <= group_bytes
    assert sorted(stored(tmp_path, table=MONTHLY_LETTERS), key=repr) == sorted(given, key=repr)


def test_files_whose_rows_take_too_much_memory_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long_texts(tmp_path, same=False)
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for file in table.files():
            needed = coded.needed(file, MONTHLY_LETTERS)
            assert needed is not None
            assert coded.read([file], MONTHLY_LETTERS).nbytes <= needed, "it is known before they are read"
        add(table, [letter(1)])
        add(table, [letter(2)])
    monkeypatch.setattr(lake_compact, "MAX_MERGED_MEMORY", 4 << 20)
    assert [merge.rows for merge in merged(tmp_path)] == [2]
    assert merged(tmp_path) == []
    path = tmp_path / "x.parquet"
    rows = pa.Table.from_pylist([letter(1), letter(2)], arrow(LETTERS))
    pq.write_table(rows, path, use_dictionary=False, column_encoding={"table": "DELTA_BYTE_ARRAY"})
    assert coded.needed(file._replace(path=path), MONTHLY_LETTERS) is None, "texts share bytes: that is not known"


def test_work_is_committed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_compact, "MAX_COMMIT_BYTES", 1)
    with opened(tmp_path) as table:
        for row in days_of_november()[:3] * 2:
            add(table, [row])
    assert len(merged(tmp_path, LETTERS)) == 3
    assert seen(tmp_path).version == 5 + 3


def test_a_merged_file_with_other_rows_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properly = staging.write

    def faulty(path: Path, partition: Any, schema: pa.Schema, batches: list[pa.RecordBatch]) -> DataFile:
        rows = pa.Table.from_batches(batches).to_pylist()
        rows[0]["size"] += 1
        return properly(path, partition, schema, pa.Table.from_pylist(rows, schema).to_batches())

    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for row in days_of_november()[:3]:
            add(table, [row])
    monkeypatch.setattr(staging, "write", faulty)
    with pytest.raises(StoreError, match=r"merged from 3 others, does not have their rows: it was not committed"):
        merged(tmp_path)
    assert len(seen(tmp_path, MONTHLY_LETTERS).files()) == 3
    assert not list((tmp_path / "letters").glob("run-*"))


def test_files_that_another_program_removed_at_the_same_time_are_not_brought_back(tmp_path: Path) -> None:
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for row in days_of_november()[:3]:
            add(table, [row])
        DeltaTable(tmp_path / "letters").delete("day = '2026-11-02'")
        with pytest.raises(StoreError, match="another program changed"):
            compact(table, "compact", lambda: NOW)
    assert [row["id"] for row in stored(tmp_path, table=MONTHLY_LETTERS)] == [1, 3]


def of(rows: list[Row]) -> int:
    return digest(pa.Table.from_pylist(rows, arrow(LETTERS)))


@examples(50)
@given(
    st.lists(st.builds(letter, st.integers(0, 40), source=st.sampled_from("ab"), hour=st.none() | st.just(0))),
    st.randoms(use_true_random=False),
    st.integers(0, 40),
)
def test_a_digest_is_of_rows_in_any_order_and_any_tables(given: list[Row], dice: Random, cut: int) -> None:
    mixed = dice.sample(given, len(given))
    assert (of(mixed[:cut]) + of(mixed[cut:])) % 2**64 == of(given)


def test_a_digest_changes_with_each_column() -> None:
    one, other = (letter(number, day=f"2026-11-0{number}", source=str(number), hour=number) for number in (1, 2))
    zero = {"id": 0, "size": 0, "hour": 0, "weight": 0.0, "table": "", "source": "", "body": b""}
    for column in one:
        variants = [one, one | {column: other[column]}, one | {column: None}]
        variants += [one | {column: zero[column]}] if column in zero else []
        assert len({of([each]) for each in variants}) == len(variants), column


def test_values_may_not_change_places_between_rows_or_columns() -> None:
    def of(a: list[int | None], b: list[int | None]) -> int:
        return digest(pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64())}))

    assert of([1, 3], [2, 4]) == of([3, 1], [4, 2])
    others: list[tuple[list[int | None], list[int | None]]]
    others = [([1, 3], [4, 2]), ([2, 4], [1, 3]), ([1, 3], [2, None]), ([1, None], [2, 3]), ([1, 3], [2, 4])]
    assert len({of(*columns) for columns in others}) == len(others)
    assert len({of([1] * times, [2] * times) for times in range(4)}) == 4, "a row that is there twice counts twice"
