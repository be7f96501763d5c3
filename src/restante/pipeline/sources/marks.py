"""Where reading stopped, held against what is there now. Pure.

Rows of usage are never changed, and ids go up. So reading may go on behind the last id if the rows that the mark
names are still the same ones. What can be wrong: an older copy was put back, another file took its place, or VACUUM
gave out new rowids, which it may where a table has no INTEGER PRIMARY KEY (sqlite.org/lang_vacuum.html).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from restante.pipeline.lake.commit_info import Mark


class IdRange(NamedTuple):
    """The ids of a table."""

    first: int
    """The least that has a row; 0: none has."""
    last: int
    """The greatest that was ever given, as far as the table can tell; 0: none was."""
    kept: bool
    """Ids are given once, in their order (AUTOINCREMENT, sqlite.org/autoinc.html): one without a row had one."""


def broken(mark: Mark, ids: IdRange, digest: Callable[[int], str]) -> str:
    """Tell what does not fit the mark; "" where reading may go on. `digest` of an id without a row is ""."""
    if ids.last < mark.last:
        return f"its last id was {mark.last} and is {ids.last} now: an older copy, another file, or new ids"
    last, first = digest(mark.last), digest(mark.first)
    if last != mark.last_digest and (last or not ids.kept):
        return f"the row with id {mark.last} is another now: an older copy was put back, another file, or new ids"
    if first and first != mark.first_digest:
        return f"the row with id {mark.first} is another now: an older copy was put back, another file, or new ids"
    return ""


def behind(ids: IdRange, digest: Callable[[int], str]) -> Mark:
    """Mark that everything is read."""
    return Mark(
        last=ids.last, last_digest=digest(ids.last), first=ids.first, first_digest=digest(ids.first)
    )  # no row has id 0
