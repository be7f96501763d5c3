"""`restante pipeline build`: builds the tables for reports from the clean tables, day by day.

A day is built again if rows of it, or of days that reach into it, were added or removed since it was built. It is
replaced completely, in one commit, so a run that is killed has either built it or not changed it. The built table's
state has the commit of each input that the table is up to date with. If the input has no such commit, because it was
removed and made again or restored from a backup, all days are built again.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import date
from typing import Final, NamedTuple

from restante.common.texts import counted
from restante.pipeline.build.freshness import DayRange, TableWithInputs, due_days
from restante.pipeline.ingest import Run
from restante.pipeline.lake.commit_info import MAX_COMMIT_IDS, CommitInfo, TableCommit
from restante.pipeline.lake.data_files import DataFile, Selected
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.small_jobs import JobSize
from restante.pipeline.steps import Step
from restante.pipeline.tables import BUILDS, clean_inputs
from restante.pipeline.tables.build import FOLDERS, Build, Folder

MAX_JOB_ROWS: Final = 5_000_000
"""Approximate number of input rows that one job reads. A small machine's Spark sorts this many without much disk
space (bench/pipeline.py), and a run that is killed loses no more work. Jobs run at the same time if they read no more
than this together."""

TABLES_AT_ONCE: Final = 4
"""Planning a small job is single-threaded and takes longer than running it, so some are planned while others run."""


class BuildResult(NamedTuple):
    """The result of a run for a table."""

    table: str
    days: Sequence[date]
    """The days that were built again, or are due (`plan`)."""
    rows: int = 0
    missing: Sequence[str] = ()
    """The clean tables that the table is made from, if no day was built or is due, and the lake has none of them."""


class RowBudget:
    """The number of rows that concurrent jobs may read together."""

    def __init__(self, rows: int) -> None:
        self._limit: Final = rows
        self._reserved = 0
        self._closed = False
        self._changed: Final = threading.Condition()

    @contextmanager
    def reserve(self, rows: int) -> Iterator[None]:
        """Wait until the rows fit into the budget, or no other job has a reservation; release them at the end.

        Raises CancelledError if no more jobs may start.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._reserved or self._reserved + rows <= self._limit)
            if self._closed:
                raise CancelledError
            self._reserved += rows
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= rows
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse all further reservations, including those that are waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def build_tables(
    run: Run,
    only: DayRange | None = None,
    *,
    plan: bool = False,
    builds: Mapping[str, Build] = BUILDS,
    planned: Collection[str] = (),
) -> list[BuildResult]:
    """Build the tables' days that are not up to date, or only return which ones are due (`plan`).

    `only` builds the days of this range, up to date or not, and no others. `planned` are the clean tables into which
    the run would read rows, if it only plans. Raises StoreError if the lake cannot be read or written, SparkError if
    a job fails.
    """
    days_due: dict[str, Sequence[date]] = {}
    open_table = functools.cache(run.table)
    for name, build in builds.items():
        tables = TableWithInputs.open(build, open_table)
        report_removed(run, tables, {*planned, *(name for name, days in days_due.items() if days)})
        days_due[name] = due_days(tables, run.now(), only, days_due)
        if days_due[name] and only is None:
            for reason in dict.fromkeys(tables.replaced_inputs().values()):
                run.steps.say(f"{name}: all days are built again: {reason}")
    if plan or not any(days_due.values()):
        if not plan and only is None:
            for build in builds.values():
                commit_inputs(run, TableWithInputs.open(build, open_table))
        return _with_missing(run, [BuildResult(name, days) for name, days in days_due.items()], planned)
    jobs = [(TableWithInputs.open(builds[name], open_table), days) for name, days in days_due.items() if days]
    if not _all_small(jobs):
        run.large_jobs()

    run.spark()  # started here: starting it sets signal handlers, which only the main thread may do
    budget = RowBudget(MAX_JOB_ROWS)
    futures: dict[str, Future[BuildResult]] = {}
    with ThreadPoolExecutor(TABLES_AT_ONCE, "build") as pool:
        for name, build in builds.items():
            inputs = [futures[input_] for input_ in build.inputs if input_ in futures]
            futures[name] = pool.submit(_build_after, run, build, only, inputs, budget)
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:  # all are done; or one failed, or the run was interrupted, and no more jobs start
            budget.close()
            pool.shutdown(wait=False, cancel_futures=True)
    return _with_missing(run, [future.result() for future in futures.values() if future in done], planned)


