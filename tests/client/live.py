"""Wormholes of asyncio programs that meet at a mailbox server, and what their applications are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from restante.client import Event, Wormhole
from support.bounds import bounded
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
