"""Wormholes of asyncio programs that meet at a mailbox server, and programs that use Journal Mode there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from restante.client import Event, Journal, JournaledWormhole, Wormhole
from support.bounds import bounded
from support.mailbox.live import LiveServer
from support.mailbox.servers import Reference, Restante, Server

APP_ID: Final = "example.com/test"

SERVERS: Final[dict[str, type[Server]]] = {"ours": Restante, "the reference": Reference}

NOBODY: Final = "ws://server.example/v1"
"""Of the fixture `network`; without it, nobody is there."""


def url_of(server: Server) -> str:
    return f"ws://127.0.0.1:{server.port}/v1"


def serving(folder: Path, *flags: str, kind: str = "ours") -> AbstractAsyncContextManager[Server]:
    """Serve in a process that can be killed, and started again on the same port."""
    return SERVERS[kind](folder / "server", *flags).running()


class Heard:
    """The events of a wormhole. A test can wait for one, or act at the moment when it comes."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.act: Callable[[Event], None] = lambda _: None
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()
        self.act(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[Any], count: int = 1) -> None:
        async with bounded(f"{kind.__name__}, {count} times, in {self.events}"):
            while len(self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()


def wormhole(url: str = NOBODY, **options: Any) -> Wormhole:
    return Wormhole.create(APP_ID, server=url, **options)


async def meet(alice: Wormhole, bob: Wormhole) -> str:
    """Agree on a key. Return the code."""
    async with bounded("a key"):
        code = await alice.allocate_code()
        await bob.set_code(code)
        verifiers = await asyncio.gather(alice.verifier(), bob.verifier())
    assert verifiers[0] == verifiers[1]
    return code


async def use(wormhole: Wormhole, code: str | None = None) -> None:
    """Open it, use this code or a new one, wait for the peer, and close it."""
    async with bounded("the end of a wormhole"), wormhole:
        if code is None:
            await wormhole.allocate_code()
        else:
            await wormhole.set_code(code)
        await wormhole.verifier()


async def read(reader: Wormhole, count: int) -> list[bytes]:
    async with bounded(f"{count} messages"):
        return [await reader.receive() for _ in range(count)]


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
