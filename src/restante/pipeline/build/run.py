"""`restante pipeline build`: builds the tables for reports from the clean tables, day by day.

A day is built again if rows of it, or of days that reach into it, were added or removed since it was built. It is
replaced completely, in one commit, so a run that is killed has either built it or not changed it. The built table's
state has the commit of each input that the table is up to date with. If the input has no such commit, because it was
removed and made again or restored from a backup, all days are built again.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import date
from typing import Final, NamedTuple

from restante.common.plural import counted
from restante.pipeline.build.freshness import DayRange, TableWithInputs, due_days
from restante.pipeline.build.row_budget import RowBudget
from restante.pipeline.ingest import Run
from restante.pipeline.lake.commit_info import MAX_COMMIT_IDS, CommitInfo, Point
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.staging import Staged
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.session import disconnect
from restante.pipeline.steps import Step
from restante.pipeline.tables import BUILDS
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


def missing_inputs(lake: Lake, build: Build) -> list[str]:
    """Return the clean tables from which a table is built, if the lake has none of them."""
    names = list(dict.fromkeys(_clean_inputs(build)))
    return names if all(lake.table(CLEAN_TABLES[name]).version is None for name in names) else []


def _clean_inputs(build: Build) -> Iterator[str]:
    """Yield the clean tables from which a table is built, also by way of other built tables."""
    for name in build.inputs:
        if name in BUILDS:
            yield from _clean_inputs(BUILDS[name])
        else:
            yield name


def build(
    run: Run, only: DayRange | None = None, *, plan: bool = False, builds: Mapping[str, Build] = BUILDS
) -> list[BuildResult]:
    """Build the tables' days that are not up to date, or only return which ones are due (`plan`).

    `only` builds the days of this range, up to date or not, and no others. Raises StoreError if the lake cannot be
    read or written, SparkError if a job fails.
    """
    due: dict[str, Sequence[date]] = {}
    asked = functools.cache(run.lake.table)
    for name, each in builds.items():
        tables = TableWithInputs.of(each, asked)
        due[name] = due_days(tables, run.now(), only, due)
        if due[name] and only is None:
            for why in dict.fromkeys(tables.replaced().values()):
                run.steps.say(f"{name}: all days are built again: {why}")
    if plan or not any(due.values()):
        if not plan and only is None:
            for each in builds.values():
                _commit_points(run, TableWithInputs.of(each, asked))
        return [BuildResult(name, days) for name, days in due.items()]
    run.spark()  # started here: starting it sets signal handlers, which only the main thread may do
    budget = RowBudget(MAX_JOB_ROWS)
    futures: dict[str, Future[BuildResult]] = {}
    with ThreadPoolExecutor(TABLES_AT_ONCE, "build") as pool:
        for name, each in builds.items():
            first = [futures[made] for made in each.inputs if made in futures]
            futures[name] = pool.submit(_build_after, run, each, only, first, budget)
        try:
            ended, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:  # all are done; or one failed, or the run was interrupted, and no more jobs start
            budget.close()
            pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in futures.values() if each in ended]


def _build_after(
    run: Run, each: Build, only: DayRange | None, first: Sequence[Future[BuildResult]], budget: RowBudget
) -> BuildResult:
    """Build a table after its inputs have been built; runs in a thread of the pool."""
    for made in first:
        made.result()
    tables = TableWithInputs.of(each, run.lake.table)
    days = due_days(tables, run.now(), only, {})
    rows = 0
    if days:
        spark = run.spark()
        try:
            with run.step(each.table.name) as step:
                rows = _build_days(run, tables, days, step, budget, up_to_date=only is None)
                step.done(f"{counted(len(days), 'day')}, {counted(rows, 'row')}")
        finally:
            disconnect(spark)
    elif only is None:
        _commit_points(run, tables)
    return BuildResult(each.table.name, days, rows)


def _commit_points(run: Run, tables: TableWithInputs) -> None:
    """Commit the points of a table without days to build, if a later run could not find them otherwise."""
    if tables.target.version is None:
        return
    known, replaced, points = tables.target.state.inputs, tables.replaced(), tables.points()
    for name, point in points.items():
        before = known.get(name)
        if (
            not before
            or name in replaced
            or before.kept != point.kept
            or point.version - before.version > MAX_COMMIT_IDS // 2
        ):
            tables.target.commit(info=info_of(run, tables, points))
            return


def info_of(run: Run, tables: TableWithInputs, inputs: Mapping[str, Point]) -> CommitInfo:
    """Return the info of a commit to a built table, which is then up to date with these commits of its inputs."""
    return CommitInfo(
        run=run.name,
        table=tables.target.table.name,
        finished=run.now(),
        inputs=dict(inputs),
        definition=tables.build.definition if inputs else None,
    )


def _build_days(
    run: Run, tables: TableWithInputs, days: Sequence[date], step: Step, budget: RowBudget, *, up_to_date: bool
) -> int:
    points = tables.points()
    rows, past = 0, 0
    batches = list(_batches(tables, days))
    folders = tables.folders()
    for batch in batches:
        with budget.reserve(batch.rows):
            staged = _stage(run, tables, folders, batch)
        rows += staged.rows
        # The table is up to date when all its days are: not before the last commit.
        tables.target.commit(
            [staged],
            info=info_of(run, tables, points if up_to_date and batch is batches[-1] else {}),
            replace={"day": {day.isoformat() for day in batch.days}},
        )
        past += len(batch.days)
        if past < len(days):
            step.so_far(f"{past:,} of {counted(len(days), 'day')}, {counted(rows, 'row')}")
    return rows


def _stage(run: Run, tables: TableWithInputs, folders: Collection[Folder], batch: _DayBatch) -> Staged:
    build, days = tables.build, batch.days
    wanted = {name: {"day": {day.isoformat() for day in build.reads(name, days)}} for name in tables.inputs}
    files = [file for name, table in tables.inputs.items() for file in table.files(wanted[name])]
    spark = small_jobs.session_for(
        run.spark(), batch.rows, sum(file.rows for file in files), sum(file.size for file in files)
    )
    frames = {name: table.read(spark, wanted[name]) for name, table in tables.inputs.items()}
    if build.folders is not None:
        frames[FOLDERS.name] = build.folders_frame(spark, [folder for folder in folders if folder[0] in days])
    return tables.target.stage(build.written(frames, days))


class _DayBatch(NamedTuple):
    """The days that one job builds."""

    days: Sequence[date]
    rows: int
    """The rows that the job reads."""


def _batches(tables: TableWithInputs, days: Sequence[date]) -> Iterator[_DayBatch]:
    """Yield batches of at most MAX_JOB_ROWS rows; a day with more is a batch of its own."""
    weights: dict[str, Counter[str]] = {name: Counter() for name in tables.inputs}
    for name, table in tables.inputs.items():
        for file in table.files({"day": {day.isoformat() for day in tables.build.reads(name, days)}}):
            weights[name].update(file.days())
    batch: list[date] = []
    rows = 0
    for day in days:
        reads = {name: tables.build.reads(name, {day}) for name in tables.inputs}
        more = sum(weights[name][read.isoformat()] for name, read_of in reads.items() for read in read_of)
        if batch and rows + more > MAX_JOB_ROWS:
            yield _DayBatch(batch, rows)
            batch, rows = [], 0
        batch.append(day)
        rows += more
    if batch:
        yield _DayBatch(batch, rows)
