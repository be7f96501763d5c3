"""A mailbox server of our own in a process, and wormholes of asyncio programs that meet there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from client.world import APP_ID
from restante.client import Event, Wormhole
from support.bounds import bounded
from support.mailbox.servers import Reference, Restante
from support.ports import held_port


class LiveServer(Restante):
    """A server that can be killed, and started again on the same port."""

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"


class LiveReference(Reference):
    """The reference server, of which the same is asked."""

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def serving_reference(folder: Path) -> AsyncIterator[LiveReference]:
    server = LiveReference(folder / "server")
    with held_port() as server.port:
        try:
            await server.start()
            yield server
        finally:
            await server.end()


@asynccontextmanager
async def serving(folder: Path, *flags: str) -> AsyncIterator[LiveServer]:
    server = LiveServer(folder / "server")
    server.flags = flags
    with held_port() as server.port:
        try:
            await server.start()
            yield server
        finally:
            await server.end()


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

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def until(self, kind: type[Any], count: int = 1) -> None:
        async with bounded(f"{kind.__name__}, {count} times, in {self.kinds}"):
            while len(self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()


def wormhole(url: str, **options: Any) -> Wormhole:
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
