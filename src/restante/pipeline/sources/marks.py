"""Compares the mark where reading stopped with the current rows. Pure.

Rows of usage are never changed, and ids increase. So reading may go on behind the last id if the rows that the mark
names are unchanged. They differ if an older copy was restored, if another file took its place, or if VACUUM assigned
new rowids, which it may do in a table without an INTEGER PRIMARY KEY (sqlite.org/lang_vacuum.html).

A server may have deleted the last row since, or may write another row there that looks the same, because times are
rounded. So the mark has the last few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

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
    assigned: int = 0
    """In PostgreSQL, the greatest id that was ever assigned, perhaps to a row that is not stored yet. Reading may not
    go on behind it, because a sequence is in no transaction (postgresql.org/docs/18/functions-sequence.html)."""


class Rows(Protocol):
    """The rows of a table."""

    def digest(self, row_id: int) -> str:
        """Return the digest of a row as the source has it, or "" if there is no such row."""

    def recent(self, last_id: int) -> dict[int, str]:
        """Return the digests of the clean values of the last RECENT_ROWS rows up to an id, by id."""


RECENT_ROWS: Final = 8
"""Rows up to the last one that a mark has, if they are clean: some 30 bytes of a commit info each."""

_REPLACED: Final = "this is an older copy or another file, or its ids are new"


def contradiction(mark: Mark, ids: IdRange, rows: Rows) -> str:
    """Return what contradicts the mark, or "" if reading may go on."""
    last_id = max(ids.last_id, ids.assigned)
    if last_id < mark.last:
        return f"its last id was {mark.last} and is {last_id} now: {_REPLACED}"
    last_digest, first_digest = rows.digest(mark.last), rows.digest(mark.first)
    if last_digest != mark.last_digest and (last_digest or not ids.never_reused):
        return f"the row with id {mark.last} has changed: {_REPLACED}"
    if first_digest and first_digest != mark.first_digest:
        return f"the row with id {mark.first} has changed: {_REPLACED}"
    changed = changed_ids(mark.recent, rows.recent(mark.last)) if mark.recent else []
    return f"the row with id {changed[-1]} has changed: {_REPLACED}" if changed else ""


def changed_ids(recent: Mapping[int, str], now: Mapping[int, str]) -> list[int]:
    """Return the ids that have a row in both, with other values, in order."""
    return sorted(row_id for row_id in recent.keys() & now.keys() if recent[row_id] != now[row_id])


def mark_after(ids: IdRange, rows: Rows) -> Mark:
    """Return the mark that says that everything was read."""
    return Mark(
        last=ids.last_id,
        last_digest=rows.digest(ids.last_id),
        first=ids.first_id,
        first_digest=rows.digest(ids.first_id),  # no row has id 0
        recent=rows.recent(ids.last_id),
    )
