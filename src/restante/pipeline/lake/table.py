"""A table of the lake: a Delta table whose files Spark reads and writes and whose log `deltalake` commits to.

Spark needs no jar for Delta. It writes Parquet files that no reader sees. Then one commit lists them in the table's
log, and Spark reads the files that the log lists. So readers see either all rows of a commit or none.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial, reduce
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError, DeltaError

from restante.common.atomic_file import flush
from restante.common.errors import InUse, StoreError
from restante.pipeline.lake import columns, commit_info, data_files, delta_log, delta_table, staging
from restante.pipeline.lake.commit_info import CommitInfo, Mark, TableCommit, TableState
from restante.pipeline.lake.data_files import DataFile, Selected, Where
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.statistics import ColumnRange
from restante.pipeline.lake.url_path import LakePath, UrlPath, path_below, spark_path
from restante.pipeline.schemas import BY_DAY_AND_SOURCE, Table
from restante.pipeline.spark.small_jobs import one_task

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

COMMITS_PER_CHECKPOINT: Final = 100
"""Minimum number of commits between two checkpoints; deltalake uses the same. A checkpoint spares readers the log
before it, but is as large as the list of all files."""

MAX_COMMIT_ATTEMPTS: Final = 5
"""Attempts of a commit when other programs commit first. Each attempt reads the table again."""

LISTING_AT_URL: Final = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "32",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}
"""Settings of a session for a lake or extracts at a URL: Spark looks up more files than these in a job of so many
tasks, because each is a request. In a folder it looks them up one after the other (session.SESSION_SETTINGS)."""

MAX_READ_ROWS: Final = 1 << 24
"""Rows of files whose days or sources this process reads: less than a second of work. Executors read more, if there
are any: on one machine Spark takes longer for it than this process."""

MAX_REWRITTEN_ROWS: Final = 1 << 20
"""Rows of files that this process writes again because other rows of them are replaced: a second of work. Executors
write more, if there are any."""

MAX_BATCH_ROWS: Final = 1 << 13
"""Rows that are read at once to replace others: with three texts of 512 bytes in each, they take 13 MB in memory."""

_STATISTICS: Final = ("min.", "max.", "null_count.")
"""How the names of the columns begin in which deltalake lists the statistics of a table's columns."""


class Replacement(NamedTuple):
    """The files that a commit removes, and the new files with those of their rows that stay."""

    removed: list[DataFile]
    added: list[DataFile]
    rows: int
    """How many rows are removed."""
    days: set[str]
    """The UTC days of these rows, ISO."""


