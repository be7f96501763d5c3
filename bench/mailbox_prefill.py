"""Data folders with many live nameplates: ours filled over the wire, the reference's by its own schema."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import sqlite3
import time
from typing import TYPE_CHECKING

import words
from mailbox_connection import Connection
from servers import CHANNEL_DB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import Bench, Server

AT_A_TIME = 64
PREFILL_SECONDS = 300.0


async def claim_all(server: Server, count: int) -> None:
    """Claim nameplates 1 to `count`, each over a connection of its own, closed afterwards."""
    names = iter(range(1, count + 1))
    async with asyncio.timeout(PREFILL_SECONDS), asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(_claim_some(server.port, names))


async def _claim_some(port: int, names: Iterator[int]) -> None:
    for name in names:
        connection = Connection(port)
        await connection.greet()
        await connection.bind()
        await connection.call(words.Claimed, "claim", nameplate=str(name))
        connection.end()


async def filled_restante(bench: Bench, count: int) -> Path:
    """Return a folder of a stopped server; copy it before use."""
    data = bench.folder()
    server = await bench.start("restante", data)
    await claim_all(server, count)
    await server.stop()
    return data


def fill_reference(data: Path, count: int) -> None:
    """Write what `count` claims would have left: over the wire they would take the reference hours."""
    schema = importlib.resources.files("wormhole_mailbox_server").joinpath("db-schemas/channel-v1.sql")
    now = int(time.time())
    names = [(str(n), f"mailbox{n:06d}", f"filler-{n}") for n in range(1, count + 1)]
    with contextlib.closing(sqlite3.connect(data / CHANNEL_DB)) as db, db:
        db.executescript(schema.read_text(encoding="utf-8"))
        db.execute("INSERT INTO version VALUES (1)")
        db.executemany(
            "INSERT INTO mailboxes VALUES (?, ?, ?, 1)",
            ((words.APPID, mailbox, now) for _, mailbox, _ in names),
        )
        db.executemany(
            "INSERT INTO mailbox_sides VALUES (?, 1, ?, ?, NULL)",
            ((mailbox, side, now) for _, mailbox, side in names),
        )
        db.executemany(
            "INSERT INTO nameplates (id, app_id, name, mailbox_id) VALUES (?, ?, ?, ?)",
            ((int(name), words.APPID, name, mailbox) for name, mailbox, _ in names),
        )
        db.executemany(
            "INSERT INTO nameplate_sides VALUES (?, 1, ?, ?)",
            ((int(name), side, now) for name, _, side in names),
        )
