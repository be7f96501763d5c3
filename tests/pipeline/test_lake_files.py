"""Files of the lake: commits that are killed, files that nobody uses, and small ones that become few large ones."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from restante.common import atomic_file
from restante.common.errors import StoreError
from restante.pipeline.lake import compact as lake_compact
from restante.pipeline.lake import data_files, delta_log, delta_table, staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake import writer as lake_writer
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.url_path import path_below
from restante.pipeline.lake.vacuum import vacuum
from restante.pipeline.schemas import Table
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
from support.processes import run

COMMITS: Final = """
import os, pickle, signal, sys
from pathlib import Path
from restante.pipeline.lake import delta_table, staging
from restante.pipeline.lake import table as lake_table
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.lake import Lake
from support.pipeline.lakes import held

cases, table, info, rows = pickle.loads(bytes.fromhex(sys.argv[1]))
lake_table.COMMITS_PER_CHECKPOINT = 1


def deadly(properly, count, after):
    def instead(*given, **named):
        nonlocal count
        count -= 1
        if not count and after == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = properly(*given, **named)
        if not count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return instead


for path, where in cases:
    if not (child := os.fork()):
        with Lake.open(path, write=True) as lake:
            opened = lake.table(table)
            staged = opened.stage(held(rows, table)) if rows else None
            module, name, count, after = where.split()
            owner = {**globals(), "table": lake_table.LakeTable, "shutil": staging.shutil}[module]
            setattr(owner, name, deadly(getattr(owner, name), int(count), after))
            if staged is None:
                compact(opened, info.run, lambda: info.finished)
            else:
                opened.commit([staged], info=info, replace={"day": {"2026-11-01"}})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

BEFORE: Final = [
    "staging move_into_table 1 before",
    "staging flush 1 before",
    "staging flush 2 before",
    "staging flush 4 after",
    "shutil rmtree 1 before",
    "staging move_into_table 1 after",
    "delta_table append_commit 1 before",
]
"""Where it dies, before there is a new version. Then, if rows of a file stay; and when there is a new version."""

BEFORE_REST: Final = [
    f"staging {function} {when}" for function in ("write_file 1", "move_into_table 2") for when in ("before", "after")
]
AFTER: Final = ["delta_table append_commit 1 after", "table _flush_commit 1 before", "table _flush_commit 1 after"]

some_moments = pytest.mark.parametrize(
    "moments", [slice(None, None, 4), pytest.param(slice(None), marks=pytest.mark.thorough)], ids=["few", "all"]
)


def kill(lake: Path, moments: Sequence[str], table: Table, new: Sequence[Row] = ()) -> list[tuple[Path, str]]:
    copies = [shutil.copytree(lake, lake.with_name(str(number))) for number in range(len(moments))]
    cases = list(zip(copies, moments, strict=True))
    killed = run(sys.executable, "-c", COMMITS, pickle.dumps((cases, table, info("new"), new)).hex())
    assert killed.stdout.split() == ["-9"] * len(cases), killed.stderr
    return cases


@some_moments
@pytest.mark.parametrize(
    ("is_first", "letters"),
    [(True, LETTERS), (False, LETTERS), (False, MONTHLY_LETTERS)],
    ids=["the first commit", "a later one", "one that replaces some rows of a file"],
)
def test_a_killed_commit_was_made_or_was_not(tmp_path: Path, is_first: bool, letters: Table, moments: slice) -> None:
    old = [] if is_first else [letter(1), letter(2, day="2026-11-02")]
    added = [letter(3), letter(4, hour=7)]
    new = [*old[1:], *added]
    with opened(tmp_path / "lake", letters) as table:
        if old:
            add(table, old, run="old")
    points = [*BEFORE, *(BEFORE_REST if letters.by_month else ()), *AFTER][moments]
    for copy, where in kill(tmp_path / "lake", points, letters, added):
        made = where in AFTER
        assert stored(copy, letters) == (new if made else old), where
        table_then = seen(copy, letters)
        assert [commit.run for commit in lakes.infos(table_then)] == ["new"] * made + ["old"] * bool(old), where

        with opened(copy, letters) as table:  # the lock went with the process
            add(table, added, replace={"day": {"2026-11-01"}})
            vacuum(table, grace=0, now=4e9)
            assert files(copy) == {file.path for file in table.files()}, where
        assert stored(copy, letters) == new, where


