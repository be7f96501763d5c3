"""`restante backup` and `restore`: what is checked and counted in a copy of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from restante.common import backups
from restante.mailbox.store.rows import check_rows
from restante.mailbox.store.schema import SCHEMA


class BackupContents(backups.BackupContents):
    """What a backup has, or what was restored."""

    nameplates: int
    mailboxes: int
    messages: int
    usage_records: int


_COUNTS = """
SELECT
    (SELECT count(*) FROM nameplates),
    (SELECT count(*) FROM mailboxes),
    (SELECT count(*) FROM messages),
    (SELECT count(*) FROM usage_nameplates) + (SELECT count(*) FROM usage_mailboxes)
        + (SELECT count(*) FROM usage_client_versions),
    saved
FROM service
"""


def back_up(data: Path, file: Path, advance: Callable[[int], None]) -> BackupContents:
    """Copy the database of a data directory into a new file, as `restante.common.backups.back_up` does."""
    return backups.back_up(SCHEMA, data, file, _read_contents, advance)


def restore(file: Path, data: Path, advance: Callable[[int], None]) -> BackupContents:
    """Copy a backup into a data directory, as `restante.common.backups.restore` does."""
    return backups.restore(SCHEMA, file, data, _read_contents, advance)


def _read_contents(copy: sqlite3.Connection, file: str, size: int, schema: int) -> BackupContents:
    check_rows(copy)
    nameplates, mailboxes, messages, usage_records, saved = copy.execute(_COUNTS).fetchone()
    return BackupContents(
        file=file,
        bytes=size,
        db_schema=schema,
        saved=saved or None,
        nameplates=nameplates,
        mailboxes=mailboxes,
        messages=messages,
        usage_records=usage_records,
    )
