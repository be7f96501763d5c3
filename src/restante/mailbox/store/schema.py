"""The mailbox server's database: one file in the data directory."""

from __future__ import annotations

from typing import Final

from restante.common.sqlite import Schema

FILE: Final = "restante.sqlite"

APPLICATION_ID: Final = 0x52657374
"""Identifies the file as a database of this server ("Rest"; sqlite.org/pragma.html#pragma_application_id)."""

SCHEMA: Final = Schema("restante.mailbox.store", FILE, APPLICATION_ID, "mailbox server")

migrations = SCHEMA.migrations
connect = SCHEMA.connect