class LakeTable:
    """A table as it was when it was opened, or after its own last commit."""

    def __init__(
        self, folder: LakePath, table: Table, *, run: str | None, executors: Callable[[], SparkSession] | None = None
    ) -> None:
        """Read the table's log.

        `run` names the run that has the lake open for writing, and is part of the names of staged folders; None if
        the lake is open for reading. `executors` returns a session on other machines, if there are any. Raises
        StoreError if the log is damaged, Misuse if it belongs to another table.
        """
        self.folder: Final = folder
        self.table: Final = table
        self.writing: Final = run is not None
        self._run: Final = run
        self.executors: Final = executors
        self._delta = delta_table.open_table(folder, table)
        self._state: tuple[int | None, TableState] = None, TableState()
        self._infos: Final[dict[int, CommitInfo]] = {}

    @property
    def _at_url(self) -> bool:
        return isinstance(self.folder, UrlPath)

    @property
    def version(self) -> int | None:
        """Return the version, or None if there was no commit yet."""
        return None if self._delta is None else self._delta.version()

    @property
    def last_commit(self) -> float | None:
        """Return when the last commit was made, in seconds since 1970, or None if there is none.

        The clock of the machine that made it may have been wrong. Raises StoreError if the log is damaged.
        """
        return None if self.version is None else delta_log.read_info(self.folder, self.version).finished

    @property
    def state(self) -> TableState:
        """Return the summary of all its commit infos. Raises StoreError if the log is damaged."""
        version = self.version
        if version is not None and self._state[0] != version:
            self._state = version, delta_log.read_state(self.folder, version)
        return self._state[1]

    @property
    def current_commit(self) -> TableCommit | None:
        """Return the current commit, or None if there is none yet. Raises StoreError if the log is damaged."""
        if self._delta is None or self.version is None:
            return None
        return TableCommit(
            str(self._delta.metadata().id),
            self.version,
            self.state.commits[-commit_info.COMMIT_ID_CHARACTERS :],
            self.state.kept,
        )

    def has_commit(self, commit: TableCommit) -> bool:
        """Return whether a commit is part of the table's history.

        It is not if the table was removed and made again, or was restored from a backup without the commit, or if
        another program changed rows since, or commit_info.MAX_COMMIT_IDS or more commits followed. Raises StoreError
        if the log is damaged.
        """
        now = self.current_commit
        return (
            now is not None
            and now.table == commit.table
            and self.state.commit(commit.version, now.version) == commit.commit
        )

    def marks(self, source: str) -> Mapping[str, Mark]:
        """Return the marks after the last commit from a source, or {} if there is none.

        Raises StoreError if the log is damaged.
        """
        marks: dict[str, Mark] = {}
        for version in self.state.sources.get(source, []):
            marks |= self._read_info(version).sources[source].marks
        return marks

    def _read_info(self, version: int) -> CommitInfo:
        if version not in self._infos:  # one commit may have the marks of many sources
            self._infos[version] = delta_log.read_info(self.folder, version)
        return self._infos[version]

    def files(self, where: Where | None = None) -> list[DataFile]:
        """Return the files that have selected rows, or may have some.

        Raises StoreError if the path of one of them differs from its partition.
        """
        if self._delta is None:
            return []
        # pa.table would import pandas, to ask whether this is a frame of it.
        actions = pa.RecordBatchReader.from_stream(self._delta.get_add_actions(flatten=True)).read_all()
        names = [name for name in actions.column_names if not name.startswith(_STATISTICS)]
        names += [f"{prefix}{name}" for prefix in _STATISTICS for name in BY_DAY_AND_SOURCE]
        actions = self._in_partitions(actions.select([n for n in names if n in actions.column_names]), where or {})
        files = map(self._data_file, actions.to_pylist())
        return [file for file in files if file.selected(where or {}) is not Selected.NONE]

    def _in_partitions(self, actions: pa.Table, where: Where) -> pa.Table:
        """Return the files of the selected partitions.

        A table may have ten thousand files. To make a DataFile of each takes a third of a second, and each build
        needs those of a few days, several times.
        """
        for name in where.keys() & set(self.table.partitions):
            texts = pc.cast(actions[f"partition.{name}"], pa.string())
            actions = actions.filter(pc.is_in(texts, pa.array(list(where[name]), pa.string())))
        return actions

    def _data_file(self, action: Mapping[str, Any]) -> DataFile:
        below = PurePosixPath(unquote(action["path"]))
        path = self.folder / below
        values = {name: action[f"partition.{name}"] for name in self.table.partitions}
        partition = {name: None if value is None else str(value) for name, value in values.items()}
        if below.is_absolute() or ".." in below.parts or data_files.partition_of_path(below) != partition:
            # Spark and DuckDB take a file's partition from its path.
            raise StoreError(f"{path} is not in the folder of its partition: another program added it to the lake")
        ranges = {name: range_ for name in BY_DAY_AND_SOURCE if (range_ := _logged_range(action, name)) is not None}
        return DataFile(path, partition, action["num_records"] or 0, action["size_bytes"], ranges)

    def read(self, spark: SparkSession, where: Where | None = None) -> DataFrame:
        """Return all or the selected rows as a DataFrame. Raises StoreError if a file is missing."""
        files = data_files.existing_files(self.files(where))
        if not files:
            # For an empty list Spark would start a job with Python workers. Connect needs the schema.
            return spark.createDataFrame(
                columns.row_schema(self.table.columns).empty_table(), columns.spark_schema(self.table)
            )
        frame = one_task(self._read_files(spark, files))
        if where and any(file.selected(where) is Selected.SOME for file in files):
            frame = frame.where(self._condition(where))
        return frame

    def _read_files(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Return all rows of files as a DataFrame."""
        schema = columns.spark_schema(self.table)
        reader = spark.read.schema(schema).option("basePath", spark_path(self.folder))  # partitions are below it
        of_runs = [data_files.is_of_run(path_below(file.path, self.folder)) for file in files]
        frames = [
            reader.parquet(*paths).select(*(f"`{column.name}`" for column in self.table.columns))
            for of_run in dict.fromkeys(of_runs)  # files below folders of other names would need another base path
            if (paths := [spark_path(file.path) for file, of in zip(files, of_runs, strict=True) if of is of_run])
        ]
        return reduce(lambda frame, other: frame.unionByName(other), frames)

    def rows_by_day(self, files: Iterable[DataFile]) -> Mapping[str, int]:
        """Return the number of rows of each UTC day, ISO, in files of the table.

        Raises StoreError if one cannot be read, SparkError if the job for many rows fails.
        """
        files = list(files)
        several_days = [file for file in files if not file.first_day or file.first_day != file.last_day]
        if self.executors is not None and sum(file.rows for file in several_days) > MAX_READ_ROWS:
            return _count_by_day(self._read_files(self.executors(), files))
        rows: Counter[str] = Counter()
        for file in files:
            rows.update(file.days())
        return rows

    def dataset(self) -> Dataset:
        """Return all rows for programs that read datasets of Arrow, with the columns of the Delta table."""
        from pyarrow.dataset import dataset

        schema = columns.row_schema(self.table.stored)
        if self._delta is None:
            return dataset(schema.empty_table())
        return self._delta.to_pyarrow_dataset(schema=schema)

    def _condition(self, where: Where) -> Expression:
        """Return the condition for Spark that a row is selected."""
        from pyspark.sql import functions as f

        condition = f.lit(True)
        types = {column.name: column.type for column in self.table.columns}
        for name, texts in where.items():
            values: list[str | date] = [text for text in texts if text is not None]
            column = f.col(f"`{name}`")
            if types[name] == "DATE":  # compared as dates, Parquet's statistics spare groups of rows
                values = [date.fromisoformat(str(day)) for day in values]
            typed = column if types[name] == "DATE" else column.cast("string")
            selected = typed.isin(values)
            condition &= selected | column.isNull() if None in texts else selected
        return condition

    def stage(self, frame: DataFrame) -> StagedFiles:
        """Write rows with Spark that no reader sees until a commit takes them: a file per task and partition.

        The frame's columns are matched by name. Their types must be the table's, or be convertible to them without
        loss. Raises what staging.stage_rows raises.
        """
        assert self._run is not None, "the lake is not open for writing"
        return staging.stage_rows(frame, self.folder, self.table, self._run)

    def job_folder(self) -> LakePath:
        """Return the path of a new folder for files that no commit has taken yet; the caller makes it."""
        assert self._run is not None, "the lake is not open for writing"
        return staging.job_folder(self.folder, self._run)

    def commit(
        self,
        staged: Sequence[StagedFiles] = (),
        *,
        info: CommitInfo,
        replace: Where | None = None,
    ) -> int:
        """Add staged files and remove the rows to `replace` ({}: all) in one commit; return the version.

        The other rows of a file that has some of them are written again, into another file. The commit is on disk
        when this returns. Raises StoreError if it cannot be written; then readers see nothing of it.
        """
        assert self.writing, "the lake is not open for writing"
        sources = {
            name: commit.without_old_marks(self.marks(name), len(self.state.sources.get(name, [])))
            for name, commit in info.sources.items()
        }
        info = msgspec.structs.replace(info, sources=sources)
        added = [file for files in staged for file in staging.move_into_table(files, self.folder)]
        version, _ = self._commit(added, info, partial(self._replace_rows, replace))
        return version

    def swap(self, old: Sequence[DataFile], new: StagedFiles, info: CommitInfo) -> None:
        """Replace files by staged ones that have the same rows, in one commit that changes no day.

        Raises StoreError if it cannot be written, or if another program removed one of the old files.
        """
        assert self.writing, "the lake is not open for writing"

        def swapped() -> Replacement:
            if not {file.path for file in old} <= {file.path for file in self.files()}:
                raise StoreError(f"another program changed {self.folder} at the same time: run this again")
            return Replacement(list(old), [], 0, set())

        added = staging.move_into_table(new, self.folder)
        self._commit(added, info, swapped, data_change=False)

    def drop_before(self, day: str, info: CommitInfo) -> int:
        """Drop the rows of the days before an ISO day in one commit, if there are any; return how many.

        The commit info has the day after the last one that had rows, and not `day`: if a clock that is ahead
        chooses `day`, later days are still built once that clock is right.
        """
        assert self.writing, "the lake is not open for writing"
        files = [file for file in self.files() if file.first_day < day]
        old = {"day": {earlier for earlier in self.rows_by_day(files) if earlier < day}}
        if not old["day"]:
            return 0
        kept_from = (date.fromisoformat(max(old["day"])) + timedelta(1)).isoformat()
        info = msgspec.structs.replace(info, kept=kept_from)
        _, dropped = self._commit([], info, partial(self._replace_rows, old))
        return dropped.rows

    def _replace_rows(self, where: Where | None) -> Replacement:
        """Return what a commit removes and adds so that the table has no selected rows; None: it removes none.

        The other rows of files that have some are written into other files: by this process a batch at a time, or, if
        they are many, by executors. Raises StoreError if a file cannot be read, or these rows cannot be written.
        """
        files = [] if where is None else self.files(where)
        where = where or {}
        selected_files = [file for file in files if file.selected(where) is Selected.ALL]
        mixed_files = [file for file in files if file.selected(where) is not Selected.ALL]
        rows = sum(file.rows for file in selected_files)
        replaced = [Replacement(selected_files, [], rows, set(self.rows_by_day(selected_files)))]
        if self.executors is None or sum(file.rows for file in mixed_files) <= MAX_REWRITTEN_ROWS:
            replaced += [self._replace_rows_of(file, where) for file in mixed_files]
        else:
            replaced.append(self._replace_rows_by_spark(self.executors(), mixed_files, where))
        return Replacement(
            removed=[file for replacement in replaced for file in replacement.removed],
            added=[file for replacement in replaced for file in replacement.added],
            rows=sum(replacement.rows for replacement in replaced),
            days={day for replacement in replaced for day in replacement.days},
        )

    def _replace_rows_by_spark(self, spark: SparkSession, files: Sequence[DataFile], where: Where) -> Replacement:
        from pyspark.sql import functions as f

        rows = self._read_files(spark, files)
        selected = f.coalesce(self._condition(where), f.lit(False))  # NULL is not among the values
        removed = _count_by_day(rows.where(selected))
        if not removed:
            return Replacement([], [], 0, set())
        staged = self.stage(rows.where(~selected))
        return Replacement(
            list(files), staging.move_into_table(staged, self.folder), sum(removed.values()), set(removed)
        )

    def _replace_rows_of(self, file: DataFile, where: Where) -> Replacement:
        where = {column: values for column, values in where.items() if column not in file.partition}
        rows, days = _count_selected(file, where)
        if not rows:
            return Replacement([], [], 0, set())
        removed_days = set(file.days()) if "day" in file.partition else set(days)
        if rows == file.rows:
            return Replacement([file], [], rows, removed_days)
        job = self.job_folder()
        try:
            added = staging.move_into_table(_write_unselected(file, where, job), self.folder)
        except BaseException:
            staging.remove_job(job)
            raise
        return Replacement([file], added, rows, removed_days)

    def _commit(
        self,
        added: Sequence[DataFile],
        info: CommitInfo,
        replace: Callable[[], Replacement],
        *,
        data_change: bool = True,
    ) -> tuple[int, Replacement]:
        """Commit, again if another program committed first; each attempt replaces rows of the table as it then is.

        Return the version, and what it replaced.

        At a URL, where no lock keeps out other runs, one that committed first may have taken the same rows.
        """
        for _ in range(1 if self._at_url else MAX_COMMIT_ATTEMPTS):
            if self._delta is not None and delta_table.missing_columns(self._delta, self.table):
                # A commit of its own: deltalake adds no columns in a commit that adds files.
                add_columns = partial(delta_table.add_columns, self._delta, self.table)
                bare = CommitInfo(run=info.run, finished=info.finished)
                if self._write(bare, set(), add_columns) is None:
                    continue
            replaced = replace()
            touched = {*self.rows_by_day(added), *replaced.days} if data_change and not info.kept else set()
            append = partial(
                delta_table.append_commit,
                self._delta,
                self.folder,
                self.table,
                added=[*added, *replaced.added],
                removed=replaced.removed,
                data_change=data_change,
            )
            version = self._write(info, touched, append)
            if version is not None:
                return version, replaced
            _remove_files(replaced.added)
        _remove_files(added)
        if not self._at_url:
            raise StoreError(f"another program keeps changing {self.folder}: stop it, and run this again")
        raise InUse(
            f"another run committed to {self.folder} first, so this one's rows were not committed: wait until it is"
            " done, and run this again"
        )

    def _write(self, info: CommitInfo, touched: Collection[str], write: Callable[[CommitInfo], None]) -> int | None:
        """Make a commit with `write`, and return its version. Return None if another program committed first."""
        version = 0 if self.version is None else self.version + 1
        # Random: a table that was restored from a backup and then written to has other commits with the same numbers.
        stamped = msgspec.structs.replace(info, days=sorted(touched), commit=secrets.token_urlsafe(3))
        stamped = msgspec.structs.replace(stamped, state=commit_info.state_after(self.state, [(version, stamped)]))
        try:
            write(stamped)
        except (DeltaError, OSError) as error:
            refused, exists = isinstance(error, CommitFailedError), False
            if refused or self._at_url:
                self._delta = delta_table.open_table(self.folder, self.table)
                exists = self.version is not None and self.version >= version
            if not exists:
                if refused:
                    return None
                raise StoreError(
                    f"cannot commit to {self.folder}: {delta_table.error_message(error)}; this commit was not made"
                ) from error
            # A store, or the host of a folder, may make an entry whose confirmation is lost, and refuse it when it is
            # put again.
            made = delta_log.read_info(self.folder, version)
            if (made.run, made.commit) != (stamped.run, stamped.commit):
                return None
        self._flush_commit(version, info.finished)
        return version

    def _flush_commit(self, version: int, now: float) -> None:
        log = self.folder / delta_log.LOG_FOLDER
        entry = delta_log.entry_path(self.folder, version)
        try:
            self._flush(entry, log, self.folder)
            if self._delta is None:
                self._delta = delta_table.open_table(self.folder, self.table)
            else:
                self._delta.update_incremental()
            if self._delta is not None and version - delta_log.last_checkpoint(self.folder) >= COMMITS_PER_CHECKPOINT:
                self._delta.create_checkpoint()
                checkpoint = f"{self._delta.version():020}.checkpoint"
                parts = (path for path in log.iterdir() if path.name.startswith(checkpoint))
                self._flush(*parts, log / "_last_checkpoint", log)
                self._remove_expired(now)
        except (DeltaError, OSError) as error:
            raise StoreError(
                f"{self.folder} has a new version, but it may not be on disk: {delta_table.error_message(error)}"
            ) from error

    def _flush(self, *paths: LakePath) -> None:
        """Flush files and folders to disk. An object is stored when it exists. Raises OSError."""
        for path in paths:
            if isinstance(path, Path):
                flush(path)

    def _remove_expired(self, now: float) -> None:
        """Remove the log's files that the new checkpoint makes unnecessary."""
        with contextlib.suppress(OSError):  # the table is intact; the next call removes the other files
            needed = {version for versions in self.state.sources.values() for version in versions}
            for path in delta_log.expired_entries(self.folder, needed, now):
                path.unlink()


def _logged_range(action: Mapping[str, Any], name: str) -> ColumnRange | None:
    """Return a column's range in a file of the log, or None if the log does not have it."""
    minimum, maximum, nulls = (action.get(f"{prefix}{name}") for prefix in _STATISTICS)
    if nulls is None or ((minimum is None or maximum is None) and nulls != action["num_records"]):
        return None
    return ColumnRange(minimum, maximum, nulls)


def _count_by_day(rows: DataFrame) -> Mapping[str, int]:
    """Return the number of rows of each UTC day, ISO."""
    counts = rows.where("day IS NOT NULL").groupBy("day").count().toArrow()
    return {str(row["day"]): row["count"] for row in counts.to_pylist()}


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
    """Write the rows of a file that are not selected."""
    path = job / data_files.partition_folder(file.partition.items()) / f"rest-{job.name.rpartition('-')[2]}.parquet"
    with data_files.open_parquet(file.path) as parquet:
        batches = (
            batch.filter(pc.invert(data_files.selected_rows(batch, where)))
            for batch in parquet.iter_batches(MAX_BATCH_ROWS)
        )
        return StagedFiles(job, (staging.write_file(path, file.partition, parquet.schema_arrow, batches),))


def _remove_files(files: Iterable[DataFile]) -> None:
    """Remove files that no commit has taken; `vacuum` removes those that cannot be removed now."""
    with contextlib.suppress(OSError):
        for file in files:
            file.path.unlink()
