"""What a task writes, without Spark: batches in, files out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.lake import data_files
from restante.pipeline.lake import writer as lake_writer
from restante.pipeline.lake.writer import writer

Rows = list[tuple[str | None, int, bytes | None]]
"""Of two partition columns, and a value."""

SCHEMA = pa.schema([("text", pa.string()), ("value", pa.binary()), ("number", pa.int32())])
rows = st.lists(
    st.tuples(st.sampled_from(["a", "b=c/d%20 .*", "é", None]), st.integers(0, 2), st.none() | st.binary(max_size=4))
)


def batch(given: Rows) -> pa.RecordBatch:
    texts, numbers, values = zip(*given, strict=True) if given else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(texts, pa.string()), pa.array(values, pa.binary()), pa.array(numbers, pa.int32())], schema=SCHEMA
    )


def written(folder: Path, batches: Sequence[Rows]) -> list[Path]:
    [made] = writer(folder, ("text", "number"))(batch(each) for each in batches)
    return [Path(path) for path in made.column("path").to_pylist()]


def read(folder: Path, paths: Sequence[Path]) -> Iterator[tuple[str | None, int, bytes | None]]:
    for path in paths:
        partition = data_files.partition(path.relative_to(folder))
        assert list(partition) == ["text", "number"]
        for value in pq.ParquetFile(path).read().column("value").to_pylist():
            yield partition["text"], int(partition["number"] or ""), value


@given(st.lists(rows, max_size=4))
def test_every_row_is_in_a_file_of_its_partition_in_any_order(batches: list[Rows]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = written(folder, batches)
        assert sorted(folder.rglob("*.parquet")) == sorted(paths)
        assert sorted(read(folder, paths), key=repr) == sorted((row for each in batches for row in each), key=repr)


def test_rows_that_come_in_order_are_one_file_a_partition(tmp_path: Path) -> None:
    ordered: Rows = [("a", 0, b"1"), ("a", 0, b"2"), ("a", 1, b"3"), ("b", 1, b"4")]
    assert len(written(tmp_path, [ordered[:1], [], ordered[1:]])) == 3


def test_nothing_is_written_once_the_job_s_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        written(tmp_path / "gone", [[("a", 0, b"x")]])
    assert not (tmp_path / "gone").exists()


def test_the_first_error_is_reported_and_not_the_unfinished_file(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch([("a", 0, b"x")])
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(writer(tmp_path, ("text", "number"))(batches()))
    [path] = tmp_path.rglob("*.parquet")
    assert pq.ParquetFile(path).metadata.num_rows == 0, "what was held is not written"


def test_a_full_disk_is_reported_in_the_system_s_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_writer, "ROW_GROUP_ROWS", 1)
    (tmp_path / "text=a" / "number=0").mkdir(parents=True)
    monkeypatch.setattr("uuid.uuid4", lambda: UUID(int=0))
    (tmp_path / "text=a" / "number=0" / f"part-00000-{UUID(int=0).hex}.parquet").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        written(tmp_path, [[("a", 0, b"x" * 100_000)]])


def test_rows_in_memory_are_written_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(rows: int) -> int:
        (tmp_path / str(rows)).mkdir(exist_ok=True)
        [path] = written(tmp_path / str(rows), [[("a", 0, b"x")]] * rows)
        return int(pq.ParquetFile(path).num_row_groups)

    assert groups(5) == 1
    monkeypatch.setattr(lake_writer, "ROW_GROUP_ROWS", 2)
    assert groups(5) == 3
    monkeypatch.setattr(lake_writer, "ROW_GROUP_BYTES", 1)
    assert groups(5) == 5


def test_a_large_batch_becomes_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_writer, "ROW_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(lake_writer, "PART_BYTES", 1 << 16)
    long = [*range(100), b"x" * (3 << 20)]
    given: Rows = [("a", 0, each if isinstance(each, bytes) else bytes([each]) * 50_000) for each in long]
    [path] = written(tmp_path, [given])
    with pq.ParquetFile(path) as parquet:
        sizes = [parquet.metadata.row_group(group).total_byte_size for group in range(parquet.num_row_groups)]
    assert [size > 1 << 20 for size in sizes] == [False] * 5 + [True], "a larger row is a group alone"
    assert list(read(tmp_path, [path])) == given
