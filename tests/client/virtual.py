"""Wormholes of programs and a mailbox server in one process, on a simulated network, and in virtual time if wanted.

The server's core is the real one. Frames need a while to arrive, and connections are lost with what is under way.
`simulate` lets time pass only when nothing else is left to do, so that days take no time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

from client.live import APP_ID
from restante.client import Event, ServerGoneError, Wormhole
from restante.client.connection.server import Server
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.core.state import NEW_BYTES, new_state
from restante.client.errors import WormholeError
from support.dice import Seeded
from support.mailbox.givens import Inbox
from support.mailbox.worlds import World

T = TypeVar("T")

LONGEST = 7 * 24 * 3600.0
"""Seconds after which a simulation must be over."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting, it lets the time pass."""

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
    """An event loop whose time passes when nothing is ready."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Run a simulation to its end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class Line:
    """A connection of the simulated network, as the driver sees one."""

    def __init__(self, network: Network, take: Callable[[bytes], None]) -> None:
        self._network, self._take = network, take
        self.ended: asyncio.Future[WormholeError] = asyncio.get_running_loop().create_future()
        self.inbox: Inbox = network.world.connect()
        self._heard = 0
        self._paused = self._silent = False
        self._arrived = 0
        self._waiting: list[bytes] = []
        self._last = {"to": 0.0, "from": 0.0}
        self._under_way: dict[str, deque[Callable[[], None]]] = {"to": deque(), "from": deque()}
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
        """Send what the server has said since the last call."""
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
        self._last[direction] = when = max(self._last[direction], loop.time() + self._network.delay())
        self._under_way[direction].append(act)
        loop.call_at(when, self._next, direction)  # timers of one moment come in any order

    def _next(self, direction: str) -> None:
        act = self._under_way[direction].popleft()
        if not self.ended.done():
            act()

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
    """Where wormholes reach the server, after a while, and not always."""

    def __init__(self, world: World, seed: int = 1, *, latency: float = 0.0, breaking: float = 0.0) -> None:
        """Begin. A frame arrives after at most `latency` seconds, and breaks its connection with a probability."""
        self.world = world
        self._chance = Random(seed)
        self.latency = latency
        self.breaking = breaking
        self.frames_until_broken: int | None = None
        """After so many frames from the server each connection breaks."""
        self.silent_from: str | None = None
        """From the first frame of this type on, the server says nothing more on a connection."""
        self.lines: list[Line] = []
        self.up = True
        """Whether the server can be reached."""

    def delay(self) -> float:
        return self._chance.random() * self.latency

    def breaks(self) -> bool:
        return self._chance.random() < self.breaking

    def flush(self) -> None:
        """Let the server handle what it was told, and answer."""
        self.world.advance(0.001)
        self.world.flush()
        for line in self.lines.copy():
            line.collect()

    def go_down(self) -> None:
        """End all connections, and take no new ones."""
        self.up = False
        for line in self.lines.copy():
            line.end(ServerGoneError("the server was stopped"))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left at the server."""
        return set(self.world.counts().values()) == {"0"}

    @property
    def moods(self) -> list[str]:
        """How the mailboxes ended, for the operator's records."""
        return [record["result"] for record in self.world.usage().mailboxes]

    @asynccontextmanager
    async def connect(
        self, _server: Server, opened: Callable[[Line], None], take: Callable[[bytes], None]
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
    """Return a wormhole whose dice fall the same way in every run."""
    dice = Seeded(seed)
    state = new_state(APP_ID, {}, dice.draw(NEW_BYTES))
    return Wormhole(state, Server("ws://simulated/v1"), dice, max_work_bits=DEFAULT_MAX_BITS, on_event=on_event)
