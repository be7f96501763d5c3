"""The archive's database: one file in the data directory."""

from __future__ import annotations

import sqlite3
from typing import Final

from restante.common.errors import StoreDamaged, StoreError
from restante.common.sqlite import Schema, primary

FILE: Final = "archive.sqlite"

APPLICATION_ID: Final = 0x52737441
"""Marks the file as an archive ("RstA"; sqlite.org/pragma.html#pragma_application_id)."""

SCHEMA: Final = Schema("restante.waku.archive", FILE, APPLICATION_ID, "Waku mailserver")


def unreadable(error: sqlite3.Error) -> StoreError:
    """Return the error for an archive that cannot be read. For a damaged one it says what to do."""
    if primary(error) == sqlite3.SQLITE_CORRUPT:
        return StoreDamaged(
            f"the archive is damaged ({error}): restore a backup; run `restante waku check` for details"
        )
    return StoreError(f"cannot read the archive: {error}")
