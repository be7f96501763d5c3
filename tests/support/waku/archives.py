"""Archives that files come from, and go to."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from restante.waku.archive.records import Archived
from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import Envelope
from support.processes import TESTS
from support.waku.envelopes import envelope, everything

ROWS: Final = [
    envelope(number % 7, number, topic=bytes([number % 5] * 4), size=8 + number % 3 * 100) for number in range(50)
]


def archive_of(data: Path, rows: Sequence[Envelope] = ROWS, arrived: int = 1000) -> Path:
    async def save() -> None:
        archive = open_archive(data)
        for number in range(0, len(rows), 20):
            await archive.save(rows[number : number + 20], arrived + number)
        await archive.close()

    asyncio.run(save())
    return data


def rows_of(data: Path) -> list[Archived]:
    async def read() -> list[Archived]:
        archive = open_archive(data)
        try:
            return await everything(archive)
        finally:
            await archive.close()

    return asyncio.run(read())


def raws_of(data: Path) -> list[bytes]:
    return [row.raw for row in rows_of(data)]


FROZEN: Final = TESTS / "waku" / "archive" / "frozen"
"""A database of each schema, as the program of that time left it."""


def thaw(number: int, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript((FROZEN / f"sqlite-{number:04}.sql").read_text())
