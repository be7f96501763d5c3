"""Merges the small files of a table into few large ones, without Spark.

Each run of `ingest` and `build` adds files. Their rows are written into one file per partition, sorted by day and
source, so that readers skip what they do not need. That file is read back, and its rows are compared with those of
the old files before a commit takes it. The commit changes no day, so nothing is built again. Readers of the version
before it keep the old files until `vacuum` removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.common.errors import StoreError
from restante.pipeline.lake import coded, columns, data_files, staging
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.digest import digest
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.writer import ROW_GROUP_ROWS
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa

MAX_MERGED_BYTES: Final = 64 << 20
"""Bytes of the files that become one. A larger file would make it no cheaper to open."""

MAX_MERGED_ROWS: Final = ROW_GROUP_ROWS
"""Rows of the files that become one. Their positions are sorted in memory, some 40 bytes for each row."""

MAX_MERGED_MEMORY: Final = 128 << 20
"""Bytes in memory of the rows that become one file, with each text once (coded.coded_size). MAX_MERGED_ROWS rows of
each table take less, but for long texts, which clients choose. Files of more stay apart. With it, compact took 500 to
610 MB for the texts that were tried: memory then has the texts several times, and a decoded row group."""

MAX_COMMIT_BYTES: Final = 256 << 20
"""Bytes of the old files that a commit replaces, before another one begins. A run that is killed loses no more work,
and the first run on an old lake does not take a commit for each of its days."""


class Merge(NamedTuple):
    """Files of one partition that become one file."""

    files: Sequence[DataFile]

    @property
    def rows(self) -> int:
        """Return the number of their rows."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Return their size, in bytes."""
        return sum(file.size for file in self.files)


def planned_merges(table: LakeTable) -> list[Merge]:
    """Return what is to be merged. Raises StoreError if a file cannot be read.

    A file of half the size, the rows or the memory of a merged one stays as it is. So does one that another program
    added without the number of its rows, which could not be compared, or whose footer does not show what its rows
    take in memory.
    """
    partitions: dict[tuple[str | None, ...], list[DataFile]] = {}
    for file in table.files():
        if file.size <= MAX_MERGED_BYTES // 2 and 0 < file.rows <= MAX_MERGED_ROWS // 2:
            partitions.setdefault(tuple(file.partition.values()), []).append(file)
    # Files of the same days are merged with each other.
    ordered = [sorted(files, key=lambda file: (file.first_day, file.path.name)) for files in partitions.values()]
    return [Merge(group) for files in ordered if len(files) > 1 for group in _groups(files, table.table)]


def _groups(files: Sequence[DataFile], table: Table) -> Iterator[list[DataFile]]:
    """Yield the files in groups that become one."""
    group: list[DataFile] = []
    size = rows = memory = 0
    for file in files:
        more = coded.coded_size(file, table)
        if more is None or more > MAX_MERGED_MEMORY // 2:
            continue
        if (
            size + file.size > MAX_MERGED_BYTES
            or rows + file.rows > MAX_MERGED_ROWS
            or memory + more > MAX_MERGED_MEMORY
        ):
            if len(group) > 1:
                yield group
            group, size, rows, memory = [], 0, 0, 0
        group.append(file)
        size, rows, memory = size + file.size, rows + file.rows, memory + more
    if len(group) > 1:
        yield group


def compact(table: LakeTable, name: str, now: Callable[[], float]) -> list[Merge]:
    """Merge small files, and return what was merged; `name` identifies the run.

    `now` returns the time in seconds since 1970. Raises StoreError if a file cannot be read or written, or if a
    merged file does not have the rows of the old ones; then the table is as it was after the last commit.
    """
    assert table.writing, "the lake is not open for writing"
    all_merges = planned_merges(table)
    for batch in _merges_by_commit(all_merges):
        job = table.job_folder()
        try:
            new = StagedFiles(job, tuple(_write_merged(merge, table.table, job) for merge in batch))
            old = [file for merge in batch for file in merge.files]
            table.swap(old, new, CommitInfo(run=name, table=table.table.name, finished=now()))
        except BaseException:
            StagedFiles(job, ()).discard()
            raise
    return all_merges


def _merges_by_commit(merges: Sequence[Merge]) -> Iterator[list[Merge]]:
    """Yield the merges of each commit."""
    batch: list[Merge] = []
    for merge in merges:
        if batch and sum(earlier.size for earlier in batch) + merge.size > MAX_COMMIT_BYTES:
            yield batch
            batch = []
        batch.append(merge)
    if batch:
        yield batch


def _write_merged(merge: Merge, table: Table, job: Path) -> DataFile:
    """Write the file with the rows of others, and compare the rows that were written with those."""
    partition = merge.files[0].partition
    path = job / data_files.partition_folder(partition.items()) / f"merged-{uuid.uuid4().hex}.parquet"
    schema = columns.file_schema(table)
    rows = coded.read_coded(merge.files, table)
    expected = _digest(coded.decode(rows, schema))
    order = [name for name in table.order if name in schema.names]
    positions = coded.sorted_positions(rows, order) if order else None
    written = staging.write_file(path, partition, schema, coded.decode(rows, schema, positions))
    del rows, positions
    again = _digest(_read_written(path, schema))
    if again != expected or again[0] != merge.rows:
        raise StoreError(
            f"the file {path}, merged from {len(merge.files)} others, does not have their rows: it was not committed;"
            " check the disk and the memory of this machine"
        )
    return written


def _digest(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Return the number of rows, and their digest."""
    import pyarrow as pa

    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += digest(pa.Table.from_batches([batch]))
    return rows, total % 2**64


def _read_written(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a new file, a row group at a time."""
    with data_files.open_parquet(path) as parquet:
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).cast(schema).to_batches(max_chunksize=coded.MAX_PART_ROWS)
