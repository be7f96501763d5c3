"""Where conversations with the transit relay are held: its pure core, the reference's code, any TCP port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

from wormhole_transit_relay import transit_server
from wormhole_transit_relay import usage as reference_usage

from restante.common.address_registry import AddressRegistry
from restante.common.client_address import Client
from restante.common.net import parse_ip
from restante.common.refusals import Refusal
from restante.relay.core.limits import Limits
from restante.relay.core.quotas import AddressQuota
from restante.relay.core.relay import Now, Pair, Paired, Refused, Relay, Side
from restante.relay.protocol.request import BAD_HANDSHAKE, IMPATIENT, OK, read_line
from support.bounds import bounded
from support.ports import held_port
from support.processes import Child

EPOCH: Final = 1_000_000_000.0
"""Wall time at which the clock of the core begins: 2001-09-09 01:46:40 UTC."""


@dataclass(eq=False)
class Inbox:
    """What a client has received, and whether the relay has closed its connection."""

    received: bytearray = field(default_factory=bytearray)
    closed: bool = False


class World(Protocol):
    """A relay, and clients that are known by their names."""

    exact: bool
    """Whether its clock moves only as it is told, so that times are known."""
    nonce: str
    """It makes the tokens of a script differ from those of other worlds at the same relay."""
    inboxes: dict[str, Inbox]

    async def connect(self, name: str, address: str | None) -> None: ...
    def send(self, name: str, data: bytes) -> None: ...
    def leave(self, name: str, how: str) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def drain(self) -> None: ...

    async def settle(self) -> None:
        """Wait until all that was sent so far has had its effect."""

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds, if it may hold later."""

    def counts(self) -> dict[str, float] | None: ...
    def refusals(self) -> dict[str, float] | None: ...
    def usage(self) -> list[dict[str, Any]]: ...


# ── the pure core ─────────────────────────────────────────────────────────────────────────────────


class CoreConnection(Inbox):
    """A TCP connection of the pure core: what a server does with its answers."""

    def __init__(self, world: CoreWorld) -> None:
        super().__init__()
        self.world = world
        self.side: Side
        self.unread = bytearray()

    def receive(self, data: bytes) -> None:
        relay, side = self.world.relay, self.side
        if self.closed:
            return
        if side.pair is not None:
            self.pass_on(side.pair, data)
        elif side.state == "waiting":
            relay.end(side, self.world.now(), "impatient")
            self.answer(IMPATIENT)
        else:
            self.unread += data
            self.read_request()

    def read_request(self) -> None:
        relay, now = self.world.relay, self.world.now()
        line = read_line(self.unread)
        if line is None:
            return
        rest, self.unread = bytes(self.unread[line.size :]), bytearray()
        if line.request is None:
            relay.end(self.side, now, None if line.too_long else "errory")
            self.answer(b"" if line.too_long else BAD_HANDSHAKE)
            return
        answer = relay.request(self.side, line.request, now)
        if isinstance(answer, Refused):
            for side in answer.sides:
                self.world.connection(side).answer(BAD_HANDSHAKE)
            return
        if isinstance(answer, Paired):
            self.world.close(answer.redundant)
            for side in (answer.pair.second, answer.pair.first):
                self.world.connection(side).received += OK
        if rest:
            self.receive(rest)

    def pass_on(self, pair: Pair, data: bytes) -> None:
        self.world.connection(pair.other(self.side)).received += data
        if not self.world.relay.count_bytes(pair, len(data)):
            self.lose()
            self.closed = True

    def lose(self) -> None:
        """End the side, and close the other one of its pair."""
        pair = self.side.pair
        self.world.relay.end(self.side, self.world.now())
        if pair is not None:
            self.world.connection(pair.other(self.side)).closed = True

    def answer(self, data: bytes) -> None:
        """Send the last bytes."""
        self.received += data
        self.closed = True


class OurWorld:
    """What can be looked up in our relay, if it is in this process."""

    exact = True
    relay: Relay

    def counts(self) -> dict[str, float]:
        return {"new": self.relay.new, "waiting": self.relay.waiting, "pairs": self.relay.pairs}

    def usage(self) -> list[dict[str, Any]]:
        return [
            {
                "result": record.result,
                "started": record.started - EPOCH,
                "waiting": record.waiting_time,
                "total": record.total_time,
                "bytes": record.total_bytes,
            }
            for record in self.relay.records
        ]