@some_moments
def test_a_killed_compaction_has_merged_the_files_or_has_not(tmp_path: Path, moments: slice) -> None:
    rows = [letter(number, day=f"2026-11-0{number}") for number in (1, 2, 3)]
    with opened(tmp_path / "lake", MONTHLY_LETTERS) as table:
        for row in rows:
            add(table, [row])
    before = [point for point in [*BEFORE_REST[:2], *BEFORE] if "flush 4" not in point]
    for copy, where in kill(tmp_path / "lake", [*before, *AFTER][moments], MONTHLY_LETTERS):
        assert stored(copy, MONTHLY_LETTERS) == rows, where
        assert len(seen(copy, MONTHLY_LETTERS).files()) == (1 if where in AFTER else 3), where
        with opened(copy, MONTHLY_LETTERS) as table:
            compact(table, "again", lambda: 2e9)
            vacuum(table, grace=0, now=4e9)
            [file] = table.files()
            assert files(copy) == {file.path}, where
        assert stored(copy, MONTHLY_LETTERS) == rows, where


def files(lake: Path) -> set[Path]:
    paths = [*(lake / "letters").rglob("*")]
    assert not [path for path in paths if path.is_dir() and not any(path.iterdir())]
    return {path for path in paths if path.is_file() and path.parent.name != "_delta_log"}


def test_files_are_flushed_before_the_commit_and_it_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properly, append = atomic_file.flush, delta_table.append_commit
    done: list[str | Path] = []

    def flush(path: Path) -> None:
        done.append(path)
        properly(path)

    def commit(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        done.append("commit")

    for module in (staging, lake_table):
        monkeypatch.setattr(module, "flush", flush)
    monkeypatch.setattr(delta_table, "append_commit", commit)
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    folder, log = tmp_path / "letters", tmp_path / "letters" / "_delta_log"
    main = folder / "day=2026-11-01" / "source=main"
    with opened(tmp_path) as table:
        for version in range(2):
            done.clear()
            staged = table.stage(held([letter(1), letter(2, hour=3)]))
            table.commit([staged], info=info())
            at = done.index("commit")
            hours = {main / f"hour={hour}" for hour in (3, data_files.NULL_FOLDER)}
            of_files = {file.path for file in staged.files}
            assert set(done[:at]) == {*of_files, *hours, main, main.parent, folder, tmp_path}
            assert done[at + 1 : at + 4] == [log / f"{version:020}.json", log, folder]
            checkpoint = [log / f"{version:020}.checkpoint.parquet", log / "_last_checkpoint", log] if version else []
            assert done[at + 4 :] == checkpoint


def test_vacuum_keeps_every_file_that_is_in_use(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)], finished=1000.0)
        add(table, [letter(2), letter(3, day="2026-11-02")], replace={}, finished=2000.0)
        second = {file.path for file in table.files()}
        [old] = files(tmp_path) - second
        size = old.stat().st_size
        assert vacuum(table, grace=100, now=2099.9) == []
        assert [tuple(file) for file in vacuum(table, grace=100, now=2100.0)] == [(old, size)]
        assert files(tmp_path) == second
        table.commit(info=info(finished=3000.0), replace={})
        DeltaTable(tmp_path / "letters").restore(1)
    with opened(tmp_path) as table:
        assert table.version == 3
        assert vacuum(table, grace=0, now=4e9) == [], "another program restored them"
    assert stored(tmp_path) == [letter(2), letter(3, day="2026-11-02")]


def test_files_that_were_never_in_a_version_count_from_when_they_were_written(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
        staged = table.stage(held([letter(2)]))
        placed = local(staging.move_into_table(staged, table.folder)[0].path)  # a commit that failed, or is to come
        os.utime(placed, (1_000_000, 1_000_000))
        table.stage(held([letter(3)]))
        readme = local(table.folder) / "README"
        readme.write_text("somebody's")
        cut_off = vacuum(table, grace=100, now=1_000_099)
        assert {local(file.path).suffix for file in cut_off} == {".parquet"}
        assert {path_below(file.path, table.folder).parts[0][:4] for file in cut_off} == {"run-"}
        assert [file.path for file in vacuum(table, grace=100, now=1_000_100)] == [placed]
        assert files(tmp_path) == {readme, *(file.path for file in table.files())}


def test_a_file_whose_removal_was_cleaned_counts_by_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "COMMITS_PER_CHECKPOINT", 1)
    with opened(tmp_path) as table:
        add(table, [letter(1)], finished=1000.0)
        [old] = files(tmp_path)
        os.utime(old, (1000, 1000))
        add(table, [letter(2)], replace={}, finished=2000.0)
        [kept_path] = [local(file.path) for file in table.files()]
        os.utime(kept_path, (2000, 2000))
        assert vacuum(table, grace=1500, now=2600.0) == [], "it was replaced only 600 s ago"
        monkeypatch.setattr(delta_log, "LOG_RETENTION_SECONDS", float("-inf"))
        for _ in range(3):
            table.commit(info=info())
        assert not delta_log.entry_path(table.folder, 1).exists()
        assert [file.path for file in vacuum(table, grace=1500, now=2600.0)] == [old]
        assert vacuum(table, grace=0, now=4e9) == []
    assert stored(tmp_path) == [letter(2)]


