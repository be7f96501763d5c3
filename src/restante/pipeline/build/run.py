"""`restante pipeline build`: the clean tables → the tables that reports are made of, day by day.

A day is built anew where rows of it, or of days that reach into it, came or went since it was built. It is replaced
whole, in one commit, so that a run that was killed has built it or has not. The built table's state has the commit of
each input that the table is up to date with. Where the input has no such commit, because it was removed and made
again or put back from a backup, all days are built anew.
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
from restante.pipeline.lake.staging import Staged
from restante.pipeline.spark.session import disconnect
from restante.pipeline.steps import Step
from restante.pipeline.tables import BUILDS
from restante.pipeline.tables.build import FOLDERS, Build, Folder

MAX_JOB_ROWS: Final = 5_000_000
"""Rows of the inputs that one job reads, about: what Spark's Java of a small machine sorts without a great deal of
room on the disk (bench/pipeline.py), and what is lost where a run is killed. Jobs that read no more together go on
beside one another."""

TABLES_AT_ONCE: Final = 4
"""To plan a small job is longer work than to do it, and one thread's: so while one is planned, others are done."""


class BuildResult(NamedTuple):
    """What a run did with a table."""

    table: str
    days: Sequence[date]
    """That were built anew, or are to be (`plan`)."""
    rows: int = 0


def build(
    run: Run, only: DayRange | None = None, *, plan: bool = False, builds: Mapping[str, Build] = BUILDS
) -> list[BuildResult]:
    """Build the tables' days that are not up to date, or only tell which these are (`plan`).

    `only` builds these days, up to date or not, and leaves others as they are. Raises StoreError where the lake
    cannot be read or written, SparkError where a job fails.
    """
    due: dict[str, Sequence[date]] = {}
    asked = functools.cache(run.lake.table)
    for name, each in builds.items():
        tables = TableWithInputs.of(each, asked)
        due[name] = due_days(tables, run.now(), only, due)
        if due[name] and only is None:
            for why in tables.replaced().values():
                run.steps.say(f"{name}: all days are built anew: {why}")
    if plan or not any(due.values()):
        if not plan and only is None:
            for each in builds.values():
                _commit_points(run, TableWithInputs.of(each, asked))
        return [BuildResult(name, days) for name, days in due.items()]
    run.spark()  # begun here: what begins it sets signal handlers, which only the main thread may
    budget = RowBudget(MAX_JOB_ROWS)
    futures: dict[str, Future[BuildResult]] = {}
    with ThreadPoolExecutor(TABLES_AT_ONCE, "build") as pool:
        for name, each in builds.items():
            first = [futures[made] for made in each.inputs if made in futures]
            futures[name] = pool.submit(_build_after, run, each, only, first, budget)
        try:
            ended, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:  # all are done; or one failed, or we were interrupted, and no job is begun any more
            budget.close()
            pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in futures.values() if each in ended]


def _build_after(
    run: Run, each: Build, only: DayRange | None, first: Sequence[Future[BuildResult]], budget: RowBudget
) -> BuildResult:
    """Build a table, when those that it is made of have been; in a thread of the pool."""
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
    """Commit what a table is up to date with that has no day to build, where a later run could not tell otherwise."""
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
            tables.target.commit(info=_info(run, tables, points))
            return


def _info(run: Run, tables: TableWithInputs, inputs: Mapping[str, Point]) -> CommitInfo:
    return CommitInfo(run=run.name, table=tables.target.table.name, finished=run.now(), inputs=dict(inputs))


def _build_days(
    run: Run, tables: TableWithInputs, days: Sequence[date], step: Step, budget: RowBudget, *, up_to_date: bool
) -> int:
    points = tables.points()
    rows, past = 0, 0
    batches = list(_batches(tables, days))
    folders = tables.folders()
    for batch in batches:
        with budget.reserve(batch.rows):
            staged = _stage(run, tables, folders, batch.days)
        rows += staged.rows
        # Up to date it is when all its days are: not before the last commit.
        tables.target.commit(
            [staged],
            info=_info(run, tables, points if up_to_date and batch is batches[-1] else {}),
            replace={"day": {day.isoformat() for day in batch.days}},
        )
        past += len(batch.days)
        if past < len(days):
            step.so_far(f"{past:,} of {counted(len(days), 'day')}, {counted(rows, 'row')}")
    return rows


def _stage(run: Run, tables: TableWithInputs, folders: Collection[Folder], days: Sequence[date]) -> Staged:
    spark = run.spark()
    frames = {
        name: table.read(spark, {"day": {day.isoformat() for day in tables.build.reads(name, days)}})
        for name, table in tables.inputs.items()
    }
    build = tables.build
    if build.folders is not None:
        frames[FOLDERS.name] = build.folders_frame(spark, [folder for folder in folders if folder[0] in days])
    return tables.target.stage(build.written(frames, days))


class _DayBatch(NamedTuple):
    """What one job builds."""

    days: Sequence[date]
    rows: int
    """That it reads."""


def _batches(tables: TableWithInputs, days: Sequence[date]) -> Iterator[_DayBatch]:
    """Cut the days into jobs of so many rows each, or of one day where that has more."""
    weights: dict[str, Counter[str]] = {name: Counter() for name in tables.inputs}
    for name, table in tables.inputs.items():
        for file in table.files():
            weights[name][file.partition["day"] or ""] += file.rows
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
