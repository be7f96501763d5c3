"""The server with its shells on: the office with its queue, and the socket. They choose their batches themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp

from machine.givens import Clock, Dice, Options, Wire
from machine.model import Now, Rows
from machine.records import Usage
from machine.tables import check_store, live_rows, usage_rows
from machine.worlds import Disk, World
from restante.mailbox.desk import Desk
from restante.mailbox.office import Lifetime, Office
from restante.mailbox.server import Manners, Server
from restante.mailbox.store.schema import connect


class OfficeWorld(World):
    """The office with its queue, over the same store. It says when what came, and what is a batch."""

    gathers = True
    answers_the_lost = False

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        super().__init__(options, clock, dice)
        self._store = Disk(connect(":memory:"))
        self._waiting = False
        self.run(self._open())

    async def _open(self) -> None:
        lifetime = Lifetime(prune_after=self.options.prune_after)
        self._office = await Office.open(self._store, self.clock, self.dice, self.policy, lifetime)
        self._working = asyncio.get_running_loop().create_task(self._office.run())

    @property
    def desk(self) -> Desk:
        return self._office.desk

    def now(self) -> Now:
        now = self._office.now()
        return Now(now.wall, now.service)

    def connect(self) -> Wire:
        wire = Wire()
        self._office.desk.meet(wire.connection)
        return wire

    def say(self, wire: Wire, text: str) -> None:
        self._waiting = True
        self._office.receive(wire.connection, text)

    def lose(self, wire: Wire) -> None:
        self._waiting = True
        self._office.lose(wire.connection)

    def flush(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        if self._waiting:
            self._waiting = False
            self.run(self._work(lambda: None))
        self._store.refuses = False
        self._write_down()
        return not self._store.refused

    def _write_down(self) -> None:
        """A second goes by: what no answer rests on is on disk, too."""
        self.run(self._work(self._office.write_down))

    async def _work(self, begin: Callable[[], None]) -> None:
        """Wait until the office has done everything there was to do."""
        begin()
        idle = asyncio.ensure_future(self._office.idle.wait())
        await asyncio.wait((idle, self._working), return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            await self._working  # raises whatever ended it
            raise AssertionError("the office closed by itself")

    def sweep(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self.run(self._work(self._office.sweep))
        self._store.refuses = False
        return not self._store.refused

    def save(self) -> None:
        if self.desk.state.unsaved:
            self.run(self._work(self._office.save))

    def restart(self, *, crash: bool) -> None:
        self.run(self._restart(crash=crash))

    async def _restart(self, *, crash: bool) -> None:
        survivor = self._store.copy() if crash else None
        await self._stop()
        old, self._store = self._store, survivor or self._store.copy()
        await old.close()
        await self._open()

    async def _stop(self) -> None:
        self._office.stop()
        await self._working

    def live(self) -> dict[str, Rows]:
        return live_rows(self._store)

    def usage(self) -> Usage:
        return usage_rows(self._store)

    def check(self) -> None:
        check_store(self._store, self.run(self._store.view()), self.desk.state, self.now())

    def close(self) -> None:
        try:
            self.run(self._end())
        finally:
            super().close()

    async def _end(self) -> None:
        await self._stop()
        await self._store.close()


class SocketWire(Wire):
    """The same behind a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self.socket = socket


class SocketWorld(OfficeWorld):
    """The whole server, with real clients on loopback."""

    gathers = False
    hanging_up_loses = True

    def __init__(self, options: Options, clock: Clock, dice: Dice) -> None:
        self._wires: list[SocketWire] = []
        self._speaker: SocketWire | None = None
        self._barriers = 0
        self._sent = 0
        super().__init__(options, clock, dice)

    async def _open(self) -> None:
        await super()._open()
        self._server = Server(self._office, self.clock, Manners(motd="hello", binary=self.options.binary))
        [self._address] = await self._server.listen("127.0.0.1", 0)
        self._ends = AsyncExitStack()
        self._session = await self._ends.enter_async_context(aiohttp.ClientSession())

    def connect(self) -> Wire:
        return self.run(self._connect())

    async def _connect(self) -> Wire:
        host, port = self._address
        wire = SocketWire(await self._session.ws_connect(f"ws://{host}:{port}/v1"))
        await self._hear_one(wire)
        [welcome] = wire.frames
        ours = wire.socket.get_extra_info("sockname")
        assert welcome["type"] == "welcome"
        assert welcome["welcome"] == {"motd": "hello", "your-address": {"ipv4": ours[0], "port": ours[1]}}
        wire.frames.clear()
        self._wires.append(wire)
        return wire

    def say(self, wire: Wire, text: str) -> None:
        assert isinstance(wire, SocketWire)
        self._speaker = wire
        self._sent += 1
        if self._sent % 2:  # the letter of spec 000 has binary frames, clients send text
            self.run(wire.socket.send_str(text))
        else:
            self.run(wire.socket.send_bytes(text.encode()))

    def lose(self, wire: Wire) -> None:
        assert isinstance(wire, SocketWire)
        self.run(self._lose(wire))

    async def _lose(self, wire: SocketWire) -> None:
        self._wires.remove(wire)
        await wire.socket.close()
        while len(self.desk.connections) > len(self._wires) or not self._office.idle.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the server has read that we are gone

    def flush(self, *, refused: bool = False) -> bool:
        self._store.refuses, self._store.refused = refused, False
        self.run(self._hear())
        self._store.refuses = False
        self._write_down()
        return not self._store.refused

    async def _hear(self) -> None:
        """Read all that was sent: first to whoever spoke, since that is told when everybody else is."""
        speaker, self._speaker = self._speaker, None
        if speaker in self._wires:
            await self._hear_until_barrier(speaker)
        for wire in list(self._wires):
            if wire is not speaker:
                await self._hear_until_barrier(wire)

    async def _hear_until_barrier(self, wire: SocketWire) -> None:
        """Have a ping answered: whatever was sent before has come before (spec 000 has pings for just this)."""
        self._barriers += 1
        barrier = f"barrier {self._barriers}"
        await wire.socket.send_str(json.dumps({"type": "ping", "ping": 0, "id": barrier}))
        while await self._hear_one(wire):
            if wire.frames[-1].get("id") == barrier and wire.frames[-1]["type"] == "pong":
                wire.frames = [frame for frame in wire.frames if frame.get("id") != barrier]
                return
        await self._lose(wire)

    async def _hear_one(self, wire: SocketWire) -> bool:
        """Read a frame; false: the server closed."""
        message = await wire.socket.receive()
        if message.type is aiohttp.WSMsgType.CLOSE:
            wire.verdict = message.data, message.extra or ""
            return False
        assert message.type is (aiohttp.WSMsgType.BINARY if self.options.binary else aiohttp.WSMsgType.TEXT)
        wire.frames.append(json.loads(message.data))
        return True

    async def _stop(self) -> None:
        """Drain. Every client is told that the server restarts."""
        await self._server.drain(self._working)
        for wire in self._wires:
            assert not await self._hear_one(wire)
            assert wire.verdict == (1001, "server restarts")
            await wire.socket.close()
        self._wires.clear()
        await self._ends.aclose()
        await asyncio.sleep(0)
