"""The commit info: which run made a commit to the lake, from which inputs, and up to which row.

Commit infos are stored with the commits, in the tables' own logs. From them a run learns what the lake already has,
even after a run that was killed. A field that a later version adds has a default; unknown fields are ignored. Each
commit info contains a summary of all earlier ones (State), so that the earlier ones need not be read and can be
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

MAX_COMMIT_IDS: Final = 2_500
"""Commits whose ids a state has, and whose days: 10 KB, and 50 KB if each commit has a day of its own. A table that
was built from an even older version of an input is built again completely."""

COMMIT_ID_CHARACTERS: Final = 4
"""Characters of a commit's id (base64). Two commits with the same version number share an id in 1 of 16 million
cases."""


MAX_MARK_COMMITS: Final = 32
"""Commits that together have the marks of a source. Each is an entry of the log that is kept, and read for them."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where reading a part of a source stopped, and how to recognise that it is still the same part.

    Ids are those of the source. A digest is the SHA-256 of the row with that id, in hexadecimal. If one of the two
    rows has changed, the source was rewritten (VACUUM, rotation, a restored backup) and is read again from the start.
    """

    last: int
    """The greatest id that was read, or is known to have been assigned."""
    last_digest: str
    """The digest of that row; "" if it no longer existed."""
    first: int
    """The least id that had a row; 0 if there was no row."""
    first_digest: str
    """The digest of that row; "" if there was none."""
    seen: str = ""
    """The fingerprint of a file that is identified by its digest (SourceFile.fingerprint); "" if it would not reveal
    a later change. Of a database whose extracts were read, the generation and the last number of the last one."""
    recent: dict[int, str] = msgspec.field(default_factory=dict)
    """Of a database: the ids of the last few rows that were read → rules.value_digest of each."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the rows that a run read from a source: read = clean + duplicate + quarantined."""

    read: int = 0
    clean: int = 0
    duplicate: int = 0
    quarantined: int = 0
    missed: int = 0
    """Ids that were assigned, but whose rows were deleted before they were read."""
    replaced: bool = False
    """Whether the source was read again from the start and its earlier rows were replaced."""


class SourceCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a commit has of a source."""

    ledger: Ledger = Ledger()
    marks: dict[str, Mark] = msgspec.field(default_factory=dict)
    """A part of the source ('' for a database's table, else the file) → where reading it stopped."""
    adds_marks: bool = False
    """Whether the marks of earlier commits (TableState.sources) hold for the parts that this one does not name."""

    def without_old_marks(self, marks: Mapping[str, Mark], versions: int) -> SourceCommit:
        """Return the commit with the new marks only, if these are fewer than half: most runs read few new files.

        `marks` are those of the last `versions` commits from the source.
        """
        new = {part: mark for part, mark in self.marks.items() if marks.get(part) != mark}
        if versions >= MAX_MARK_COMMITS or 2 * len(new) >= len(self.marks) - 1 or marks.keys() - self.marks.keys():
            return self
        return SourceCommit(self.ledger, new, adds_marks=True)


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sums of the ledgers of a source, since its rows were last replaced."""

    since: float
    """When the first commit that the sums include was made, in seconds since 1970."""
    until: float
    """When the last one was made."""
    read: int = 0
    clean: int = 0
    duplicate: int = 0
    quarantined: int = 0
    missed: int = 0


class TableCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit of a table. After a backup was restored, a commit with the same number is a different one."""

    table: str
    """The id that Delta assigned to the table when it was made."""
    version: int
    commit: str
    """The commit's id."""
    kept: str | None = None
    """Of an input: the ISO day before which rows had been dropped by age, from this table or from an earlier table of
    the same name."""


class TableState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A summary of a table's commits up to one of them."""

    commits: str = ""
    """The ids of the last versions, the greatest last; at most MAX_COMMIT_IDS, and none before a foreign one."""
    changed: dict[str, int] = msgspec.field(default_factory=dict)
    """ISO day → the last version that added or replaced rows of it, if it is one of the last MAX_COMMIT_IDS."""
    last_change: int = -1
    """The last version that changed rows or has a ledger; -1: none has."""
    kept: str | None = None
    """The ISO day before which rows were dropped by age. It never moves back, because dropped rows cannot be
    restored."""
    sources: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """Source → the versions whose commit infos have its marks, in order; these log entries are kept."""
    totals: dict[str, Totals] = msgspec.field(default_factory=dict)
    """Source → the sums of its ledgers."""
    inputs: dict[str, TableCommit] = msgspec.field(default_factory=dict)
    """Input table → its commit that this table is up to date with."""
    definition: int = 1
    """Of a built table: the number of the definition that all its days follow (Build.definition)."""

    def commit(self, version: int, state_version: int) -> str | None:
        """Return the id of a version's commit, or None if it is unknown. `state_version` is the state's."""
        start = len(self.commits) - (state_version - version + 1) * COMMIT_ID_CHARACTERS
        return self.commits[start : start + COMMIT_ID_CHARACTERS] if 0 <= start < len(self.commits) else None

    def days(self, after: int) -> set[str]:
        """Return the ISO days that versions after `after` changed."""
        return {day for day, version in self.changed.items() if version > after}


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a commit records about itself."""

    run: str
    """The run that made it; '' if another program made it without a commit info."""
    finished: float
    """When all its rows were written, in seconds since 1970."""
    sources: dict[str, SourceCommit] = msgspec.field(default_factory=dict)
    """The sources whose rows were read, by name."""
    days: list[str] = msgspec.field(default_factory=list)
    """The UTC days, ISO, of which it added or replaced rows. LakeTable.commit sets them."""
    inputs: dict[str, TableCommit] = msgspec.field(default_factory=dict)
    """Input table → its commit that was read; {} if days are still to be built."""
    definition: int | None = None
    """Number of the definition that the days were built with; None if days are still to be built."""
    kept: str | None = None
    """The ISO day before which rows were dropped by age. The days of the dropped rows are not in `days`."""
    foreign: bool = False
    """Whether another program changed rows with it: what was built from earlier commits must be built again."""
    commit: str = ""
    """The commit's random id. LakeTable.commit sets it."""
    state: TableState | None = None
    """A summary of all commit infos up to this one. LakeTable.commit sets it; None if another program made the
    commit."""


def state_after(state: TableState, infos: Iterable[tuple[int, CommitInfo]]) -> TableState:
    """Return the state after later versions, given in order with their commit infos."""
    commits, kept_from, sources, inputs = [state.commits], state.kept, dict(state.sources), dict(state.inputs)
    totals, definition, last_change = dict(state.totals), state.definition, state.last_change
    changed = dict(state.changed)
    version = -1
    for version, info in infos:
        commits = [info.commit] if info.foreign else [*commits, info.commit]
        changed.update(dict.fromkeys(info.days, version))
        if info.days or info.kept or info.sources or info.foreign:
            last_change = version
        if info.kept:
            kept_from = max(kept_from or "", info.kept)
        for source, commit in info.sources.items():
            earlier = sources.get(source, []) if commit.adds_marks else []
            sources[source] = [*earlier, version]
            totals[source] = _add_ledger(totals.get(source), commit.ledger, info.finished)
        inputs.update(info.inputs)
        definition = info.definition or definition
    return TableState(
        commits="".join(commits)[-MAX_COMMIT_IDS * COMMIT_ID_CHARACTERS :],
        changed={
            day: last for day, last in changed.items() if day >= (kept_from or "") and last > version - MAX_COMMIT_IDS
        },
        last_change=last_change,
        kept=kept_from,
        sources=sources,
        totals=totals,
        inputs=inputs,
        definition=definition,
    )


def _add_ledger(so_far: Totals | None, ledger: Ledger, finished: float) -> Totals:
    if so_far is None or ledger.replaced:
        so_far = Totals(since=finished, until=finished)
    return Totals(
        since=so_far.since,
        until=finished,
        read=so_far.read + ledger.read,
        clean=so_far.clean + ledger.clean,
        duplicate=so_far.duplicate + ledger.duplicate,
        quarantined=so_far.quarantined + ledger.quarantined,
        missed=so_far.missed + ledger.missed,
    )
