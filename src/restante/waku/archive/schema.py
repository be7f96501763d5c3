"""The archive's database: one file in the data directory."""

from __future__ import annotations

from typing import Final

from restante.store.database import Schema

FILE: Final = "archive.sqlite"

APPLICATION_ID: Final = 0x52737441
"""Marks the file as ours ("RstA"; sqlite.org/pragma.html#pragma_application_id)."""

SCHEMA: Final = Schema("restante.waku.archive", FILE, APPLICATION_ID, "Waku mailserver")
