"""`restante pipeline build`: the clean tables → the tables that reports are made of, day by day.

A day is built anew where rows of it, or of days that reach into it, came or went since it was built. It is replaced
whole, in one commit, so that a run that was killed has built it or has not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from restante.pipeline.ingest import Run
from restante.pipeline.laketable import LakeTable
from restante.pipeline.notes import Note
from restante.pipeline.spark import disconnect
from restante.pipeline.staging import Staged
from restante.pipeline.steps import Step
from restante.pipeline.tables import BUILDS, TABLES
from restante.pipeline.tables.build import FOLDERS, Build, Folder
from restante.plural import counted

ROWS: Final = 5_000_000
"""Rows of the inputs that one job reads, about: what Spark's Java of a small machine sorts without a great deal of
room on the disk (bench/pipeline.py), and what is lost where a run is killed. Jobs that read no more together go on
beside one another."""

TABLES_AT_ONCE: Final = 4
"""To plan a small job is longer work than to do it, and one thread's: so while one is planned, others are done."""

CLOCKS: Final = 1
"""Days that a row may be ahead of us (restante.pipeline.cleaning)."""


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
    for name, each in builds.items():
        due[name] = _due(run, each, only, due)
    if plan or not any(due.values()):
        return [Built(name, days) for name, days in due.items()]
    run.spark()  # begun here: what begins it sets signal handlers, which only the main thread may
    room = _Room(ROWS)
    building: dict[str, Future[Built]] = {}
    with ThreadPoolExecutor(TABLES_AT_ONCE, "build") as pool:
        for name, each in builds.items():
            first = [building[made] for made in each.inputs if made in building]
            building[name] = pool.submit(_made, run, each, only, due[name], first, room)
        try:
            ended, _ = wait(building.values(), return_when=FIRST_EXCEPTION)
        finally:  # all are done; or one failed, or we were interrupted, and no job is begun any more
            room.close()
            pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in building.values() if each in ended]


def _due(run: Run, each: Build, only: Days | None, coming: Mapping[str, Collection[date]]) -> Sequence[date]:
    """Name the days to build; `coming` are those of tables that will be built before."""
    inputs = {name: run.lake.table(TABLES[name]) for name in each.inputs}
    behind = _behind(each, run.lake.table(each.table), inputs, coming)
    wanted = behind if only is None else _within(each, inputs, only)
    # A row's effect may reach days ahead, but not into days that nobody has lived in.
    last = datetime.fromtimestamp(run.now(), UTC).date() + timedelta(CLOCKS)
    return sorted(day for day in wanted if day <= last)


def _made(
    run: Run, each: Build, only: Days | None, days: Sequence[date], first: Sequence[Future[Built]], room: _Room
) -> Built:
    """Build a table, when those that it is made of have been; in a thread of the pool."""
    if [made.result() for made in first]:
        days = _due(run, each, only, {})
    rows = 0
    if days:
        spark = run.spark()
        try:
            with run.step(each.table.name) as step:
                rows = _build(run, each, days, step, room, up_to_date=only is None)
                step.done(f"{counted(len(days), 'day')}, {counted(rows, 'row')}")
        finally:
            disconnect(spark)
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


def _behind(
    each: Build, target: LakeTable, inputs: Mapping[str, LakeTable], coming: Mapping[str, Collection[date]]
) -> set[date]:
    """Name the days that are not up to date; never one of which an input has dropped rows, by age."""
    built = _built(target)
    found: set[date] = set()
    first = date.min
    for name, table in inputs.items():
        changed = {date.fromisoformat(day) for note in table.notes(built.get(name, -1)) for day in note.days}
        found |= each.touches(name, changed | set(coming.get(name, ())))
        first = max(first, _kept(each, name, table))
    if found:  # a source of which these days are the first has rows of later days, too
        found |= {day for day, _ in _folders(each, inputs) - _present(each, target)}
    return {day for day in found if day >= first}


