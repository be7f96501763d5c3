"""Programs that use Journal Mode, on a server whose days pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from client.live import APP_ID
from restante.client import Journal, JournaledWormhole
from support.bounds import bounded
from support.mailbox.live import LiveServer

CODE: Final = "4-purple-sausages"
State = dict[str, list[str]]


class Program:
    """A program that runs now and then: in each run it sends what it is given, and processes what has come."""

    def __init__(self, file: Path, server: LiveServer) -> None:
        self.file, self.server = file, server

    def journal(self) -> Journal[State]:
        return Journal[State](self.file, {"received": []})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Journal[State], JournaledWormhole]]:
        """Yield the journal and its wormhole, with its code set and its replay waited for."""
        async with self.journal() as journal, journal.wormhole("peer", APP_ID, server=self.server.url) as wormhole:
            if wormhole.code is None:
                await wormhole.set_code(CODE)
            yield journal, wormhole

    async def run(self, *texts: str) -> list[str]:
        """Send texts, process what waits, and return all that was processed in any run."""
        async with bounded("a run"), self.running() as (journal, wormhole):
            for text in texts:
                await wormhole.send(text.encode())
            async for message in wormhole.waiting():
                async with journal.step(message) as state:
                    state["received"].append(message.data.decode())
            return journal.state["received"]

    @property
    def received(self) -> list[str]:
        with closing(self.journal()) as journal:
            return journal.state["received"]

    async def unacknowledged(self) -> list[int]:
        async with self.journal() as journal:
            return journal.wormhole("peer", APP_ID).unacknowledged


async def acquainted(alice: Program, bob: Program) -> None:
    """Run both in turns until they have agreed on the key and know each other's versions."""
    for each in (alice, bob, alice, bob, alice):
        await each.run()
