"""Compares the mark where reading stopped with the current rows. Pure.

Rows of usage are never changed, and ids increase. So reading may go on behind the last id if the rows that the mark
names are unchanged. They differ if an older copy was restored, if another file took its place, or if VACUUM assigned
new rowids, which it may do in a table without an INTEGER PRIMARY KEY (sqlite.org/lang_vacuum.html).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from restante.pipeline.lake.commit_info import Mark


class IdRange(NamedTuple):
    """The ids of a table."""

    first_id: int
    """The least id with a row; 0 if there is no row."""
    last_id: int
    """The greatest id that was ever assigned, as far as the table shows; 0 if none was."""
    never_reused: bool
    """Whether ids are assigned once, in increasing order (AUTOINCREMENT, sqlite.org/autoinc.html). Then an id without
    a row had one."""


_REPLACED: Final = "this is an older copy or another file, or its ids are new"


def contradiction(mark: Mark, ids: IdRange, digest: Callable[[int], str]) -> str:
    """Return what contradicts the mark, or "" if reading may go on. `digest` returns "" for an id without a row."""
    if ids.last_id < mark.last:
        return f"its last id was {mark.last} and is {ids.last_id} now: {_REPLACED}"
    last_digest, first_digest = digest(mark.last), digest(mark.first)
    if last_digest != mark.last_digest and (last_digest or not ids.never_reused):
        return f"the row with id {mark.last} has changed: {_REPLACED}"
    if first_digest and first_digest != mark.first_digest:
        return f"the row with id {mark.first} has changed: {_REPLACED}"
    return ""


def mark_after(ids: IdRange, digest: Callable[[int], str]) -> Mark:
    """Return the mark that says that everything was read."""
    return Mark(
        last=ids.last_id, last_digest=digest(ids.last_id), first=ids.first_id, first_digest=digest(ids.first_id)
    )  # no row has id 0
