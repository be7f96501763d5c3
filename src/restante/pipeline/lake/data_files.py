"""The Parquet files of a table: their partitions, which of their rows are selected, and whether they exist."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from restante.common.errors import StoreError, plain
from restante.pipeline.lake.statistics import ColumnRange
from restante.pipeline.lake.url_path import LakePath, UrlPath, error_text
from restante.pipeline.schemas import BY_DAY_AND_SOURCE

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Where = Mapping[str, Collection[str | None]]
"""Column → the selected values, as text. A column that is not named may have any value."""

RUN_FOLDER: Final = "run="
"""How the name of a folder begins that has the partition folders of a job. It is named like one of them, so that
Spark and DuckDB read the partitions below it."""

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder of NULL (Hive's, and so Spark's and DuckDB's)."""

MAX_COUNTED_FILES: Final = 4096
"""Files whose rows per day, or whose days and sources, are remembered, in some MB: a table of ten years has a few
files for each month."""

NO_DAMAGE: Final = frozenset(map(os.strerror, (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO)))
"""The system's messages for errors after which the file may be whole."""

_SPECIAL: Final = re.compile(r"""["#%'*/:=?\\{\[\]^\x01-\x1f\x7f]""")
"""The characters that Spark escapes in a folder's name. It escapes no others, and reads each %XX as a character
(ExternalCatalogUtils)."""


class Selected(Enum):
    """Which rows of a file are selected, as far as its partition and its statistics show."""

    NONE = 0
    SOME = 1
    """Perhaps none, or all of them: only the rows show it."""
    ALL = 2


class DataFile(NamedTuple):
    """A Parquet file of a table."""

    path: LakePath
    partition: Mapping[str, str | None]
    """Column → value as text; None for NULL."""
    rows: int
    size: int
    """In bytes."""
    ranges: Mapping[str, ColumnRange] = {}
    """Column → its range: of day and source if the file was found in the log, else of every column whose range is
    known. A file that another program added may have none."""

    def selected(self, where: Where) -> Selected:
        """Return which of the file's rows are selected."""
        parts = [_selected(self._range(column), values) for column, values in where.items()]
        return min(parts, key=lambda part: part.value, default=Selected.ALL)

    def _range(self, column: str) -> ColumnRange | None:
        """Return the range of a column, also of a partition's, or None if only the rows show it."""
        if column in self.partition:
            value = self.partition[column]
            return ColumnRange(value, value, self.rows if value is None else 0)
        return self.ranges.get(column)

    @property
    def first_day(self) -> str:
        """Return the first UTC day of the rows, ISO, or "" if only the rows show it."""
        days = self._range("day")
        return str(days.minimum) if days and days.minimum else ""

    @property
    def last_day(self) -> str:
        """Return the last UTC day of the rows, ISO, or "" if only the rows show it."""
        days = self._range("day")
        return str(days.maximum) if days and days.maximum else ""

    def days(self) -> Mapping[str, int]:
        """Return the number of rows of each UTC day, ISO. Raises StoreError if the file cannot be read for it."""
        if day := self._only("day"):
            return {day: self.rows}
        return {} if "day" in self.partition else _read_rows_by_day(self.path)

    def latest_days(self) -> Mapping[str, str]:
        """Return the latest UTC day, ISO, of each source. Raises StoreError if the file cannot be read for it."""
        source, day = self._only("source"), self.last_day
        return {source: day} if source and day else _read_latest_days(self.path)

    def days_and_sources(self) -> Collection[tuple[str, str]]:
        """Return the UTC days, ISO, and sources of the rows. Raises StoreError if the file cannot be read for it."""
        day, source = self._only("day"), self._only("source")
        return {(day, source)} if day and source else _read_days_and_sources(self.path)

    def _only(self, column: str) -> str:
        """Return the value of day or source that all rows have, or "" if only the rows show it."""
        values = self._range(column)
        return str(values.only) if values and values.only else ""


def _selected(range_: ColumnRange | None, values: Collection[str | None]) -> Selected:
    """Return which rows have one of the values, given the range of their column."""
    if range_ is None or not isinstance(range_.minimum, date | str | None):
        return Selected.SOME if values else Selected.NONE
    if range_.minimum is None:
        return Selected.ALL if None in values else Selected.NONE
    low, high = str(range_.minimum), str(range_.maximum)
    within = {value for value in values if value is not None and low <= value <= high}
    if not within:
        return Selected.SOME if range_.nulls and None in values else Selected.NONE
    all_nulls = not range_.nulls or None in values
    return Selected.ALL if all_nulls and len(within) == _possible_values(range_) else Selected.SOME


def _possible_values(range_: ColumnRange) -> int | None:
    """Return how many values a column may have, given its range; None if any number."""
    if range_.minimum == range_.maximum:
        return 1
    if isinstance(range_.minimum, date) and isinstance(range_.maximum, date):
        return (range_.maximum - range_.minimum).days + 1
    return None


