"""The end of a wormhole whose connection the test carries, frame by frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from client.world import APP_ID, Side, settle
from restante.client import PeerConfirmed, Wormhole
from restante.client.connection.server import Server
from restante.client.errors import WormholeError
from support.bounds import bounded
from support.mailbox.givens import Options
from support.mailbox.worlds import StoreWorld, World

CODE = "4-purple-sausages"


class Line:
    """A connection to the server of a world. The test carries the frames of both directions."""

    def __init__(self, world: World, take: Callable[[bytes], None]) -> None:
        self._world, self._take = world, take
        self._inbox = world.connect()
        self._heard = 0
        self._sent: list[bytes] = []
        self.ended: asyncio.Future[WormholeError] = asyncio.get_running_loop().create_future()

    def send(self, text: bytes) -> None:
        self._sent.append(text)

    def end(self, reason: WormholeError) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def carry(self) -> None:
        """Bring to the server what was sent. A world has an event loop of its own: call this in a thread."""
        for text in self._sent:
            self._world.say(self._inbox, text.decode())
        self._sent.clear()
        self._world.flush()

    def bring(self) -> bool:
        """Bring one frame from the server, if there is one."""
        if self._heard == len(self._inbox.frames):
            return False
        self._heard += 1
        self._take(json.dumps(self._inbox.frames[self._heard - 1]).encode())
        return True

    async def settle(self) -> None:
        """Bring everything to the server and from it."""
        brought = True
        while brought:
            await asyncio.to_thread(self.carry)
            brought = self.bring()


@pytest.fixture
def world() -> Iterator[World]:
    with closing(StoreWorld(Options())) as world:
        yield world


@pytest.fixture
def lines(world: World, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Line]:
    """The connections that wormholes make from now on."""
    made: asyncio.Queue[Line] = asyncio.Queue()

    @asynccontextmanager
    async def connect(
        _server: Server, opened: Callable[[Line], None], take: Callable[[bytes], None]
    ) -> AsyncIterator[Line]:
        line = Line(world, take)
        opened(line)
        made.put_nowait(line)
        yield line

    monkeypatch.setattr("restante.client.connection.websocket.connect", connect)
    return made


async def test_a_close_goes_on_when_the_server_has_stored_the_last_message(
    world: World, lines: asyncio.Queue[Line]
) -> None:
    told: list[object] = []
    wormhole = Wormhole.create(APP_ID, server="ws://server.example/v1", on_event=told.append)
    async with bounded("the whole conversation"), wormhole:
        line = await lines.get()
        await line.settle()
        await wormhole.set_code(CODE)
        await line.settle()

        peer = Side(world, 1)
        peer.machine.set_code(CODE)
        await asyncio.to_thread(settle, peer)  # it has our half of the key: its version is stored before ours
        while not any(isinstance(each, PeerConfirmed) for each in told):
            assert line.bring()
        end = asyncio.create_task(wormhole.close())
        while not wormhole._changes._waiters:  # noqa: ASYNC110 - what shows that it waits is inside
            await asyncio.sleep(0)
        while not wormhole._driver.ended:
            await line.settle()
        await end
