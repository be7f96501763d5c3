"""`restante relay backup` and `restore`: what is checked, counted and left out in a copy of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from restante.common import backups
from restante.common.errors import StoreDamaged
from restante.common.sqlite import check_pages
from restante.relay.store.schema import SCHEMA


class BackupContents(backups.BackupContents):
    """What a backup has, or what was restored."""

    usage_records: int
    month_bytes: int
    """Bytes relayed in the month of the last save."""


_COUNTS = """
SELECT
    (SELECT count(*) FROM transfers),
    (SELECT total(month_bytes) FROM traffic),
    (SELECT updated FROM current)
"""


def back_up(data: Path, file: Path, advance: Callable[[int], None]) -> BackupContents:
    """Copy the database of a data directory into a new file, as `restante.common.backups.back_up` does.

    The copy lacks the key of the day, and the bytes of addresses, which mean nothing without it.
    """
    return backups.back_up(SCHEMA, data, file, _read_contents, advance, _leave_out_key)


def restore(file: Path, data: Path, advance: Callable[[int], None]) -> BackupContents:
    """Copy a backup into a data directory, as `restante.common.backups.restore` does."""
    return backups.restore(SCHEMA, file, data, _read_contents, advance)


def _leave_out_key(copy: sqlite3.Connection) -> None:
    copy.executescript("UPDATE traffic SET day_key = x''; DELETE FROM address_bytes;")


def _read_contents(copy: sqlite3.Connection, file: str, size: int, schema: int) -> BackupContents:
    check_pages(copy)
    try:
        usage_records, month_bytes, saved = copy.execute(_COUNTS).fetchone()
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(str(error)) from error
    return BackupContents(
        file=file,
        bytes=size,
        db_schema=schema,
        saved=saved,
        usage_records=usage_records,
        month_bytes=int(month_bytes),
    )
