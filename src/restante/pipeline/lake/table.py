"""A table of the lake: a Delta table whose files Spark reads and writes, and whose commits are `deltalake`'s.

Spark needs no jar for it: it writes Parquet files that nobody sees, one commit lists them in the table's log, and
what it reads are the files that the log lists. So all of a commit's rows are seen at once, or none of them ever.
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

from restante.common.errors import StoreError
from restante.pipeline.lake import columns, commit_info, data_files, delta_log, delta_table, staging
from restante.pipeline.lake.commit_info import CommitInfo, Mark, Point, State
from restante.pipeline.lake.data_files import DataFile, Where
from restante.pipeline.lake.staging import Staged
from restante.pipeline.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_PER_CHECKPOINT: Final = 100
"""Commits from one checkpoint, which spares readers the log before it, to the next, at least; deltalake's own
number. Each is as large as the list of all files."""

MAX_COMMIT_ATTEMPTS: Final = 5
"""So often a commit may find that another program's came first; each time it looks at the table anew."""


class LakeTable:
    """A table as it was when it was asked for, or since its own last commit."""

    def __init__(
        self, folder: Path, table: Table, *, run: str | None, committed: list[tuple[str, str | None]]
    ) -> None:
        """Read its log. Commits made here are added to `committed`: table and source.

        `run` names the run that has the lake open for writing, in what it stages; None: it is open for reading.
        Raises StoreError where the log is damaged, Misuse where it is another table's.
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
        """Which version this is; None: there was no commit yet."""
        return None if self._delta is None else self._delta.version()

    @property
    def state(self) -> State:
        """What all its commit infos say together. Raises StoreError where the log is damaged."""
        version = self.version
        if version is not None and self._state[0] != version:
            self._state = version, delta_log.state(self.folder, version)
        return self._state[1]

    @property
    def point(self) -> Point | None:
        """Which commit this is; None: there was none yet. Raises StoreError where the log is damaged."""
        if self._delta is None or self.version is None:
            return None
        return Point(
            str(self._delta.metadata().id),
            self.version,
            self.state.commits[-commit_info.COMMIT_ID_CHARACTERS :],
            self.state.kept,
        )

    def follows(self, point: Point) -> bool:
        """Tell whether a commit is one of those that made the table what it is.

        It is not where the table was removed and made again, or was put back from a backup that has not the commit;
        nor where it is one of more than commit_info.MAX_COMMIT_IDS before. Raises StoreError where the log is
        damaged.
        """
        now = self.point
        return (
            now is not None
            and now.table == point.table
            and self.state.commit(point.version, now.version) == point.commit
        )

    def marks(self, source: str) -> Mapping[str, Mark]:
        """Return the marks that the last commit from a source left; {} where there is none.

        Raises StoreError where the log is damaged.
        """
        version = self.state.sources.get(source)
        return {} if version is None else delta_log.read_info(self.folder, version).marks

    def files(self, where: Where | None = None) -> list[DataFile]:
        """List the files, of all partitions or some. Raises StoreError where a file's path and partition differ."""
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
        """Have Spark read the rows, of all partitions or some. Raises StoreError where a file is missing."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(columns.schema(self.table, nulls=True)))
        files = data_files.whole(self.files(where))
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", str(self.folder))  # partitions: the folders below
        frame = reader.parquet(*(str(file.path) for file in files))
        return frame.select(*(f"`{column.name}`" for column in self.table.columns))

    def stage(self, frame: DataFrame) -> Staged:
        """Have Spark write rows that nobody sees before a commit takes them, a file per task and partition.

        The frame's columns are found by their names; the types must be the table's, or fit into them. Raises as
        staging.stage does.
        """
        assert self._run is not None, "the lake is open for reading"
        return staging.stage(frame, self.folder, self.table, self._run)

    def commit(
        self,
        staged: Sequence[Staged] = (),
        *,
        info: CommitInfo,
        replace: Where | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> int:
        """Add what was staged and remove the partitions to `replace` ({}: all), in one; give the version.

        On return it is on disk. Raises StoreError where it cannot be written; then nothing of it is seen.
        """
        assert self.writing, "the lake is open for reading"
        added = [file for each in staged for file in staging.place(each, self.folder)]
        return self._commit(added, info, replace, transactions or {})

    def keep(self, first: str, info: CommitInfo) -> int:
        """Drop the rows of the days before one, ISO, in one commit, if there are any; tell how many they were."""
        assert self.writing, "the lake is open for reading"
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
            # Random: a table that was put back from a backup and written to has other commits with the same numbers.
            stamped = msgspec.structs.replace(info, days=sorted(touched), commit=secrets.token_urlsafe(3))
            stamped = msgspec.structs.replace(stamped, state=commit_info.after(self.state, [(version, stamped)]))
            try:
                self._append(added, removed, stamped, transactions)
            except CommitFailedError:  # another program's commit came first
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
                data_files.flush(path)
            if self._delta is None:
                self._delta = delta_table.open_table(self.folder, self.table)
            else:
                self._delta.update_incremental()
            if self._delta is not None and version - delta_log.checkpoint(self.folder) >= COMMITS_PER_CHECKPOINT:
                self._delta.create_checkpoint()
                for path in (*log.glob(f"{self._delta.version():020}.checkpoint*"), log / "_last_checkpoint", log):
                    data_files.flush(path)
                self._clean(now)
        except (DeltaError, OSError) as error:
            raise StoreError(
                f"{self.folder} has a new version, but nobody knows whether it is on disk:"
                f" {delta_table.message(error)}"
            ) from error

    def _clean(self, now: float) -> None:
        """Remove what is not needed of the log, since there is a new checkpoint."""
        with contextlib.suppress(OSError):  # the table is as it should be; what is left now goes the next time
            for path in delta_log.expired(self.folder, self.state.sources.values(), now):
                path.unlink()

    def transaction(self, app: str) -> int | None:
        """Give the number that the last commit with one for `app` gave it."""
        return None if self._delta is None else self._delta.transaction_version(app)
