"""Wormholes and journals at servers in processes, or at the real core in memory, on a network in virtual time."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any, Final

from restante.client import Event, Journal, JournaledWormhole, ServerGoneError, Wormhole
from restante.client.connection import server as addresses
from restante.client.core.state import NEW_BYTES, new_state
from restante.client.errors import WormholeError
from support.bounds import bounded
from support.dice import Seeded
from support.loops import on_loop
from support.mailbox.givens import Inbox, Options
from support.mailbox.live import LiveServer
from support.mailbox.servers import Server
from support.mailbox.worlds import CoreWorld

APP_ID: Final = "example.com/test"

NOBODY: Final = "ws://server.example/v1"
"""Of the fixture `network`; without it, nobody is there."""


def url_of(server: Server) -> str:
    return f"ws://127.0.0.1:{server.port}/v1"


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

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
    async with bounded("a key"):
        code = await alice.allocate_code()
        await bob.set_code(code)
        verifiers = await asyncio.gather(alice.verifier(), bob.verifier())
    assert verifiers[0] == verifiers[1]
    return code


async def use(wormhole: Wormhole) -> None:
    async with bounded("the end of a wormhole"), wormhole:
        await wormhole.allocate_code()
        await wormhole.verifier()


async def read(reader: Wormhole, count: int) -> list[bytes]:
    async with bounded(f"{count} messages"):
        return [await reader.receive() for _ in range(count)]


CODE: Final = "4-purple-sausages"
State = dict[str, list[str]]


class Program:
    def __init__(self, file: Path, server: LiveServer) -> None:
        self.file, self.server = file, server

    def journal(self) -> Journal[State]:
        return Journal[State](self.file, {"received": []})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Journal[State], JournaledWormhole]]:
        async with self.journal() as journal, journal.wormhole("peer", APP_ID, server=self.server.url) as wormhole:
            if wormhole.code is None:
                await wormhole.set_code(CODE)
            yield journal, wormhole

    async def run(self, *texts: str) -> list[str]:
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


LONGEST = 7 * 24 * 3600.0


class _Selector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "nothing will ever happen"
        if not ready:
            self.now += timeout or 0.0
            assert self.now < LONGEST, "it does not end"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


simulated = on_loop(VirtualLoop)


class Line:
    def __init__(self, network: Network, take: Callable[[bytes], None]) -> None:
        self._network, self._take = network, take
        self.ended: asyncio.Future[WormholeError] = asyncio.get_running_loop().create_future()
        self.inbox: Inbox = network.world.connect()
        self._heard = 0
        self._paused = self._silent = False
        self._arrived = 0
        self._waiting: list[bytes] = []
        self._last = {"to": 0.0, "from": 0.0}
        network.lines.append(self)

    def send(self, text: bytes) -> None:
        self._later("to", lambda: self._say(text))

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        while self._waiting and not self._paused and not self.ended.done():
            self._take(self._waiting.pop(0))

    def end(self, reason: WormholeError, _code: object = None) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
            self._network.lines.remove(self)
            self._network.world.lose(self.inbox)
            self._network.flush()

    def collect(self) -> None:
        new = self.inbox.frames[self._heard :]
        self._heard += len(new)
        for frame in new:
            self._silent = self._silent or frame["type"] == self._network.silent_from
            if not self._silent:
                text = json.dumps(frame).encode()
                self._later("from", lambda text=text: self._arrive(text))  # type: ignore[misc]

    def _later(self, direction: str, act: Callable[[], None]) -> None:
        """Act after a while, and after all that went the same way before."""
        loop = asyncio.get_running_loop()
        when = max(self._last[direction] + 1e-6, loop.time() + self._network.delay())  # no two at one moment
        self._last[direction] = when
        loop.call_at(when, lambda: None if self.ended.done() else act())

    def _say(self, text: bytes) -> None:
        if self._network.breaks():
            self.end(ServerGoneError("the connection was lost"))
            return
        self._network.world.say(self.inbox, text.decode())
        self._network.flush()

    def _arrive(self, text: bytes) -> None:
        if self._network.breaks():
            self.end(ServerGoneError("the connection was lost"))
        elif self._paused:
            self._waiting.append(text)
        else:
            self._take(text)
            self._arrived += 1
            if self._arrived == self._network.frames_until_broken:
                self.end(ServerGoneError("the connection was lost"))


class Network:
    def __init__(self, seed: int = 1) -> None:
        self.world = CoreWorld(Options())
        self._chance = Random(seed)
        self.latency = 0.0
        """Seconds after which a frame arrives at the latest."""
        self.breaking = 0.0
        self.frames_until_broken: int | None = None
        """After so many frames from the server each connection breaks."""
        self.silent_from: str | None = None
        """From the first frame of this type on, the server says nothing more on a connection."""
        self.lines: list[Line] = []
        self.up = True

    def delay(self) -> float:
        return self._chance.random() * self.latency

    def breaks(self) -> bool:
        return self._chance.random() < self.breaking

    def flush(self) -> None:
        self.world.advance(0.001)
        self.world.flush()
        for line in self.lines.copy():
            line.collect()

    def go_down(self) -> None:
        self.up = False
        for line in self.lines.copy():
            line.end(ServerGoneError("the server was stopped"))

    @property
    def is_empty(self) -> bool:
        return set(self.world.counts().values()) == {"0"}

    @property
    def moods(self) -> list[str]:
        return [record["result"] for record in self.world.usage().mailboxes]

    @asynccontextmanager
    async def connect(
        self, _server: addresses.ServerEndpoint, opened: Callable[[Line], None], take: Callable[[bytes], None]
    ) -> AsyncIterator[Line]:
        """Stand for `restante.client.connection.websocket.connect`."""
        await asyncio.sleep(self.delay())
        if not self.up:
            raise ServerGoneError("the server cannot be reached")
        line = Line(self, take)
        opened(line)
        line.collect()
        try:
            yield line
        finally:
            line.end(ServerGoneError("closed here"))


def virtual_wormhole(seed: int, on_event: Callable[[Event], None] | None = None) -> Wormhole:
    dice = Seeded(seed)
    state = new_state(APP_ID, {}, dice.draw(NEW_BYTES))
    return Wormhole(state, addresses.ServerEndpoint("ws://simulated/v1"), dice, on_event=on_event)