@pytest.mark.parametrize("lost", ["the log", "its entries"])
def test_vacuum_keeps_the_files_of_a_table_whose_log_is_lost(tmp_path: Path, lost: str) -> None:
    lakes.put(tmp_path, [letter(1)])
    log = tmp_path / "letters" / "_delta_log"
    shutil.rmtree(log)
    if lost == "its entries":
        log.mkdir()
        (log / "README").touch()
    before = files(tmp_path)
    with opened(tmp_path) as table:
        table.stage(held([letter(2)]))
        assert len(vacuum(table, grace=0, now=4e9)) == 1
    assert files(tmp_path) == before


def test_only_the_folders_of_jobs_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, [letter(1)])
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "deed.txt").touch()
        folder = local(table.folder)
        local(staging.job_folder(folder, "0" * 32)).symlink_to(tmp_path / "precious")
        local(staging.job_folder(folder, "1" * 32)).touch()
        (folder / "run-2024").mkdir()
        (folder / "run-2024" / "results.parquet").touch()
        (folder / "run-notes.txt").touch()
        before = set(tmp_path.rglob("*"))
        assert vacuum(table, grace=0, now=4e9) == []
        table.stage(held([letter(2)])).discard()
        assert set(tmp_path.rglob("*")) == before


def test_the_next_writer_of_a_table_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    other = LETTERS._replace(name="other")
    for letters in (LETTERS, other):
        with opened(tmp_path, letters) as table:
            job = local(table.stage(held([letter(1)])).folder)
            shutil.copytree(job, job.with_name(f"{job.name}.gone"))  # it was being removed, and tasks still wrote
    with opened(tmp_path) as table:
        old, new = [table.stage(held([letter(number)])) for number in (2, 3)]
        assert set((tmp_path / "letters").glob("run-*")) == {old.folder, new.folder}
        table.commit([old, new], info=info())
    assert files(tmp_path) == {file.path for file in seen(tmp_path).files()}
    assert stored(tmp_path) == [letter(2), letter(3)]
    assert len(list((tmp_path / "other").glob("run-*"))) == 2, "nobody wrote there"


NOW = 1_795_000_000.0


def merged(path: Path, letters: Table = MONTHLY_LETTERS) -> list[lake_compact.Merge]:
    with opened(path, letters) as table:
        return compact(table, "compact", lambda: NOW)


def days_of_november() -> list[Row]:
    return [letter(day, day=f"2026-11-{day:02}", source="ab"[day % 2]) for day in range(1, 31)]


def test_a_merged_file_is_in_the_order_of_days_and_other_programs_see_that_no_row_changed(
    tmp_path: Path,
) -> None:
    days = days_of_november()[::5]
    letters = [row | {"source": source} for row in days for source in "bAa"]
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for row in Random(1).sample(letters, len(letters)):
            add(table, [row])
    merged(tmp_path)
    [file] = seen(tmp_path, MONTHLY_LETTERS).files()
    in_file = pq.ParquetFile(file.path).read(columns=["day"]).column("day").to_pylist()
    assert in_file == sorted(in_file)
    assert (file.ranges["day"].minimum, file.ranges["day"].maximum) == (days[0]["day"], days[-1]["day"])
    log = tmp_path / "letters" / "_delta_log" / f"{len(letters):020}.json"
    changes = [line for line in log.read_text().splitlines() if '"add"' in line or '"remove"' in line]
    assert len(changes) == len(letters) + 1
    assert all('"dataChange":false' in line for line in changes)


