"""Removes the selected rows of a table: whole files, and rows of files that have others, which are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.pipeline.lake import data_files, staging
from restante.pipeline.lake.data_files import DataFile, Selected, Where
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.url_path import LakePath

if TYPE_CHECKING:
    import pyarrow as pa


MAX_BATCH_ROWS: Final = 1 << 13
"""Rows that are read at once: with three texts of 512 bytes in each, they take 13 MB in memory."""


class Replacement(NamedTuple):
    """The files that a commit removes, and the new files with those of their rows that stay."""

    removed: list[DataFile]
    added: list[DataFile]
    rows: int
    """How many rows are removed."""
    days: set[str]
    """The UTC days of these rows, ISO."""


NOTHING = Replacement([], [], 0, set())


class Replacer:
    """Removes the selected rows of a table's files, as often as a commit is attempted.

    The rows of a file that stay are written once, however many attempts there are.
    """

    def __init__(self, table: LakePath, new_job: Callable[[], LakePath], where: Where) -> None:
        """Write into a folder of `new_job` before the files are moved into the table's folder."""
        self._table = table
        self._new_job = new_job
        self._where = where
        self._partial: dict[LakePath, Replacement] = {}
        """The replacements of files of which some rows are selected."""

    def replace(self, files: Iterable[DataFile]) -> Replacement:
        """Return what a commit removes and adds, given the table's files that may have selected rows.

        Raises StoreError if a file cannot be read, or the rows of one that stay cannot be written.
        """
        replacements = [self._replace_rows(file) for file in files]
        return Replacement(
            removed=[file for replacement in replacements for file in replacement.removed],
            added=[file for replacement in replacements for file in replacement.added],
            rows=sum(replacement.rows for replacement in replacements),
            days={day for replacement in replacements for day in replacement.days},
        )

    def _replace_rows(self, file: DataFile) -> Replacement:
        selected = file.selected(self._where)
        if selected is Selected.NONE:
            return NOTHING
        if selected is Selected.ALL:
            return Replacement([file], [], file.rows, set(file.days()))
        if file.path not in self._partial:
            self._partial[file.path] = self._replace_some_rows(file)
        return self._partial[file.path]

    def _replace_some_rows(self, file: DataFile) -> Replacement:
        where = {column: values for column, values in self._where.items() if column not in file.partition}
        rows, days = _count_selected(file, where)
        if not rows:
            return NOTHING
        removed_days = data_files.all_days([file]) if "day" in file.partition else set(days)
        if rows == file.rows:
            return Replacement([file], [], rows, removed_days)
        job = self._new_job()
        try:
            added = staging.move_into_table(_write_unselected(file, where, job), self._table)
        except BaseException:
            StagedFiles(job, ()).discard()
            raise
        return Replacement([file], added, rows, removed_days)


def _count_selected(file: DataFile, where: Where) -> tuple[int, Mapping[str, int]]:
    """Return how many rows of a file are selected, and how many of each day."""
    rows = 0
    days: Counter[str] = Counter()
    with data_files.open_parquet(file.path) as parquet:
        names = [name for name in parquet.schema_arrow.names if name in where or name == "day"]
        for batch in parquet.iter_batches(columns=names):
            selected = batch.filter(data_files.selected_rows(batch, where))
            rows += selected.num_rows
            if "day" in names:
                days.update(data_files.rows_by_day(selected))
    return rows, days


def _write_unselected(file: DataFile, where: Where, job: LakePath) -> StagedFiles:
    """Write the rows of a file that are not selected. One row group is in memory at a time."""
    path = job / data_files.partition_folder(file.partition.items()) / f"rest-{job.name.rpartition('-')[2]}.parquet"
    with data_files.open_parquet(file.path) as parquet:
        batches = _unselected(parquet.iter_batches(MAX_BATCH_ROWS), where)
        return StagedFiles(job, (staging.write_file(path, file.partition, parquet.schema_arrow, batches),))


def _unselected(batches: Iterable[pa.RecordBatch], where: Where) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        yield batch.filter(pc.invert(data_files.selected_rows(batch, where)))
