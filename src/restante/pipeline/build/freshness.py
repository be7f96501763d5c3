"""Finds the days of a built table that are not up to date with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple, Self

import msgspec

from restante.common.texts import counted
from restante.pipeline.lake import data_files
from restante.pipeline.lake.commit_info import MAX_COMMIT_IDS, TableCommit
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import Table
from restante.pipeline.tables import TABLES
from restante.pipeline.tables.build import Build, Folder

MAX_CLOCK_SKEW_DAYS: Final = 1
"""Days that a row may be ahead of our clock (restante.pipeline.clean.rules)."""


class DayRange(NamedTuple):
    """A range of days; both ends are included."""

    first: date
    last: date


class TableWithInputs(NamedTuple):
    """A table to build and its inputs, as they were when they were opened."""

    build: Build
    target: LakeTable
    inputs: Mapping[str, LakeTable]

    @classmethod
    def of(cls, build: Build, asked: Callable[[Table], LakeTable]) -> Self:
        """Return the table and its inputs; `asked` opens each."""
        return cls(build, asked(build.table), {name: asked(TABLES[name]) for name in build.inputs})

    def behind(self, coming: Mapping[str, Collection[date]]) -> set[date]:
        """Return the days that are not up to date; `coming` has the days of inputs that will be built first."""
        found: set[date] = set()
        replaced = self.replaced()
        for name, table in self.inputs.items():
            known = self.target.state.inputs.get(name)
            changed = set(coming.get(name, ()))
            if known is not None and name not in replaced:
                changed |= _dates(table.state.days(known.version))
            elif table.version is not None:  # an input that is not there yet changes nothing
                changed |= _dates(data_files.all_days(table.files()))
                # The target may have rows of days that the input does not have.
                found |= _dates(data_files.all_days(self.target.files()))
            found |= self.build.touches(name, changed)
        if found:  # a new source must also have a folder on each later day
            found |= {day for day, _ in self.folders() - self.present()}
        first = self.first()
        return {day for day in found if day >= first}

    def must_be_built_whole(self) -> bool:
        """Return whether a table that is not built day by day is out of date.

        It is if its definition changed, or if an input has a commit with rows or a ledger that the table was not
        built from. It is not while an input is removed (`removed`).
        """
        if self.removed():
            return False
        replaced = self.replaced()
        for name, table in self.inputs.items():
            if table.version is None:  # an input that is not there yet changes nothing
                continue
            known = self.target.state.inputs.get(name)
            if known is None or name in replaced or table.changed_after(known.version):
                return True
        return False

    def removed(self, coming: Collection[str] = ()) -> list[str]:
        """Return the inputs that the table was built from, and that the lake no longer has.

        A table with such an input is not built until the input is made again: rows that came from it would be lost.
        This run makes the inputs in `coming` again.
        """
        known = self.target.state.inputs
        return [
            name
            for name, table in self.inputs.items()
            if name in known and table.version is None and name not in coming
        ]

    def folders(self) -> set[Folder]:
        """Return the folders that the table must have (Build.folders)."""
        if self.build.folders is None:
            return set()
        return self.build.folders(file.partition for table in self.inputs.values() for file in table.files())

    def present(self) -> set[Folder]:
        """Return the folders of which the table has rows, if Build.folders is set."""
        if self.build.folders is None:
            return set()
        rows = {each for file in self.target.files() for each in file.days_and_sources()}
        return {(date.fromisoformat(day), source) for day, source in rows}

    def within(self, only: DayRange) -> set[date]:
        """Return the days of a range that have rows in an input and can be built."""
        days = {name: _dates(data_files.all_days(table.files())) for name, table in self.inputs.items()}
        found = {day for name, there in days.items() for day in self.build.touches(name, there)}
        first = max(only.first, self.first())
        return {day for day in found if first <= day <= only.last}

    def first(self) -> date:
        """Return the first day that can be built. Rows that reach into earlier days were dropped by age."""
        kept = [(name, commit.kept) for name, commit in self.input_commits().items() if commit.kept]
        return max((day for name, text in kept for day in self.build.touches(name, _dates([text]))), default=date.min)

    def last_day(self, coming: Mapping[str, Collection[date]]) -> date:
        """Return the last day of which the table or an input has rows, or will have some (`coming`)."""
        there = {day for table in (self.target, *self.inputs.values()) for day in data_files.all_days(table.files())}
        built = {day for name in self.inputs for day in coming.get(name, ())}
        return max(_dates(there) | built, default=date.min)

    def input_commits(self) -> dict[str, TableCommit]:
        """Return the inputs' commits that the table is up to date with once it is built from these inputs.

        An input that was removed and made again does not know what was dropped from it before; the built table does.
        """
        found = dict(self.target.state.inputs)
        for name, table in self.inputs.items():
            if now := table.current_commit:
                kept = {each.kept for each in (now, found.get(name)) if each and each.kept}
                found[name] = msgspec.structs.replace(now, kept=max(kept, default=None))
        return found

    def replaced(self) -> dict[str, str]:
        """Return the inputs whose days must all be built again, each with the reason.

        These are the inputs that lack the commit that the table is up to date with. If the table was built with
        another definition, these are all inputs.
        """
        found = {}
        for name, known in self.target.state.inputs.items():
            if name not in self.inputs or not (now := self.inputs[name].current_commit):
                continue
            if self.target.state.definition != self.build.definition:
                found[name] = "this version of Restante computes it in another way"
            elif not self.inputs[name].has_commit(known):
                if known.table != now.table:
                    found[name] = f"{name} was removed and made again"
                elif now.version - known.version >= MAX_COMMIT_IDS:
                    found[name] = f"{name} had {counted(now.version - known.version, 'commit')} since it was built"
                else:
                    found[name] = f"{name} was put back from a backup"
        return found


def due_days(
    tables: TableWithInputs, now: float, only: DayRange | None, coming: Mapping[str, Collection[date]]
) -> Sequence[date]:
    """Return the days to build: none while an input is removed. `coming` has the days of tables that are built first.

    `now` is in seconds since 1970.
    """
    if tables.removed([name for name, days in coming.items() if days]):
        return []
    wanted = tables.behind(coming) if only is None else tables.within(only)
    # A row's effect may reach days ahead, but not into the future.
    last = datetime.fromtimestamp(now, UTC).date()
    if any(day > last + timedelta(MAX_CLOCK_SKEW_DAYS) for day in wanted):
        # If our clock was set back, the tables have days after it. No later run would find that these are due.
        last = max(last, tables.last_day(coming))
    return sorted(day for day in wanted if day <= last + timedelta(MAX_CLOCK_SKEW_DAYS))


def _dates(days: Collection[str]) -> set[date]:
    return {date.fromisoformat(day) for day in days}
