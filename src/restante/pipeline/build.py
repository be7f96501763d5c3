"""`restante pipeline build`: the clean tables → the tables that reports are made of, day by day.

A day is built anew where rows of it, or of days that reach into it, came or went since it was built. It is replaced
whole, in one commit, so that a run that was killed has built it or has not. The built table's state has the commit of
each input that the table is up to date with. Where the input has no such commit, because it was removed and made
again or put back from a backup, all days are built anew.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple, Self

import msgspec

from restante.common.plural import counted
from restante.pipeline.ingest import Run
from restante.pipeline.lake import data_files
from restante.pipeline.lake.commit_info import MAX_COMMIT_IDS, CommitInfo, Point
from restante.pipeline.lake.staging import Staged
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Table
from restante.pipeline.spark.session import disconnect
from restante.pipeline.steps import Step
from restante.pipeline.tables import BUILDS, TABLES
from restante.pipeline.tables.build import FOLDERS, Build, Folder

ROWS: Final = 5_000_000
"""Rows of the inputs that one job reads, about: what Spark's Java of a small machine sorts without a great deal of
room on the disk (bench/pipeline.py), and what is lost where a run is killed. Jobs that read no more together go on
beside one another."""

TABLES_AT_ONCE: Final = 4
"""To plan a small job is longer work than to do it, and one thread's: so while one is planned, others are done."""

CLOCKS: Final = 1
"""Days that a row may be ahead of us (restante.pipeline.clean.rules)."""


class Built(NamedTuple):
    """What a run did with a table."""

    table: str
    days: Sequence[date]
    """That were built anew, or are to be (`plan`)."""
    rows: int = 0


class Days(NamedTuple):
    """From a day to another, both included."""

    first: date
    last: date


def build(
    run: Run, only: Days | None = None, *, plan: bool = False, builds: Mapping[str, Build] = BUILDS
) -> list[Built]:
    """Build the tables' days that are not up to date, or only tell which these are (`plan`).

    `only` builds these days, up to date or not, and leaves others as they are. Raises StoreError where the lake
    cannot be read or written, SparkError where a job fails.
    """
    due: dict[str, Sequence[date]] = {}
    asked = functools.cache(run.lake.table)
    for name, each in builds.items():
        tables = _Tables.of(each, asked)
        due[name] = _due(run, tables, only, due)
        if due[name] and only is None:
            for why in tables.replaced().values():
                run.steps.say(f"{name}: all days are built anew: {why}")
    if plan or not any(due.values()):
        if not plan and only is None:
            for each in builds.values():
                _commit_points(run, _Tables.of(each, asked))
        return [Built(name, days) for name, days in due.items()]
    run.spark()  # begun here: what begins it sets signal handlers, which only the main thread may
    room = _Room(ROWS)
    building: dict[str, Future[Built]] = {}
    with ThreadPoolExecutor(TABLES_AT_ONCE, "build") as pool:
        for name, each in builds.items():
            first = [building[made] for made in each.inputs if made in building]
            building[name] = pool.submit(_made, run, each, only, first, room)
        try:
            ended, _ = wait(building.values(), return_when=FIRST_EXCEPTION)
        finally:  # all are done; or one failed, or we were interrupted, and no job is begun any more
            room.close()
            pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in building.values() if each in ended]


class _Tables(NamedTuple):
    """A table to build and those that it is made of, as they were when they were asked for."""

    build: Build
    target: LakeTable
    inputs: Mapping[str, LakeTable]

    @classmethod
    def of(cls, build: Build, asked: Callable[[Table], LakeTable]) -> Self:
        """Ask for the tables."""
        return cls(build, asked(build.table), {name: asked(TABLES[name]) for name in build.inputs})

    def behind(self, coming: Mapping[str, Collection[date]]) -> set[date]:
        """Name the days that are not up to date; `coming` are those of inputs that will be built before."""
        found: set[date] = set()
        replaced = self.replaced()
        for name, table in self.inputs.items():
            known = self.target.state.inputs.get(name)
            changed = set(coming.get(name, ()))
            if known is not None and name not in replaced:
                changed |= _dates(table.state.days(known.version))
            elif table.version is not None:  # an input that is not there yet, or not again, changes nothing
                changed |= _dates(data_files.days(table.files()))
                found |= _dates(data_files.days(self.target.files()))  # they may have rows that the input has not
            found |= self.build.touches(name, changed)
        if found:  # a source of which these days are the first has rows of later days, too
            found |= {day for day, _ in self.folders() - self.present()}
        first = self.first()
        return {day for day in found if day >= first}

    def folders(self) -> set[Folder]:
        """Return the folders that the table must have (Build.folders)."""
        if self.build.folders is None:
            return set()
        return self.build.folders(file.partition for table in self.inputs.values() for file in table.files())

    def present(self) -> set[Folder]:
        """Return the folders that it has, of those that it must have."""
        if self.build.folders is None:
            return set()
        partitions = (file.partition for file in self.target.files())
        return {(date.fromisoformat(found["day"] or ""), found["source"] or "") for found in partitions}

    def within(self, only: Days) -> set[date]:
        """Name the days of a range that have rows in an input, and can be built."""
        days = {name: _dates(data_files.days(table.files())) for name, table in self.inputs.items()}
        found = {day for name, there in days.items() for day in self.build.touches(name, there)}
        first = max(only.first, self.first())
        return {day for day in found if first <= day <= only.last}

    def first(self) -> date:
        """Return the first day that can be built: into the days before it reach rows that were dropped, by age."""
        kept = {name: {date.fromisoformat(point.kept)} for name, point in self.points().items() if point.kept}
        return max((day for name, days in kept.items() for day in self.build.touches(name, days)), default=date.min)

    def points(self) -> dict[str, Point]:
        """Return what the table is up to date with when it was built of these inputs.

        An input that was removed and made again does not know what was dropped of it before; the built table does.
        """
        found = dict(self.target.state.inputs)
        for name, table in self.inputs.items():
            if now := table.point:
                kept = {each.kept for each in (now, found.get(name)) if each and each.kept}
                found[name] = msgspec.structs.replace(now, kept=max(kept, default=None))
        return found

    def replaced(self) -> dict[str, str]:
        """Tell of which inputs the table is up to date with a commit that they do not have, and why that is."""
        found = {}
        for name, known in self.target.state.inputs.items():
            if name in self.inputs and (now := self.inputs[name].point) and not self.inputs[name].follows(known):
                if known.table != now.table:
                    found[name] = f"{name} was removed and made again"
                elif now.version - known.version >= MAX_COMMIT_IDS:
                    found[name] = f"{name} had {counted(now.version - known.version, 'commit')} since it was built"
                else:
                    found[name] = f"{name} was put back from a backup"
        return found


