"""What mailbox servers leave behind, made by their own code; what that cannot make is made by hand."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from restante.common.usage_records import ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core.model import Change, Now
from restante.mailbox.store.schema import APPLICATION_ID, FILE, SCHEMA
from restante.mailbox.store.sqlite import SqliteStore
from restante.pipeline.sources.source import IngestContext, Source, files_by_origin

T0 = 1_700_000_000.0
"""2023-11-14, 22:13:20 UTC; all that is in these databases began then, or later."""

NOW = T0 + 86_400
DAY = "2023-11-15"
"""Its UTC day."""
CONTEXT = IngestContext(NOW)

TABLES = ("nameplates", "mailboxes", "client_versions")


def nameplate(number: float, **fields: Any) -> NameplateUsage:
    return replace(NameplateUsage("x", T0 + number, 1.5, 4.25, "happy", 0.0), **fields)


def mailbox(number: int, **fields: Any) -> MailboxUsage:
    return replace(MailboxUsage("x", True, T0 + number, None, 9.0, "lonely", 0, 0.0), **fields)


def client(number: int, **fields: Any) -> ClientVersion:
    return replace(ClientVersion("x", "b1de", T0 + number, "python", "0.24.0", "canary", 0.0), **fields)


def current(blur: float | None) -> CurrentUsage:
    return CurrentUsage(rebooted=T0, updated=T0, blur_time=blur, connections_websocket=2)


class Ours:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.file = data / FILE
        self.store = SqliteStore.open(data)

    def write(self, *changes: Change) -> None:
        asyncio.run(self.store.apply(changes, Now(T0, 0.0)))

    def forget(self, before: float) -> int:
        """As --keep-usage does."""
        return asyncio.run(self.store.forget_usage(before, 1_000_000))


@contextmanager
def ours(data: Path, *changes: Change) -> Iterator[Ours]:
    server = Ours(data)
    try:
        if changes:
            server.write(*changes)
        yield server
    finally:
        asyncio.run(server.store.close())


def older_schema(data: Path) -> Path:
    """Make our database as it was with schema 1."""
    data.mkdir()
    with closing(sqlite3.connect(data / FILE, isolation_level=None)) as database:
        database.executescript(SCHEMA.migrations()[0])
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 1")
        database.execute(f"INSERT INTO usage_nameplates VALUES (1, '', 'x', {T0}, NULL, 2.0, 'lonely')")
    return data / FILE


def context_of(*sources: Source) -> IngestContext:
    return IngestContext(NOW, files_by_origin(sources))
