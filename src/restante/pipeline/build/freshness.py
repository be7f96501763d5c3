"""Finds the days of a built table that are not up to date with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple, Self

import msgspec

from restante.common.texts import counted
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
    def open(cls, build: Build, open_table: Callable[[Table], LakeTable]) -> Self:
        """Return the table and its inputs."""
        return cls(build, open_table(build.table), {name: open_table(TABLES[name]) for name in build.inputs})

    def outdated_days(self, pending: Mapping[str, Collection[date]]) -> set[date]:
        """Return the days that are not up to date; `pending` has the days of inputs that will be built first."""
        days: set[date] = set()
        replaced = self.replaced_inputs()
        for name, table in self.inputs.items():
            read_commit = self.target.state.inputs.get(name)
            changed = set(pending.get(name, ()))
            if read_commit is not None and name not in replaced:
                changed |= _dates(table.state.days(read_commit.version))
            elif table.version is not None:  # an input that does not exist yet changes nothing
                changed |= _all_days(table)
                # The target may have rows of days that the input does not have.
                days |= _all_days(self.target)
            days |= self.build.touches(name, changed)
        if days:  # a new source must also have a folder on each later day
            days |= {day for day, _ in self.required_folders() - self.existing_folders()}
        first_day = self.first_day()
        return {day for day in days if day >= first_day}

    def is_outdated(self) -> bool:
        """Return whether a table that is not built day by day is out of date.

        It is if its definition changed, or if an input has a commit with rows or a ledger that the table was not
        built from. It is not while an input is removed (`removed_inputs`).
        """
        if self.removed_inputs():
            return False
        replaced = self.replaced_inputs()
        for name, table in self.inputs.items():
            if table.version is None:  # an input that does not exist yet changes nothing
                continue
            read_commit = self.target.state.inputs.get(name)
            if read_commit is None or name in replaced or table.state.last_change > read_commit.version:
                return True
        return False

    def removed_inputs(self, pending: Collection[str] = ()) -> list[str]:
        """Return the inputs that the table was built from, and that the lake no longer has.

        A table with such an input is not built until the input is made again: rows that came from it would be lost.
        This run makes the inputs in `pending` again.
        """
        missing = [name for name, table in self.inputs.items() if table.version is None and name not in pending]
        return [name for name in missing if name in self.target.state.inputs]

    def required_folders(self) -> set[Folder]:
        """Return the folders that the table must have (Build.folders)."""
        if self.build.folders is None:
            return set()
        return self.build.folders(file.partition for table in self.inputs.values() for file in table.files())

    def existing_folders(self) -> set[Folder]:
        """Return the folders of which the table has rows, if Build.folders is set."""
        if self.build.folders is None:
            return set()
        pairs = {pair for file in self.target.files() for pair in file.days_and_sources()}
        return {(date.fromisoformat(day), source) for day, source in pairs}

    def days_within(self, only: DayRange) -> set[date]:
        """Return the days of a range that have rows in an input and can be built."""
        input_days = {name: _all_days(table) for name, table in self.inputs.items()}
        first_day = max(only.first, self.first_day())
        days = {day for name, changed in input_days.items() for day in self.build.touches(name, changed)}
        return {day for day in days if first_day <= day <= only.last}

    def first_day(self) -> date:
        """Return the first day that can be built. Rows that reach into earlier days were dropped by age."""
        kept_from = [(name, _dates([commit.kept])) for name, commit in self.input_commits().items() if commit.kept]
        return max((day for name, days in kept_from for day in self.build.touches(name, days)), default=date.min)

    def last_day(self, pending: Mapping[str, Collection[date]]) -> date:
        """Return the last day of which the table or an input has rows, or will have some (`pending`)."""
        days = {day for table in (self.target, *self.inputs.values()) for day in _all_days(table)}
        return max(days.union(*(pending.get(name, ()) for name in self.inputs)), default=date.min)

    def input_commits(self) -> dict[str, TableCommit]:
        """Return the inputs' commits that the table is up to date with once it is built from these inputs.

        An input that was removed and made again does not have the day before which its rows had been dropped. The
        built table has it.
        """
        commits = {name: commit for name, commit in self.target.state.inputs.items() if name in self.inputs}
        for name, table in self.inputs.items():
            if current := table.current_commit:
                kept_from = {commit.kept for commit in (current, commits.get(name)) if commit and commit.kept}
                commits[name] = msgspec.structs.replace(current, kept=max(kept_from, default=None))
        return commits

    def replaced_inputs(self) -> dict[str, str]:
        """Return the inputs whose days must all be built again, each with the reason.

        These are the inputs that lack the commit that the table is up to date with. If the table was built with
        another definition, these are all inputs.
        """
        reasons = {}
        for name, read_commit in self.target.state.inputs.items():
            if name not in self.inputs or not (current := self.inputs[name].current_commit):
                continue
            commits = current.version - read_commit.version
            if self.target.state.definition != self.build.definition:
                reasons[name] = "this version of Restante computes it in another way"
            elif not self.inputs[name].has_commit(read_commit):
                if read_commit.table != current.table:
                    reasons[name] = f"{name} was removed and made again"
                elif commits >= MAX_COMMIT_IDS:
                    reasons[name] = f"{name} had {counted(commits, 'commit')} since it was built"
                else:
                    reasons[name] = f"{name} was put back from a backup, or changed by another program"
        return reasons


def due_days(
    tables: TableWithInputs, now: float, only: DayRange | None, pending: Mapping[str, Collection[date]]
) -> Sequence[date]:
    """Return the days to build: none while an input is removed. `pending` has the days of tables to build before it.

    `now` is in seconds since 1970.
    """
    if tables.removed_inputs([name for name, days in pending.items() if days]):
        return []
    days = tables.outdated_days(pending) if only is None else tables.days_within(only)
    # A row's effect may reach days ahead, but not into the future.
    last_day = datetime.fromtimestamp(now, UTC).date() + timedelta(MAX_CLOCK_SKEW_DAYS)
    if any(day > last_day for day in days):
        # If our clock was set back, the tables have days after it. No later run would find that these are due.
        last_day = max(last_day, tables.last_day(pending) + timedelta(MAX_CLOCK_SKEW_DAYS))
    return sorted(day for day in days if day <= last_day)


def _all_days(table: LakeTable) -> set[date]:
    """Return the days of which a table has rows."""
    return _dates(table.rows_by_day(table.files()))


def _dates(days: Collection[str]) -> set[date]:
    return {date.fromisoformat(day) for day in days}