class CoreWorld(OurWorld):
    """The pure core, with a clock that the script moves."""

    nonce = "core"

    def __init__(self, limits: Limits, blur: int) -> None:
        self.relay = Relay(limits, blur=blur)
        self.registry = AddressRegistry(AddressQuota, lambda: b"secret")
        self.elapsed = 0.0
        self.inboxes: dict[str, Inbox] = {}

    def now(self) -> Now:
        return Now(EPOCH + self.elapsed, self.elapsed)

    def connection(self, side: Side) -> CoreConnection:
        assert isinstance(side.connection, CoreConnection)
        return side.connection

    def close(self, sides: tuple[Side, ...] | list[Side]) -> None:
        for side in sides:
            self.connection(side).closed = True

    async def connect(self, name: str, address: str | None) -> None:
        self.open(name, address)

    def open(self, name: str, address: str | None = None) -> None:
        ip = parse_ip(address or "127.0.0.1")
        assert ip is not None
        quotas = self.registry.quotas_of(Client(ip, 0, counted=address is not None))
        connection = self.inboxes[name] = CoreConnection(self)
        side = self.relay.open(connection, quotas, self.registry.day_id(ip, self.now().wall), self.now())
        if isinstance(side, Refusal):
            connection.closed = True
        else:
            connection.side = side

    def send(self, name: str, data: bytes) -> None:
        self._connection(name).receive(data)

    def leave(self, name: str, how: str) -> None:
        """Lose a connection. A relay closes one that has shut its writing."""
        connection = self._connection(name)
        if not connection.closed:
            connection.lose()
            connection.closed = True

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds
        self.close(self.relay.expire(self.now()))

    def drain(self) -> None:
        self.close(self.relay.drain(self.now()))

    async def settle(self) -> None:
        """Do nothing: each call has had its effect when it returns."""

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Do nothing: what does not hold now does not hold later."""

    def refusals(self) -> dict[str, float]:
        return dict(self.relay.refusal_counts.since_start)

    def _connection(self, name: str) -> CoreConnection:
        connection = self.inboxes[name]
        assert isinstance(connection, CoreConnection)
        return connection


# ── the code of the reference relay ───────────────────────────────────────────────────────────────


class InOrder(dict[Any, None]):
    """A set in the order in which its items came: then the reference pairs the side that has waited longest, too."""

    def add(self, item: object) -> None:
        self[item] = None

    def discard(self, item: object) -> None:
        self.pop(item, None)

    remove = discard


class ReferenceConnection(Inbox):
    """A connection of the reference relay, and its transport."""

    def __init__(self, factory: object) -> None:
        super().__init__()
        self.disconnecting = False
        self._protocol = transit_server.TransitConnection()
        self._protocol.factory = factory
        self._protocol.makeConnection(self)

    def receive(self, data: bytes) -> None:
        if not self.closed:
            self._protocol.dataReceived(data)

    def lose(self) -> None:
        if not self.closed:
            self.closed = True
            self._protocol.connectionLost(None)

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.received += data

    def loseConnection(self) -> None:  # noqa: N802 - Twisted's name
        self.disconnecting = True

    def registerProducer(self, producer: object, streaming: object) -> None:  # noqa: N802 - the same
        """Do nothing: all is read at once."""

    def setTcpKeepAlive(self, enabled: object) -> None:  # noqa: N802 - the same
        """Do nothing."""


class ReferenceWorld:
    """The reference relay, 0.5.0: its own code runs in this process, with a clock that the script moves."""

    exact = True
    nonce = "reference"

    def __init__(self, blur: int = 0) -> None:
        self.elapsed = 0.0
        self.inboxes: dict[str, Inbox] = {}
        self._recorder = reference_usage.MemoryUsageRecorder()
        tracker = reference_usage.create_usage_tracker(blur or None, None, None)
        tracker.add_backend(self._recorder)
        transit = transit_server.Transit(tracker, self._wall)
        transit.pending_requests._requests = defaultdict(InOrder)
        self._factory = SimpleNamespace(transit=transit, log_requests=False)

    def _wall(self) -> float:
        return EPOCH + self.elapsed

    async def connect(self, name: str, address: str | None) -> None:
        self.open(name)

    def open(self, name: str) -> None:
        with self._clock():
            self.inboxes[name] = ReferenceConnection(self._factory)

    def send(self, name: str, data: bytes) -> None:
        with self._clock():
            self._connection(name).receive(data)

    def leave(self, name: str, how: str) -> None:
        with self._clock():
            self._connection(name).lose()

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds

    def drain(self) -> None:
        """Do nothing: it cannot."""

    async def settle(self) -> None:
        """Do nothing: each call has had its effect when it returns."""

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Do nothing: what does not hold now does not hold later."""

    def counts(self) -> None:
        """Return nothing: it counts otherwise."""

    def refusals(self) -> None:
        """Return nothing: it has none."""

    def usage(self) -> list[dict[str, Any]]:
        return [
            {
                "result": record["mood"],
                "started": record["started"] - EPOCH,
                "waiting": record["waiting_time"],
                "total": record["total_time"],
                "bytes": record["total_bytes"],
            }
            for record in self._recorder.events
        ]

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Let it tell the time of the script; then close what it has disconnected."""
        clock = SimpleNamespace(time=self._wall)
        with patch.object(transit_server, "time", clock), patch.object(reference_usage, "time", clock):
            yield
            while leaving := [connection for connection in self._open() if connection.disconnecting]:
                for connection in leaving:
                    connection.lose()

    def _open(self) -> list[ReferenceConnection]:
        return [self._connection(name) for name, inbox in self.inboxes.items() if not inbox.closed]

    def _connection(self, name: str) -> ReferenceConnection:
        connection = self.inboxes[name]
        assert isinstance(connection, ReferenceConnection)
        return connection


# ── a TCP port ────────────────────────────────────────────────────────────────────────────────────


SETTLING_ROUNDS: Final = 4
"""Bytes that go back and forth through a relay until it has done all that they follow: it reads what was sent, closes
the other side, and writes what it owes, each in a turn of its event loop."""


class Fence:
    """A pair of connections at a relay. What a relay reads from others is done when it has passed on their bytes."""

    def __init__(self, *streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._streams = streams

    @classmethod
    @asynccontextmanager
    async def at(cls, port: int) -> AsyncIterator[Fence]:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            for _, writer in streams:
                writer.write(b"please relay %b\n" % (b"f" * 64))
            for reader, _ in streams:
                assert await reader.readline() == OK
            yield cls(*streams)
        finally:
            for _, writer in streams:
                writer.close()

    async def settle(self) -> None:
        async with bounded("bytes through the relay"):
            for _ in range(SETTLING_ROUNDS):
                for (_, writer), (reader, _) in (self._streams, self._streams[::-1]):
                    writer.write(b".")
                    await reader.readexactly(1)


class SocketClient(asyncio.Protocol, Inbox):
    def __init__(self) -> None:
        Inbox.__init__(self)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class SocketClients:
    """Clients that have connections, by their names."""

    def __init__(self) -> None:
        self.inboxes: dict[str, Inbox] = {}

    def leave(self, name: str, how: str) -> None:
        """Close a connection, shut its writing or reset it."""
        transport = self.client(name).transport
        if how == "shut":
            transport.write_eof()
        elif how == "reset":
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()
        else:
            transport.close()

    def close(self) -> None:
        for name in self.inboxes:
            self.leave(name, "close")

    def client(self, name: str) -> SocketClient:
        client = self.inboxes[name]
        assert isinstance(client, SocketClient)
        return client


class SocketWorld(SocketClients):
    """A relay at a TCP port, in real time. It has the options of the script already.

    `read_usage` returns its usage records so far, with `started` as a time of the wall clock.
    """

    exact = False

    def __init__(
        self, port: int, fence: Fence, read_usage: Callable[[], list[dict[str, Any]]], blur: int = 0
    ) -> None:
        super().__init__()
        self._port = port
        self._fence = fence
        self._read_usage = read_usage
        self._began = time.time() - blur
        self.nonce = str(self._began)

    async def connect(self, name: str, address: str | None) -> None:
        _, client = await asyncio.get_running_loop().create_connection(SocketClient, "127.0.0.1", self._port)
        self.inboxes[name] = client

    def send(self, name: str, data: bytes) -> None:
        self.client(name).transport.write(data)

    def advance(self, seconds: float) -> None:
        """Do nothing: its clock is the system's."""

    def drain(self) -> None:
        """Do nothing: who starts the relay stops it."""

    async def settle(self) -> None:
        await self._fence.settle()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds():  # noqa: ASYNC110 - nothing tells of what another process logs
                await asyncio.sleep(0.002)

    def counts(self) -> None:
        """Return nothing: this needs more than a TCP port."""

    def refusals(self) -> None:
        """Return nothing, as `counts`."""

    def usage(self) -> list[dict[str, Any]]:
        """Return the records of connections of this world: others may come later than their script ended."""
        return [record for record in self._read_usage() if record["started"] >= self._began]


@asynccontextmanager
async def reference_relay(folder: Path, *flags: str) -> AsyncIterator[tuple[int, Callable[[], list[dict[str, Any]]]]]:
    """Run the reference relay, 0.5.0, in a process of its own; yield its port, and what reads its usage records."""
    main = "twisted.application.twist._twist:Twist.main"
    with held_port() as port:
        interface = f"--port=tcp:{port}:interface=127.0.0.1"
        arguments = ("twist", "--log-format=text", "transitrelay", "--log-fd=1", interface, *flags)
        async with await Child.forked(main, *arguments, cwd=folder) as process:
            await process.says(f" starting on {port}\n")
            yield port, lambda: _logged_usage(process)
            assert "Traceback" not in process.said["stdout"], process.said["stdout"]


def _logged_usage(process: Child) -> list[dict[str, Any]]:
    records = []
    for line in process.said["stdout"].split("\n"):
        if line.startswith('{"started"'):
            with contextlib.suppress(json.JSONDecodeError):  # half a line so far
                record = json.loads(line)
                record = {name.removesuffix("_time"): value for name, value in record.items()}
                records.append({**record, "result": record["mood"], "bytes": record["total_bytes"]})
    return records
