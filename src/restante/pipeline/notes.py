"""What a commit to the lake says of itself: which run made it, from what, up to where.

Notes are kept with the commits, in the tables' own logs, so that a run that was cut off and a run that comes again
both know what is there already. A field that a later version adds has a default; one that it does not know is passed
over.
"""

from __future__ import annotations

import msgspec


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
    """Of a file that is known by its digest: how it was found (paths.File.seen); "" where that would not tell."""


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


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a commit says of itself."""

    run: str
    """The run that made it; '' where another program did, which left no note."""
    table: str
    finished: float
    """When its rows were all written, in seconds since 1970."""
    source: str | None = None
    days: list[str] = msgspec.field(default_factory=list)
    """UTC days of which it added or replaced rows, ISO. The commit itself enters them."""
    ledger: Ledger | None = None
    marks: dict[str, Mark] = msgspec.field(default_factory=dict)
    """A part of the source ('' for a database's table, else the file) → where reading it stopped."""
    built: dict[str, int] = msgspec.field(default_factory=dict)
    """A table that it was built from → the version of it that was read."""
    kept: str | None = None
    """Older rows than of this day were dropped, by age; the days they were of are not in `days`."""
