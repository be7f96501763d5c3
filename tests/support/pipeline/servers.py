"""What mailbox servers leave behind, made by their own code; what that cannot make is made by hand."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from restante.common.usage_records import ClientVersion, CurrentUsage, MailboxUsage, NameplateUsage
from restante.mailbox.core.model import Change, Now
from restante.mailbox.store.schema import FILE
from restante.mailbox.store.sqlite import Store
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import CLEAN_TABLES
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.rows import columns
from restante.pipeline.sources.source import IngestContext, Source, Span, origins
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.sources.usage_tasks import cut

T0 = 1_700_000_000.0
"""2023-11-14, 22:13:20 UTC; all that is in these databases began then, or later."""

NOW = T0 + 86_400
FIRST_DAY = date(2016, 1, 1)
CONTEXT = IngestContext(NOW, FIRST_DAY)

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
    """Our mailbox server's store on a data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.file = data / FILE
        self._store = Store.open(data)

    def write(self, *changes: Change) -> None:
        asyncio.run(self._store.apply(changes, Now(T0, 0.0)))

    def forget(self, before: float) -> int:
        """As --keep-usage does."""
        return asyncio.run(self._store.forget_usage(before, 1_000_000))

    def close(self) -> None:
        asyncio.run(self._store.close())


@contextmanager
def ours(data: Path, *changes: Change) -> Iterator[Ours]:
    server = Ours(data)
    try:
        if changes:
            server.write(*changes)
        yield server
    finally:
        server.close()


def alter(file: Path, *statements: str) -> None:
    """Do to a database what its server would not."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def older_schema(data: Path) -> Path:
    """Make our database as it was with schema 1."""
    from restante.mailbox.store.schema import APPLICATION_ID, SCHEMA

    data.mkdir()
    alter(
        data / FILE,
        *(part for part in _statements(SCHEMA.migrations()[0])),
        f"PRAGMA application_id = {APPLICATION_ID}",
        "PRAGMA user_version = 1",
        f"INSERT INTO usage_nameplates VALUES (1, '', 'x', {T0}, NULL, 2.0, 'lonely')",
    )
    return data / FILE


def _statements(script: str) -> Iterator[str]:
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            yield part
            part = ""


class Read(NamedTuple):
    """What came of a table."""

    span: Span
    rows: list[dict[str, Any]]

    @property
    def clean(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["fault"] is None]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows]


Marks = dict[str, dict[str, Mark]]


def read(
    source: Source | str,
    scratch: Path,
    marks: Marks | None = None,
    *,
    context: IngestContext = CONTEXT,
    said: list[str] | None = None,
) -> dict[str, Read]:
    """Read what is new of the usage records, as Spark's workers do; the marks go on."""
    named = recognise(source) if isinstance(source, str) else source
    found: dict[str, Read] = {}
    with named.opened(scratch, (said if said is not None else []).append, context) as opened:
        assert isinstance(opened, OpenedUsage)
        for table in opened.tables:
            if table.name not in TABLES:
                continue
            span = opened.find_new(table.name, (marks or {}).get(table.name, {}))
            if span is not None:
                found[table.name] = Read(span, drained(opened, span))
                if marks is not None:
                    marks[table.name] = dict(span.marks)
    return found


def drained(opened: OpenedUsage, span: Span) -> list[dict[str, Any]]:
    names = [column.name for column in columns(CLEAN_TABLES[span.table])]
    found: list[dict[str, Any]] = []
    for task in cut(opened.scan(span), span.parts):
        for batch in task.batches():
            assert batch.schema.names == names
            found += batch.to_pylist()
    return found


def context_of(*sources: Source) -> IngestContext:
    return IngestContext(NOW, FIRST_DAY, origins(sources))