def _with_missing(run: Run, results: Sequence[BuildResult], planned: Collection[str]) -> list[BuildResult]:
    """Return the results, each with `missing`."""
    existing = {*run.lake.tables(), *planned}

    def with_missing(result: BuildResult) -> BuildResult:
        names = clean_inputs(result.table)
        return result if result.days or existing.intersection(names) else result._replace(missing=names)

    return [with_missing(result) for result in results]


def _build_after(
    run: Run, build: Build, only: DayRange | None, inputs: Sequence[Future[BuildResult]], budget: RowBudget
) -> BuildResult:
    """Build a table after its inputs have been built; runs in a thread of the pool."""
    for future in inputs:
        future.result()
    tables = TableWithInputs.open(build, run.table)
    days = due_days(tables, run.now(), only, {})
    rows = 0
    if days:
        with run.step(build.table.name) as step:
            rows = _build_days(run, tables, days, step, budget, up_to_date=only is None)
            step.done(f"{counted(len(days), 'day')}, {counted(rows, 'row')}")
    elif only is None:
        commit_inputs(run, tables)
    return BuildResult(build.table.name, days, rows)


def report_removed(run: Run, tables: TableWithInputs, pending: Collection[str] = ()) -> None:
    """Say that a table is not built because an input was removed (removed_inputs), if it has another one.

    If the lake has none of its inputs, `BuildResult.missing` tells the caller.
    """
    removed = tables.removed_inputs(pending)
    if removed and any(table.version is not None for table in tables.inputs.values()):
        verb = "was" if len(removed) == 1 else "were"
        run.steps.say(
            f"{tables.target.table.name}: stays as it was built, because {' and '.join(removed)} {verb} removed:"
            f" ingest it again, or remove the folder of {tables.target.table.name}, too"
        )


def commit_inputs(run: Run, tables: TableWithInputs) -> None:
    """Commit the input commits of a table without days to build, if a later run could not find them otherwise."""
    if tables.target.version is None or tables.removed_inputs():
        return
    replaced, commits = tables.replaced_inputs(), tables.input_commits()
    for name, commit in commits.items():
        before = tables.target.state.inputs.get(name)
        if (
            not before
            or name in replaced
            or before.kept != commit.kept
            or commit.version - before.version > MAX_COMMIT_IDS // 2
        ):
            tables.target.commit(info=commit_info_of(run, tables, commits))
            return


def commit_info_of(run: Run, tables: TableWithInputs, inputs: Mapping[str, TableCommit]) -> CommitInfo:
    """Return the info of a commit to a built table, which is then up to date with these commits of its inputs."""
    return CommitInfo(
        run=run.name,
        finished=run.now(),
        inputs=dict(inputs),
        definition=tables.build.definition if inputs else None,
    )


def _build_days(
    run: Run, tables: TableWithInputs, days: Sequence[date], step: Step, budget: RowBudget, *, up_to_date: bool
) -> int:
    commits = tables.input_commits()
    rows = days_built = 0
    batches = list(_batches(tables, days, {}))
    folders = tables.required_folders()
    for batch in batches:
        with budget.reserve(batch.size.rows):
            staged = _stage(run, tables, folders, batch)
        rows += staged.rows
        # The table is up to date when all its days are: not before the last commit.
        tables.target.commit(
            [staged],
            info=commit_info_of(run, tables, commits if up_to_date and batch is batches[-1] else {}),
            replace={"day": {day.isoformat() for day in batch.days}},
        )
        days_built += len(batch.days)
        if days_built < len(days):
            step.so_far(f"{days_built:,} of {counted(len(days), 'day')}, {counted(rows, 'row')}")
    return rows