@functools.lru_cache(MAX_COUNTED_FILES)
def _read_rows_by_day(path: LakePath) -> Mapping[str, int]:
    """Read the number of rows of each day from a file, which never changes."""
    counts: Counter[str] = Counter()
    with open_parquet(path) as file:
        if "day" in file.schema_arrow.names:
            for batch in file.iter_batches(columns=["day"]):
                counts.update(rows_by_day(batch))
    return counts


def _read_latest_days(path: LakePath) -> Mapping[str, str]:
    """Read the latest day of each source from a file."""
    with open_parquet(path) as file:
        rows = file.read(columns=["day", "source"], use_threads=False)
        latest = rows.group_by("source", use_threads=False).aggregate([("day", "max")])
    return {row["source"]: str(row["day_max"]) for row in latest.to_pylist() if row["day_max"] is not None}


@functools.lru_cache(MAX_COUNTED_FILES)
def _read_days_and_sources(path: LakePath) -> Collection[tuple[str, str]]:
    """Read the days and sources from a file, which never changes."""
    with open_parquet(path) as file:
        rows = file.read(columns=list(BY_DAY_AND_SOURCE), use_threads=False)
        pairs = rows.group_by(list(BY_DAY_AND_SOURCE), use_threads=False).aggregate([])
    return frozenset((sys.intern(str(row["day"])), sys.intern(row["source"])) for row in pairs.to_pylist())


def rows_by_day(batch: pa.RecordBatch) -> dict[str, int]:
    """Return the number of rows of each day."""
    counts = batch.column("day").drop_null().value_counts()
    return {str(entry["values"]): entry["counts"] for entry in counts.to_pylist()}


def selected_rows(batch: pa.RecordBatch, where: Where) -> pa.BooleanArray:
    """Return for each row whether it is selected. A column that the batch lacks is NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    selected = pa.repeat(pa.scalar(True), batch.num_rows)
    for column, values in where.items():
        stored = column in batch.schema.names
        texts = pc.cast(batch.column(column), pa.string()) if stored else pa.nulls(batch.num_rows, pa.string())
        selected = pc.and_(selected, pc.is_in(texts, value_set=pa.array(list(values), pa.string())))
    return selected


def is_of_run(path: PurePath) -> bool:
    """Return whether a path below a table is in the folder of a run."""
    return path.parts[0].startswith(RUN_FOLDER)


def partition_of_path(path: PurePath) -> dict[str, str | None]:
    """Return the partition in a file's path below its table: one folder per column, day=2026-11-21/source=main.

    They may be in the folder of a run.
    """
    pairs = (part.partition("=") for part in path.parent.parts[is_of_run(path) :])
    return {name: None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs}


def partition_folder(values: Iterable[tuple[str, str | None]]) -> PurePosixPath:
    """Return the folder of a partition below its table, named as Spark names it. An empty text is NULL."""
    return PurePosixPath(*(f"{name}={_escape(value) if value else NULL_FOLDER}" for name, value in values))


def unreadable_file(path: LakePath, reason: str) -> StoreError:
    """Return the error for a file or a log of a table that cannot be read."""
    if reason in NO_DAMAGE:
        return StoreError(f"cannot read {path}: {reason}; check the disk, and who owns the lake's files")
    if isinstance(path, UrlPath):
        return StoreError(
            f"cannot read {path} ({reason}): check the network and the credentials; if it is missing or damaged,"
            " restore it from a backup, or remove that table's folder and run ingest and build again"
        )
    return StoreError(
        f"the lake is damaged: {path} cannot be read ({reason}): restore it from a backup,"
        " or remove that table's folder and run ingest and build again"
    )


def native_file(path: LakePath) -> pa.NativeFile:
    """Open a file to read, without Python's file.

    Threads of pyarrow that use a Python file may abort the process while the interpreter exits: apache/arrow issues
    34314, 39862 and 50482.
    """
    import pyarrow as pa

    if isinstance(path, UrlPath):
        return path.open_input()
    with path.open("rb"):  # its error names a directory; pyarrow's has no number for it
        return pa.OSFile(os.fsencode(path))


@contextlib.contextmanager
def open_parquet(path: LakePath) -> Iterator[pq.ParquetFile]:
    """Open a file of a table. Raises StoreError if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with native_file(path) as file, pq.ParquetFile(file) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        reason = plain(error) if isinstance(error, OSError) and error.errno else "it is not a Parquet file"
        if isinstance(path, UrlPath) and isinstance(error, OSError):
            reason = error_text(error)
        raise unreadable_file(path, reason) from error


def column_names(file: DataFile) -> set[str]:
    """Return the columns that a file has; those of its partition are in its path. Raises StoreError."""
    with open_parquet(file.path) as parquet:
        return set(parquet.schema_arrow.names)


def _escape(value: str) -> str:
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", value)


def existing_files(files: list[DataFile]) -> list[DataFile]:
    """Return the files if all of them exist. Raises StoreError if one is missing or cannot be looked up.

    At a URL they are not looked up, which would be a request for each: whoever reads them is told.
    """
    for file in files:
        if isinstance(file.path, UrlPath):
            break
        try:
            exists = file.path.exists()
        except OSError as error:
            raise unreadable_file(file.path, plain(error)) from error
        if not exists:
            raise unreadable_file(file.path, "it is missing")
    return files
