"""Merges the small files of a table into few large ones, without Spark.

Each run of `ingest` and `build` adds files. Their rows are written into one file per partition, in the order of their
days, so that readers open few files and skip groups of rows that they do not need. The commit changes no day, so
nothing is built again. Readers of the version before it keep the old files until `vacuum` removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.common.errors import StoreError
from restante.pipeline.lake import columns, data_files, staging
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import LakePath
from restante.pipeline.lake.writer import ROW_GROUP_ROWS
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa

MAX_MERGED_BYTES: Final = 64 << 20
"""Bytes of the files that become one. A larger file would make it no cheaper to open."""

MAX_MERGED_ROWS: Final = ROW_GROUP_ROWS
"""Rows of the files that become one. Some readers have the days and sources of a file's rows in memory."""

MAX_COMMIT_BYTES: Final = 256 << 20
"""Bytes of the old files that a commit replaces, before another one begins. A run that is killed loses no more work,
and the first run on an old lake does not take a commit for each of its days."""

BATCH_ROWS: Final = 1 << 14
"""Rows of a row group that are read at once. Clients choose some texts, and Parquet stores a repeated text once, so
the rows of a small group may take gigabytes in memory; the texts of so many take at most 30 MB."""


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
    """Return what is to be merged.

    A file of half the size or the rows of a merged one stays as it is. So does one that another program added without
    the number of its rows.
    """
    partitions: dict[tuple[str | None, ...], list[DataFile]] = {}
    for file in table.files():
        if file.size <= MAX_MERGED_BYTES // 2 and 0 < file.rows <= MAX_MERGED_ROWS // 2:
            partitions.setdefault(tuple(file.partition.values()), []).append(file)
    # Files of the same days are merged with each other.
    ordered = [sorted(files, key=lambda file: (file.first_day, file.path.name)) for files in partitions.values()]
    return [merge for files in ordered for merge in _merges_of(files)]


def _merges_of(files: Sequence[DataFile]) -> Iterator[Merge]:
    """Yield the files of a partition in groups that become one."""
    merge = Merge(())
    for file in files:
        larger = Merge((*merge.files, file))
        if larger.size > MAX_MERGED_BYTES or larger.rows > MAX_MERGED_ROWS:
            if len(merge.files) > 1:
                yield merge
            larger = Merge((file,))
        merge = larger
    if len(merge.files) > 1:
        yield merge


def compact(table: LakeTable, name: str, now: Callable[[], float]) -> list[Merge]:
    """Merge small files, and return what was merged; `name` identifies the run.

    `now` returns the time in seconds since 1970. Raises StoreError if a file cannot be read or written, or if a
    merged file has more or fewer rows than the old ones; then the table is as it was after the last commit.
    """
    assert table.writing, "the lake is not open for writing"
    all_merges = planned_merges(table)
    for batch in _merges_by_commit(all_merges):
        job = table.job_folder()
        try:
            new = StagedFiles(job, tuple(_write_merged(merge, table.table, job) for merge in batch))
            old = [file for merge in batch for file in merge.files]
            table.swap(old, new, CommitInfo(run=name, finished=now()))
        except BaseException:
            staging.remove_job(job)
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


def _write_merged(merge: Merge, table: Table, job: LakePath) -> DataFile:
    """Write the file with the rows of others."""
    partition = merge.files[0].partition
    path = job / data_files.partition_folder(partition.items()) / f"merged-{uuid.uuid4().hex}.parquet"
    schema = columns.file_schema(table)
    written = staging.write_file(path, partition, schema, _rows(merge.files, schema))
    if written.rows != merge.rows:
        raise StoreError(
            f"{path}, merged from {len(merge.files)} files, has {written.rows:,} rows, and the table's log says that"
            f" they have {merge.rows:,}: it was not committed; check the disk and the memory of this machine"
        )
    return written


def _rows(files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files. A column that one lacks, because it was added later (Column.added), is NULL."""
    import pyarrow as pa

    for file in files:
        with data_files.open_parquet(file.path) as parquet:
            stored = [name for name in schema.names if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                for batch in parquet.iter_batches(BATCH_ROWS, [group], stored):
                    arrays = [
                        # A file by another program may have other types.
                        batch.column(field.name).cast(field.type)
                        if field.name in stored
                        else pa.nulls(batch.num_rows, field.type)
                        for field in schema
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