def test_the_files_of_other_programs_and_of_other_versions_are_merged_too(tmp_path: Path) -> None:
    lakes.put(tmp_path, [letter(1)])
    lakes.add_foreign(tmp_path, [letter(2)])
    with opened(tmp_path, lakes.LATER_LETTERS) as later:
        add(later, [letter(3) | {"answered": 0.5}])
        before = rows(lakes.contents(later))
    assert [len(merge.files) for merge in merged(tmp_path, lakes.LATER_LETTERS)] == [3]
    assert rows(lakes.contents(seen(tmp_path, lakes.LATER_LETTERS))) == before


def file(number: int, size: int, rows: int = 1, month: str = "2026-11-01") -> DataFile:
    return DataFile(Path(f"{number}.parquet"), {"month": month}, rows, size)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([file(1, 9), file(2, 9), file(3, 9, month="2026-12-01")], [[1, 2]]),
        ([file(1, 9), file(2, lake_compact.MAX_MERGED_BYTES // 2 + 1), file(3, 9)], [[1, 3]]),
        ([file(1, 9), file(2, 9, lake_compact.MAX_MERGED_ROWS // 2 + 1), file(3, 9)], [[1, 3]]),
        ([file(1, 9), file(2, 9, rows=0), file(3, 9)], [[1, 3]]),
        ([file(at, lake_compact.MAX_MERGED_BYTES // 2) for at in range(1, 6)], [[1, 2], [3, 4]]),
        ([file(at, 1, lake_compact.MAX_MERGED_ROWS // 3) for at in range(1, 7)], [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_files_are_merged_up_to_a_size_and_a_number_of_rows(files: list[DataFile], expected: list[list[int]]) -> None:
    table: Any = SimpleNamespace(table=MONTHLY_LETTERS, files=lambda: files)
    assert [
        [int(local(file.path).stem) for file in merge.files] for merge in lake_compact.planned_merges(table)
    ] == expected


@pytest.mark.parametrize("same", [True, False], ids=["the same text", "each row its own"])
def test_long_texts_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, same: bool) -> None:
    """Two files of 2,000 rows with long texts take 4.2 MB in memory each, however little they take on the disk."""
    texts = ["\U0001f4ee" * 127 + ("x" if same else chr(0x10000 + at)) for at in range(2_000)]
    letters = [letter(at) | {"table": text, "body": text.encode() * 3} for at, text in enumerate(texts)]
    group_bytes = 1 << 19
    monkeypatch.setattr(lake_writer, "ROW_GROUP_BYTES", group_bytes)
    monkeypatch.setattr(lake_writer, "PART_BYTES", group_bytes >> 4)
    monkeypatch.setattr(lake_compact, "BATCH_ROWS", 100)
    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for _ in range(2):
            add(table, letters)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        [merge] = merged(tmp_path)
    finally:
        pa.set_memory_pool(before)
    assert merge.rows == 2 * len(letters)
    assert pool.max_memory() < 8 * group_bytes < 8_400_000
    [file] = seen(tmp_path, MONTHLY_LETTERS).files()
    with data_files.open_parquet(file.path) as parquet:
        for group in range(parquet.num_row_groups):
            assert parquet.metadata.row_group(group).total_byte_size <= group_bytes
            assert parquet.read_row_group(group).nbytes <= group_bytes
    assert sorted(stored(tmp_path, MONTHLY_LETTERS), key=repr) == sorted(letters * 2, key=repr)


def test_work_is_committed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_compact, "MAX_COMMIT_BYTES", 1)
    with opened(tmp_path) as table:
        for row in days_of_november()[:3] * 2:
            add(table, [row])
    assert len(merged(tmp_path, LETTERS)) == 3
    assert seen(tmp_path).version == 5 + 3


def test_a_merged_file_that_lacks_a_row_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properly = staging.write_file

    def faulty(path: Path, partition: Any, schema: pa.Schema, batches: list[pa.RecordBatch]) -> DataFile:
        return properly(path, partition, schema, pa.Table.from_batches(batches).slice(1).to_batches())

    with opened(tmp_path, MONTHLY_LETTERS) as table:
        for row in days_of_november()[:3]:
            add(table, [row])
    monkeypatch.setattr(staging, "write_file", faulty)
    with pytest.raises(StoreError, match=r"has 2 rows, and the table.s log says that they have 3"):
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
    assert [row["id"] for row in stored(tmp_path, MONTHLY_LETTERS)] == [1, 3]