def _folders(each: Build, inputs: Mapping[str, LakeTable]) -> set[Folder]:
    """Return the folders that the table must have (Build.folders)."""
    if each.folders is None:
        return set()
    return each.folders(file.partition for table in inputs.values() for file in table.files())


def _present(each: Build, target: LakeTable) -> set[Folder]:
    """Return the folders that it has, of those that it must have."""
    if each.folders is None:
        return set()
    partitions = (file.partition for file in target.files())
    return {(date.fromisoformat(found["day"] or ""), found["source"] or "") for found in partitions}


def _built(target: LakeTable) -> Mapping[str, int]:
    """Give the version of each input that the table is up to date with."""
    return next((note.built for note in target.notes() if note.built), {})


def _kept(each: Build, name: str, table: LakeTable) -> date:
    """Give the first day that can be built from what an input still has."""
    # The last of all: what was dropped once does not come back where more is kept later, but late rows may come.
    kept = max((note.kept for note in table.notes() if note.kept), default=None)
    if kept is None:
        return date.min
    return max(day for day in each.touches(name, {date.fromisoformat(kept)}))


def _within(each: Build, inputs: Mapping[str, LakeTable], only: Days) -> set[date]:
    """Name the days of a range that have rows in an input, and can be built."""
    found: set[date] = set()
    first = only.first
    for name, table in inputs.items():
        there = {date.fromisoformat(file.partition["day"] or "") for file in table.files()}
        found |= each.touches(name, there)
        first = max(first, _kept(each, name, table))
    return {day for day in found if first <= day <= only.last}


def _build(run: Run, each: Build, days: Sequence[date], step: Step, room: _Room, *, up_to_date: bool) -> int:
    target = run.lake.table(each.table)
    inputs = {name: run.lake.table(TABLES[name]) for name in each.inputs}
    note = Note(run=run.name, table=each.table.name, finished=0.0)
    versions = {name: table.version for name, table in inputs.items() if table.version is not None}
    rows, past = 0, 0
    parts = list(_parts(each, inputs, days))
    folders = _folders(each, inputs)
    for part in parts:
        with room.taken(part.rows):
            staged = _staged(run, each, target, inputs, folders, part.days)
        rows += staged.rows
        # Up to date it is when all its days are: not before the last commit.
        built = versions if up_to_date and part is parts[-1] else {}
        target.commit(
            [staged],
            note=msgspec.structs.replace(note, finished=run.now(), built=built),
            replace={"day": {day.isoformat() for day in part.days}},
        )
        past += len(part.days)
        if past < len(days):
            step.so_far(f"{past:,} of {counted(len(days), 'day')}, {counted(rows, 'row')}")
    return rows


def _staged(
    run: Run,
    each: Build,
    target: LakeTable,
    inputs: Mapping[str, LakeTable],
    folders: Collection[Folder],
    days: Sequence[date],
) -> Staged:
    spark = run.spark()
    frames = {
        name: table.read(spark, {"day": {day.isoformat() for day in each.reads(name, days)}})
        for name, table in inputs.items()
    }
    if each.folders is not None:
        frames[FOLDERS.name] = each.folders_frame(spark, [folder for folder in folders if folder[0] in days])
    return target.stage(each.written(frames, days))


class _Part(NamedTuple):
    """What one job builds."""

    days: Sequence[date]
    rows: int
    """That it reads."""


def _parts(each: Build, inputs: Mapping[str, LakeTable], days: Sequence[date]) -> Iterator[_Part]:
    """Cut the days into jobs of so many rows each, or of one day where that has more."""
    weights: dict[str, Counter[str]] = {name: Counter() for name in inputs}
    for name, table in inputs.items():
        for file in table.files():
            weights[name][file.partition["day"] or ""] += file.rows
    part: list[date] = []
    rows = 0
    for day in days:
        more = sum(weights[name][read.isoformat()] for name in inputs for read in each.reads(name, {day}))
        if part and rows + more > ROWS:
            yield _Part(part, rows)
            part, rows = [], 0
        part.append(day)
        rows += more
    if part:
        yield _Part(part, rows)
