"""A table of the lake: a Delta table whose files Spark reads and writes and whose log `deltalake` commits to.

Spark needs no jar for Delta. It writes Parquet files that no reader sees, then one commit lists them in the table's
log; Spark reads the files that the log lists. So readers see either all rows of a commit or none.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from restante.common.atomic_file import flush
from restante.common.errors import StoreError
from restante.pipeline.lake import columns, commit_info, data_files, delta_log, delta_table, staging
from restante.pipeline.lake.commit_info import CommitInfo, Mark, Point, State
from restante.pipeline.lake.data_files import DataFile, Where
from restante.pipeline.lake.staging import Staged
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_PER_CHECKPOINT: Final = 100
"""Minimum number of commits between two checkpoints; deltalake uses the same. A checkpoint spares readers the log
before it, but is as large as the list of all files."""

MAX_COMMIT_ATTEMPTS: Final = 5
"""Attempts of a commit when other programs commit first. Each attempt reads the table again."""


class LakeTable:
    """A table as it was when it was opened, or after its own last commit."""

    def __init__(
        self, folder: Path, table: Table, *, run: str | None, committed: list[tuple[str, str | None]]
    ) -> None:
        """Read the table's log. Add the table and source of each commit made here to `committed`.

        `run` names the run that has the lake open for writing, and is part of the names of staged folders; None if
        the lake is open for reading. Raises StoreError if the log is damaged, Misuse if it belongs to another table.
        """
        self.folder: Final = folder
        self.table: Final = table
        self.writing: Final = run is not None
        self._run: Final = run
        self._committed: Final = committed
        self._delta = delta_table.open_table(folder, table)
        self._state: tuple[int | None, State] = None, State()

    @property
    def version(self) -> int | None:
        """Return the version, or None if there was no commit yet."""
        return None if self._delta is None else self._delta.version()

    @property
    def state(self) -> State:
        """Return the summary of all its commit infos. Raises StoreError if the log is damaged."""
        version = self.version
        if version is not None and self._state[0] != version:
            self._state = version, delta_log.state(self.folder, version)
        return self._state[1]

    @property
    def point(self) -> Point | None:
        """Return the current commit, or None if there is none yet. Raises StoreError if the log is damaged."""
        if self._delta is None or self.version is None:
            return None
        return Point(
            str(self._delta.metadata().id),
            self.version,
            self.state.commits[-commit_info.COMMIT_ID_CHARACTERS :],
            self.state.kept,
        )

    def follows(self, point: Point) -> bool:
        """Return whether a commit is part of the table's history.

        It is not if the table was removed and made again, or was restored from a backup without the commit, or if
        commit_info.MAX_COMMIT_IDS or more commits followed. Raises StoreError if the log is damaged.
        """
        now = self.point
        return (
            now is not None
            and now.table == point.table
            and self.state.commit(point.version, now.version) == point.commit
        )

    def marks(self, source: str) -> Mapping[str, Mark]:
        """Return the marks of the last commit from a source, or {} if there is none.

        Raises StoreError if the log is damaged.
        """
        version = self.state.sources.get(source)
        return {} if version is None else delta_log.read_info(self.folder, version).marks

    def files(self, where: Where | None = None) -> list[DataFile]:
        """Return the files of all or some partitions. Raises StoreError if a file's path and partition differ."""
        if self._delta is None:
            return []
        actions = pa.table(self._delta.get_add_actions()).to_pylist()
        return [file for action in actions if (file := self._file(action)).within(where or {})]

    def _file(self, action: Mapping[str, Any]) -> DataFile:
        path = self.folder / delta_log.decoded(action["path"])
        values = action.get("partition") or {}
        partition = {name: None if values[name] is None else str(values[name]) for name in self.table.partitions}
        if not path.is_relative_to(self.folder) or data_files.partition(path.relative_to(self.folder)) != partition:
            # Spark and DuckDB take a file's partition from its path.
            raise StoreError(f"{path} is not in the folder of its partition: another program added it to the lake")
        return DataFile(path, partition, action["num_records"] or 0, action["size_bytes"])

    def read(self, spark: SparkSession, where: Where | None = None) -> DataFrame:
        """Return the rows of all or some partitions as a DataFrame. Raises StoreError if a file is missing."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(columns.schema(self.table, nulls=True)))
        files = data_files.whole(self.files(where))
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", str(self.folder))  # partitions are the folders below it
        frame = reader.parquet(*(str(file.path) for file in files))
        return frame.select(*(f"`{column.name}`" for column in self.table.columns))

    def stage(self, frame: DataFrame) -> Staged:
        """Write rows with Spark that no reader sees until a commit takes them: a file per task and partition.

        The frame's columns are matched by name. Their types must be the table's, or be convertible to them without
        loss. Raises what staging.stage raises.
        """
        assert self._run is not None, "the lake is not open for writing"
        return staging.stage(frame, self.folder, self.table, self._run)

    def commit(
        self,
        staged: Sequence[Staged] = (),
        *,
        info: CommitInfo,
        replace: Where | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> int:
        """Add staged files and remove the partitions to `replace` ({}: all) in one commit; return the version.

        The commit is on disk when this returns. Raises StoreError if it cannot be written; then readers see nothing
        of it.
        """
        assert self.writing, "the lake is not open for writing"
        added = [file for each in staged for file in staging.place(each, self.folder)]
        return self._commit(added, info, replace, transactions or {})

    def keep(self, first: str, info: CommitInfo) -> int:
        """Drop the rows of the days before `first` (ISO) in one commit, if there are any; return how many."""
        assert self.writing, "the lake is not open for writing"
        old = {"day": {day for day in data_files.days(self.files()) if day < first}}
        dropped = sum(file.rows for file in self.files(old))
        if dropped:
            self._commit([], msgspec.structs.replace(info, kept=first), old, {})
        return dropped

    def _commit(
        self, added: Sequence[DataFile], info: CommitInfo, replace: Where | None, transactions: Mapping[str, int]
    ) -> int:
        for _ in range(MAX_COMMIT_ATTEMPTS):
            removed = [] if replace is None else self.files(replace)
            touched = set() if info.kept else data_files.days([*added, *removed])
            version = 0 if self.version is None else self.version + 1
            # Random: a table that was restored from a backup and then written to has other commits with the same
            # numbers.
            stamped = msgspec.structs.replace(info, days=sorted(touched), commit=secrets.token_urlsafe(3))
            stamped = msgspec.structs.replace(stamped, state=commit_info.after(self.state, [(version, stamped)]))
            try:
                self._append(added, removed, stamped, transactions)
            except CommitFailedError:  # another program committed first
                self._delta = delta_table.open_table(self.folder, self.table)
                continue
            except (DeltaError, OSError) as error:
                raise StoreError(
                    f"cannot commit to {self.folder}: {delta_table.message(error)}; this commit was not made"
                ) from error
            self._keep_on_disk(version, info.finished)
            self._committed.append((self.table.name, info.source))
            return version
        raise StoreError(f"another program keeps changing {self.folder}: stop it, and run this again")

    def _append(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        info: CommitInfo,
        transactions: Mapping[str, int],
    ) -> None:
        delta_table.append(
            self._delta,
            self.folder,
            self.table,
            added=added,
            removed=removed,
            info=info,
            transactions=transactions,
        )

    def _keep_on_disk(self, version: int, now: float) -> None:
        log = self.folder / delta_log.LOG_FOLDER
        try:
            for path in (delta_log.file(self.folder, version), log, self.folder):
                flush(path)
            if self._delta is None:
                self._delta = delta_table.open_table(self.folder, self.table)
            else:
                self._delta.update_incremental()
            if self._delta is not None and version - delta_log.checkpoint(self.folder) >= COMMITS_PER_CHECKPOINT:
                self._delta.create_checkpoint()
                for path in (*log.glob(f"{self._delta.version():020}.checkpoint*"), log / "_last_checkpoint", log):
                    flush(path)
                self._clean(now)
        except (DeltaError, OSError) as error:
            raise StoreError(
                f"{self.folder} has a new version, but it may not be on disk: {delta_table.message(error)}"
            ) from error

    def _clean(self, now: float) -> None:
        """Remove the log's files that the new checkpoint makes unnecessary."""
        with contextlib.suppress(OSError):  # the table is intact; the next cleaning removes what is left
            for path in delta_log.expired(self.folder, self.state.sources.values(), now):
                path.unlink()

    def transaction(self, app: str) -> int | None:
        """Return the number of the last transaction of `app`, or None."""
        return None if self._delta is None else self._delta.transaction_version(app)
