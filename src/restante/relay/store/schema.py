"""The relay's database: one file in the data directory."""

from __future__ import annotations

from typing import Final

from restante.common.sqlite import Schema

FILE: Final = "relay.sqlite"

APPLICATION_ID: Final = 0x52737452
"""Identifies the file as a database of the relay ("RstR"; sqlite.org/pragma.html#pragma_application_id)."""

SCHEMA: Final = Schema("restante.relay.store", FILE, APPLICATION_ID, "transit relay")
