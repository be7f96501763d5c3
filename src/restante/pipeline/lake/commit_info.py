"""What a commit to the lake says of itself: which run made it, from what, up to where.

Commit infos are kept with the commits, in the tables' own logs, so that a run that was cut off and a run that comes
again both know what is there already. A field that a later version adds has a default; one that it does not know is
passed over. A commit info has a summary of all before it (State), so that nobody has to read those, and they can be
removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from restante.pipeline.lake import changed

MAX_COMMIT_IDS: Final = 5_000
"""Commits whose ids a state has: 20 KB. A table that was built from an older version of an input is built whole."""

COMMIT_ID_CHARACTERS: Final = 4
"""Characters of a commit's id, base64: two commits with the same number have the same one in 1 case of 16 million."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where reading a part of a source stopped, and how to tell that it is still the same part.

    Ids are those of the source; digests are SHA-256 of the row that has the id, hexadecimal. If either row is another
    one now, the source was rewritten (VACUUM, rotation, a restored backup) and is read anew.
    """

    last: int
    """The greatest id that was read, or known to have been given."""
    last_digest: str
    """Of its row; "" where it had none any more."""
    first: int
    """The least id that had a row; 0 where none had."""
    first_digest: str
    """Of its row, likewise."""
    seen: str = ""
    """Of a file that is known by its digest: how it was found (SourceFile.seen); "" where that would not tell."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows of a source that a run read: read = clean + duplicate + quarantined."""

    read: int = 0
    clean: int = 0
    duplicate: int = 0
    quarantined: int = 0
    missed: int = 0
    """Ids that were given but were gone before they were read."""
    counted: int = 0
    """The source's own count of the rows between the same ids: what `read` is held against."""
    first: int | None = None
    """The least id that was read; None: there was no row."""
    last: int | None = None
    replaced: bool = False
    """The source was read anew, and its rows of before were replaced."""


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit of a table: no other table's, and not the one with its number after a backup was put back."""

    table: str
    """The id that Delta gave the table when it was made."""
    version: int
    commit: str
    """Its id."""
    kept: str | None = None
    """Of an input: rows of days before this one, ISO, had been dropped from it by age, or from one before it that
    had its name."""


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the commits of a table say together, up to one of them."""

    commits: str = ""
    """The ids of the last versions, the greatest last; of no more than MAX_COMMIT_IDS."""
    changed: list[int] = msgspec.field(default_factory=list)
    """Day → the last version that added or replaced rows of it, packed (restante.pipeline.lake.changed)."""
    kept: str | None = None
    """Older rows than of this day, ISO, were dropped by age. It never moves back: what was dropped is gone."""
    sources: dict[str, int] = msgspec.field(default_factory=dict)
    """Source → the version whose commit info has its marks; that one is kept."""
    inputs: dict[str, Point] = msgspec.field(default_factory=dict)
    """A table that it was built from → the commit of it that it is up to date with."""

    def commit(self, version: int, last: int) -> str | None:
        """Return the id of the commit with a number; None where it is not known. `last` is the state's own."""
        at = len(self.commits) - (last - version + 1) * COMMIT_ID_CHARACTERS
        return self.commits[at : at + COMMIT_ID_CHARACTERS] if 0 <= at < len(self.commits) else None

    def days(self, after: int = -1) -> set[str]:
        """Name the days that versions behind `after` changed, ISO."""
        return {day for day, version in changed.from_numbers(self.changed).items() if version > after}


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a commit says of itself."""

    run: str
    """The run that made it; '' where another program did, which left no commit info."""
    table: str
    finished: float
    """When its rows were all written, in seconds since 1970."""
    source: str | None = None
    days: list[str] = msgspec.field(default_factory=list)
    """UTC days of which it added or replaced rows, ISO. The commit itself enters them."""
    ledger: Ledger | None = None
    marks: dict[str, Mark] = msgspec.field(default_factory=dict)
    """A part of the source ('' for a database's table, else the file) → where reading it stopped."""
    inputs: dict[str, Point] = msgspec.field(default_factory=dict)
    """A table that it was built from → the commit of it that was read; {}: days are still to be built."""
    kept: str | None = None
    """Older rows than of this day were dropped, by age; the days they were of are not in `days`."""
    commit: str = ""
    """The commit's id, drawn at random. The commit itself enters it; '': an older version of Restante made it."""
    state: State | None = None
    """What all commit infos up to this one say together. The commit itself enters it; None: like `commit`."""


def after(state: State, infos: Iterable[tuple[int, CommitInfo]]) -> State:
    """Return the state that later versions leave, given with their commit infos, in their order."""
    commits, kept, sources, inputs = [state.commits], state.kept, dict(state.sources), dict(state.inputs)
    versions = changed.from_numbers(state.changed)
    for version, info in infos:
        commits.append(info.commit)
        versions.update(dict.fromkeys(info.days, version))
        if info.kept:
            kept = max(kept or "", info.kept)
        if info.source and info.ledger:
            sources[info.source] = version
        inputs.update(info.inputs)
    return State(
        commits="".join(commits)[-MAX_COMMIT_IDS * COMMIT_ID_CHARACTERS :],
        changed=changed.to_numbers({day: version for day, version in versions.items() if day >= (kept or "")}),
        kept=kept,
        sources=sources,
        inputs=inputs,
    )
