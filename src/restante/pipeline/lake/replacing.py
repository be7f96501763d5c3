"""Removes the selected rows of a table: whole files, and rows of files that have others, which are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from restante.pipeline.lake import data_files, staging
from restante.pipeline.lake.data_files import DataFile, Selected, Where
from restante.pipeline.lake.staging import Staged

if TYPE_CHECKING:
    import pyarrow as pa


MAX_BATCH_ROWS: Final = 1 << 13
"""Rows that are read at once: with three texts of 512 bytes in each, they take 13 MB in memory."""


class Replaced(NamedTuple):
    """The files that a commit removes, and the files with those of their rows that stay."""

    removed: list[DataFile]
    rest: list[DataFile]
    rows: int
    """How many rows are gone."""
    days: set[str]
    """The UTC days of these rows, ISO."""


NOTHING = Replaced([], [], 0, set())


class Replacer:
    """Removes the selected rows of a table's files, as often as a commit is attempted.

    What stays of a file is written once, however many attempts there are.
    """

    def __init__(self, table: Path, new_job: Callable[[], Path], where: Where) -> None:
        """Write into a folder of `new_job` before the files are placed in the table's folder."""
        self._table = table
        self._new_job = new_job
        self._where = where
        self._done: dict[Path, Replaced] = {}

    def replaced(self, files: Iterable[DataFile]) -> Replaced:
        """Return what a commit removes and adds, given the table's files that may have selected rows.

        Raises StoreError if a file cannot be read, or the rest of one not be written.
        """
        found = [self._of(file) for file in files]
        return Replaced(
            removed=[file for each in found for file in each.removed],
            rest=[file for each in found for file in each.rest],
            rows=sum(each.rows for each in found),
            days={day for each in found for day in each.days},
        )

    def _of(self, file: DataFile) -> Replaced:
        selected = file.selected(self._where)
        if selected is Selected.NONE:
            return NOTHING
        if selected is Selected.ALL:
            return Replaced([file], [], file.rows, set(file.days()))
        if file.path not in self._done:
            self._done[file.path] = self._of_some(file)
        return self._done[file.path]

    def _of_some(self, file: DataFile) -> Replaced:
        where = {column: values for column, values in self._where.items() if column not in file.partition}
        rows, days = _selected(file, where)
        if not rows:
            return NOTHING
        gone = data_files.days([file]) if "day" in file.partition else set(days)
        if rows == file.rows:
            return Replaced([file], [], rows, gone)
        job = self._new_job()
        try:
            rest = staging.place(_rest(file, where, job, self._table), self._table)
        except BaseException:
            Staged(job, ()).discard()
            raise
        return Replaced([file], rest, rows, gone)


def _selected(file: DataFile, where: Where) -> tuple[int, Mapping[str, int]]:
    """Return how many rows of a file are selected, and how many of each day."""
    rows = 0
    days: Counter[str] = Counter()
    with data_files.opened(file.path) as parquet:
        names = [name for name in parquet.schema_arrow.names if name in where or name == "day"]
        for batch in parquet.iter_batches(columns=names):
            chosen = batch.filter(data_files.selected_rows(batch, where))
            rows += chosen.num_rows
            if "day" in names:
                days.update(data_files.counted_days(chosen))
    return rows, days


def _rest(file: DataFile, where: Where, job: Path, table: Path) -> Staged:
    """Write the rows of a file that are not selected. It holds one row group in memory."""
    place = job / file.path.relative_to(table).parent
    path = place / f"rest-{job.name.rpartition('-')[2]}.parquet"
    with data_files.opened(file.path) as parquet:
        rest = _unselected(parquet.iter_batches(MAX_BATCH_ROWS), where)
        return Staged(job, (staging.write(path, file.partition, parquet.schema_arrow, rest),))


def _unselected(batches: Iterable[pa.RecordBatch], where: Where) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        yield batch.filter(pc.invert(data_files.selected_rows(batch, where)))