def _stage(run: Run, tables: TableWithInputs, folders: Collection[Folder], batch: _DayBatch) -> StagedFiles:
    build, days = tables.build, batch.days
    spark = small_jobs.session_for(run.spark(), batch.size)
    frames = {name: table.read(spark, _read_by(build, name, days)) for name, table in tables.inputs.items()}
    if build.folders is not None:
        frames[FOLDERS.name] = build.folders_frame(spark, [folder for folder in folders if folder[0] in days])
    return tables.target.stage(build.rows_to_write(frames, days))


class _DayBatch(NamedTuple):
    """The days that one job builds."""

    days: Sequence[date]
    size: JobSize


RowsByDay = Mapping[str, Mapping[str, int]]
"""Table → ISO day → rows."""


def _read_by(build: Build, name: str, days: Collection[date]) -> dict[str, set[str]]:
    """Return which rows of an input a job reads to build these days."""
    return {"day": {day.isoformat() for day in build.reads(name, days)}}


def _batches(tables: TableWithInputs, days: Sequence[date], pending: RowsByDay) -> Iterator[_DayBatch]:
    """Yield batches of at most MAX_JOB_ROWS rows; a day with more is a batch of its own.

    A row counts for each day that needs it. `pending` has the rows of days of inputs that will be built first.
    """
    build = tables.build
    files = {name: table.files(_read_by(build, name, days)) for name, table in tables.inputs.items()}
    rows_by_day = _rows_by_day(tables, files, pending)

    def rows_of(days: Collection[date]) -> int:
        return sum(counts[day] for name, counts in rows_by_day.items() for day in _read_by(build, name, days)["day"])

    def batch_of(days: Sequence[date]) -> _DayBatch:
        where = {name: _read_by(build, name, days) for name in files}
        opened = [file for name in files for file in files[name] if file.selected(where[name]) is not Selected.NONE]
        size = JobSize(rows_of(days), sum(file.rows for file in opened), sum(file.size for file in opened))
        return _DayBatch(days, size)

    batch: list[date] = []
    batch_rows = 0
    for day in days:
        rows = rows_of({day})
        if batch and batch_rows + rows > MAX_JOB_ROWS:
            yield batch_of(batch)
            batch, batch_rows = [], 0
        batch.append(day)
        batch_rows += rows
    if batch:
        yield batch_of(batch)


def _rows_by_day(
    tables: TableWithInputs, files: Mapping[str, Sequence[DataFile]], pending: RowsByDay
) -> dict[str, Counter[str]]:
    """Return the rows of each input by day: those of its files, or those that are pending, if these are more."""
    counts: dict[str, Counter[str]] = {}
    for name, input_files in files.items():
        counts[name] = Counter(tables.inputs[name].rows_by_day(input_files)) | Counter(pending.get(name, {}))
    return counts


def _all_small(jobs: Sequence[tuple[TableWithInputs, Sequence[date]]]) -> bool:
    """Return whether all jobs that build these days are small. Each table comes after its inputs.

    Of a table that is built first, the rows are not known yet. They are estimated from those of its inputs
    (Build.growth). The bytes of its files are not: they are few if its rows are few and its own job is small.
    """
    pending: dict[str, Mapping[str, int]] = {}
    inputs = {name for tables, _ in jobs for name in tables.inputs}
    for tables, days in jobs:
        if not all(batch.size.small for batch in _batches(tables, days, pending)):
            return False
        name, growth = tables.build.table.name, tables.build.growth
        if name not in inputs:
            continue
        iso_days = {day.isoformat() for day in days}
        files = {input_: table.files({"day": iso_days}) for input_, table in tables.inputs.items()}
        rows = sum(_rows_by_day(tables, files, pending).values(), Counter())
        pending[name] = {day: growth * rows[day] for day in iso_days}
    return True