def _dates(days: Collection[str]) -> set[date]:
    return {date.fromisoformat(day) for day in days}


def _due(run: Run, tables: _Tables, only: Days | None, coming: Mapping[str, Collection[date]]) -> Sequence[date]:
    """Name the days to build; `coming` are those of tables that will be built before."""
    wanted = tables.behind(coming) if only is None else tables.within(only)
    # A row's effect may reach days ahead, but not into days that nobody has lived in.
    last = datetime.fromtimestamp(run.now(), UTC).date() + timedelta(CLOCKS)
    return sorted(day for day in wanted if day <= last)


def _made(run: Run, each: Build, only: Days | None, first: Sequence[Future[Built]], room: _Room) -> Built:
    """Build a table, when those that it is made of have been; in a thread of the pool."""
    for made in first:
        made.result()
    tables = _Tables.of(each, run.lake.table)
    days = _due(run, tables, only, {})
    rows = 0
    if days:
        spark = run.spark()
        try:
            with run.step(each.table.name) as step:
                rows = _build(run, tables, days, step, room, up_to_date=only is None)
                step.done(f"{counted(len(days), 'day')}, {counted(rows, 'row')}")
        finally:
            disconnect(spark)
    elif only is None:
        _commit_points(run, tables)
    return Built(each.table.name, days, rows)


class _Room:
    """How many rows jobs that go on beside one another may read."""

    def __init__(self, rows: int) -> None:
        self._all: Final = rows
        self._taken = 0
        self._closed = False
        self._changed: Final = threading.Condition()

    @contextmanager
    def taken(self, rows: int) -> Iterator[None]:
        """Wait until there is room for so many, or nobody else has any; give it back at the end.

        Raises CancelledError where no job is to be begun any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._taken or self._taken + rows <= self._all)
            if self._closed:
                raise CancelledError
            self._taken += rows
        try:
            yield
        finally:
            with self._changed:
                self._taken -= rows
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _commit_points(run: Run, tables: _Tables) -> None:
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


def _info(run: Run, tables: _Tables, inputs: Mapping[str, Point]) -> CommitInfo:
    return CommitInfo(run=run.name, table=tables.target.table.name, finished=run.now(), inputs=dict(inputs))


def _build(run: Run, tables: _Tables, days: Sequence[date], step: Step, room: _Room, *, up_to_date: bool) -> int:
    points = tables.points()
    rows, past = 0, 0
    parts = list(_parts(tables, days))
    folders = tables.folders()
    for part in parts:
        with room.taken(part.rows):
            staged = _staged(run, tables, folders, part.days)
        rows += staged.rows
        # Up to date it is when all its days are: not before the last commit.
        tables.target.commit(
            [staged],
            info=_info(run, tables, points if up_to_date and part is parts[-1] else {}),
            replace={"day": {day.isoformat() for day in part.days}},
        )
        past += len(part.days)
        if past < len(days):
            step.so_far(f"{past:,} of {counted(len(days), 'day')}, {counted(rows, 'row')}")
    return rows


def _staged(run: Run, tables: _Tables, folders: Collection[Folder], days: Sequence[date]) -> Staged:
    spark = run.spark()
    frames = {
        name: table.read(spark, {"day": {day.isoformat() for day in tables.build.reads(name, days)}})
        for name, table in tables.inputs.items()
    }
    build = tables.build
    if build.folders is not None:
        frames[FOLDERS.name] = build.folders_frame(spark, [folder for folder in folders if folder[0] in days])
    return tables.target.stage(build.written(frames, days))


class _Part(NamedTuple):
    """What one job builds."""

    days: Sequence[date]
    rows: int
    """That it reads."""


def _parts(tables: _Tables, days: Sequence[date]) -> Iterator[_Part]:
    """Cut the days into jobs of so many rows each, or of one day where that has more."""
    weights: dict[str, Counter[str]] = {name: Counter() for name in tables.inputs}
    for name, table in tables.inputs.items():
        for file in table.files():
            weights[name][file.partition["day"] or ""] += file.rows
    part: list[date] = []
    rows = 0
    for day in days:
        reads = {name: tables.build.reads(name, {day}) for name in tables.inputs}
        more = sum(weights[name][read.isoformat()] for name, read_of in reads.items() for read in read_of)
        if part and rows + more > ROWS:
            yield _Part(part, rows)
            part, rows = [], 0
        part.append(day)
        rows += more
    if part:
        yield _Part(part, rows)
