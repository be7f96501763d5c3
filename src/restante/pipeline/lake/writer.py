"""The writer of a task on this machine's Spark workers: Parquet files by pyarrow, one folder per partition.

Spark's own writer goes through Hadoop, which starts a `chmod` for each folder and makes each folder twice (Hadoop's
RawLocalFileSystem.setPermission and FileOutputCommitter): two seconds for sixty small files. It also lets its
committer decide which of two attempts at a task counts. With ours, the paths that the job returns decide.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from restante.pipeline.lake.data_files import partition_folder
from restante.pipeline.schemas import MONTH_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

PartitionValues = tuple[str | None, ...]
"""The values of a partition, as text."""

WRITTEN_DDL: Final = "path STRING"
"""The schema of what a job returns, in Spark's DDL: one row per file."""

ROW_GROUP_BYTES: Final = 64 << 20
"""Maximum bytes of a row group, in memory; a larger row is a group alone. A reader reads a group as a whole, and a
task has one in memory. Spark's writer, which also has one per core, uses twice as much."""

ROW_GROUP_ROWS: Final = 1 << 20
"""Maximum rows of a row group. Readers share a file's groups among their cores, so a group of small rows must not
have too many."""

PART_BYTES: Final = 4 << 20
"""Maximum bytes of the parts into which larger batches are cut, in memory. A row group has whole parts, so it may be
this much smaller than ROW_GROUP_BYTES; smaller parts would cost more time than they save."""


def task_writer(
    run: Path, partitions: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for DataFrame.mapInArrow that writes a task's rows below `run`.

    Rows may come in any order. Rows of a partition that are not adjacent go into several files. A partition `month`
    that the rows do not have is computed from their day. The function raises OSError if a file cannot be written.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        task = uuid.uuid4().hex
        paths: list[str] = []
        file: OpenFile | None = None
        file_values: PartitionValues = ()
        try:
            for batch in batches:
                for values, rows in _runs(batch, partitions):
                    if file is None or file_values != values:
                        if file is not None:
                            file.close()
                        folder = _make_folder(run, partition_folder(zip(partitions, values, strict=True)))
                        paths.append(str(folder / f"part-{len(paths):05}-{task}.parquet"))
                        file = OpenFile(paths[-1], rows.schema)
                        file_values = values
                    file.add(rows)
            if file is not None:
                file.close()
        except BaseException:
            if file is not None:
                file.abandon()
            raise
        yield pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})

    return write


def _make_folder(run: Path, below: PurePath) -> Path:
    """Make a folder, but not `run` itself: if `run` does not exist, the job was cancelled."""
    path = run
    for part in below.parts:
        path /= part
        path.mkdir(exist_ok=True)
    return path


def _runs(batch: pa.RecordBatch, partitions: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Cut a batch where the partition changes, and drop the partition columns, which the folder names."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    if MONTH_COLUMN.name in partitions and MONTH_COLUMN.name not in batch.schema.names:
        months = pc.cast(pc.floor_temporal(batch.column("day"), unit="month"), pa.date32())
        batch = batch.append_column(MONTH_COLUMN.name, months)
    cuts = np.zeros(batch.num_rows, dtype=bool)
    cuts[0] = True
    for name in partitions:
        codes = pc.dictionary_encode(batch.column(name), null_encoding="encode").indices.to_numpy()
        cuts[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(cuts)
    texts = [pc.cast(batch.column(name).take(pa.array(starts)), pa.string()).to_pylist() for name in partitions]
    rows = batch.drop_columns(list(partitions))
    ends = [*starts[1:].tolist(), batch.num_rows]
    for start, end, *values in zip(starts.tolist(), ends, *texts, strict=True):
        yield tuple(values), rows.slice(start, end - start)


def _cut_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch in halves until each is of PART_BYTES or one row."""
    if batch.num_rows > 1 and (batch.nbytes > PART_BYTES or batch.num_rows > ROW_GROUP_ROWS):
        half = batch.num_rows // 2
        yield from _cut_parts(batch.slice(0, half))
        yield from _cut_parts(batch.slice(half))
    else:
        yield batch


class OpenFile:
    """A file that is being written, and the rows of its next group."""

    def __init__(self, path: str | pa.NativeFile, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetWriter(path, schema, compression="zstd", store_schema=False)
        self._output = None if isinstance(path, str) else path
        self._parts: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows. They are written with the rest of their group."""
        for part in _cut_parts(rows):
            size = part.nbytes
            if self._bytes + size > ROW_GROUP_BYTES or self._rows + part.num_rows > ROW_GROUP_ROWS:
                self._write()
            self._parts.append(part)
            self._bytes += size
            self._rows += part.num_rows

    def _write(self) -> None:
        import pyarrow as pa

        if not self._parts:
            return
        self._file.write_table(pa.Table.from_batches(self._parts))
        self._parts.clear()
        self._bytes = self._rows = 0

    def close(self) -> None:
        """Write the last group and the footer."""
        self._write()
        self._file.close()
        if self._output is not None:
            self._output.close()

    def abandon(self) -> None:
        """Close the unfinished file, and ignore errors: the caller reports the error."""
        with contextlib.suppress(Exception):
            self._file.close()
