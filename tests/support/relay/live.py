"""A relay in the test's own loop, with a clock of the test's, and clients that speak by lines and by WebSockets."""

from __future__ import annotations

import asyncio
import os
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path
from ssl import SSLContext
from termios import TIOCOUTQ
from typing import Any, Final, Self

from restante.common.certificate import ServerCertificate
from restante.common.disk_probe import DiskSpace
from restante.common.listening import parse_listen_address
from restante.common.net import parse_networks
from restante.common.system import system_secret
from restante.relay.core.limits import UNLIMITED, Limits
from restante.relay.core.relay import Pair, Relay
from restante.relay.protocol.refusals import TOO_MANY_PENDING, TOO_MANY_WAITING_FROM_ADDRESS
from restante.relay.server.recording import Recording
from restante.relay.server.server import Admission, Server
from restante.relay.store.sqlite import Store
from support.certificates import Certificate
from support.loops import until
from support.mailbox.givens import FakeClock
from support.mailbox.raw_socket import BINARY, CLOSE, PING, RawSocket, frame, handshake
from support.proc import descriptors
from support.proxy_headers import line
from support.relay.worlds import OurWorld, SocketClient, SocketClients

HERE: Final = ("127.0.0.0/8",)
"""The proxies that a relay of a test trusts. Their own connections are not counted for an address."""

DESCRIPTORS: Final = 1 << 20
"""Files that a relay of a test may have open: more than any test needs."""

SPARE_DESCRIPTORS: Final = 1
"""Descriptors that libuv keeps from the first listener on, to refuse connections with when there are no more."""

SETTLING_TURNS: Final = 12
"""Turns of the loop, after the kernel has the bytes, in which a relay reads them and does all that they cause: it
takes sockets out of transports, passes bytes on, and closes sockets, each in a turn of its own."""


class LiveRelay:
    """The relay. It can be stopped, and started again on the same data. Its clock stands until it is moved."""

    def __init__(
        self,
        data: Path,
        *,
        limits: Limits = UNLIMITED,
        blur: int = 0,
        trusted: Sequence[str] = HERE,
        certificate: Certificate | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.clients: list[RawSocket] = []
        self._data, self._limits, self._blur = data, limits, blur
        self._trusted, self._certificate = trusted, certificate

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        before = descriptors(os.getpid()) + SPARE_DESCRIPTORS
        await self.start()
        try:
            yield self
        finally:
            await self.stop()
        await until("the files of the test are closed", lambda: descriptors(os.getpid()) <= before)

    async def start(self) -> None:
        self.store = Store.open(self._data)
        self.relay = Relay(self._limits, blur=self._blur)
        admission = Admission(system_secret, self.relay, parse_networks(self._trusted, "--trust-proxy"))
        self.server = Server(self.relay, self.clock, admission, descriptors=DESCRIPTORS)
        if self._certificate is not None:
            self.server.certificate = ServerCertificate(self._certificate.path, self._certificate.path)
        self.recording = Recording(self.server, self.store, None, DiskSpace(self._data))
        self.port = await self.listen("127.0.0.1:0")

    async def listen(self, address: str) -> int:
        """Listen at one more address, and return its port. A Unix socket has none."""
        [bound] = await self.server.listeners.listen(parse_listen_address(address, "--listen"))
        port = bound.rpartition(":")[2]
        return int(port) if port.isdigit() else 0

    async def stop(self) -> None:
        """Let everybody go, and drain: nothing is left of the connections."""
        for client in self.clients:
            client.cut()
        await self.server.drain(0)
        await until("nobody is here", self.is_empty)
        await self.recording.close()
        await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def is_empty(self) -> bool:
        server, relay = self.server, self.relay
        pipes = server.pairs.pipes
        held_resources = (
            server.reading_bytes,
            len(server.memory_holders),
            len(server.closing),
            pipes.pipes - sum(map(len, pipes.free.values())),
        )
        quotas = server.admission.addresses.quotas.values()
        return (relay.new, relay.waiting, relay.waiting_tokens, relay.pairs, *held_resources) == (0,) * 8 and not (
            server.running or server.pairs.running or any(quota.live for quota in quotas)
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.server.tick()

    def relay_pairs(self) -> list[Pair]:
        """Return the pairs that run, the earliest first."""
        return list(self.server.running)

    @property
    def results(self) -> list[tuple[str, int]]:
        """The result and the bytes of each usage record that is not saved yet."""
        return [(record.result, record.total_bytes) for record in self.relay.records]

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.relay.refusal_counts.since_start)

    async def connect(self, port: int = 0, host: str = "127.0.0.1", ssl: SSLContext | None = None) -> RawSocket:
        self.clients.append(await RawSocket.connect(port or self.port, host, ssl))
        return self.clients[-1]

    async def dial(self, port: int = 0, ssl: SSLContext | None = None, **headers: str) -> RawSocket:
        """Connect a WebSocket."""
        socket = await self.connect(port, ssl=ssl)
        socket.write(handshake("/", **headers))
        socket.status = (await socket.head()).decode().partition("\r\n")[0]
        assert socket.status == "HTTP/1.1 101 Switching Protocols"
        return socket

    async def ask(self, token: str = "t", side: str = "", **where: Any) -> RawSocket:
        """Connect by TCP, and send the request; the letters are repeated."""
        socket = await self.connect(**where)
        socket.write(request(token, side))
        return socket

    async def pair(self, token: str = "t", port: int = 0) -> tuple[RawSocket, RawSocket]:
        """Connect two by TCP. Both have read `ok`."""
        sockets = await self.ask(token, port=port), await self.ask(token, port=port)
        for socket in sockets:
            assert await socket.reader.readexactly(3) == b"ok\n"
        return sockets


def request(token: str = "t", side: str = "", end: str = "\n") -> bytes:
    """Return a request whose letters are repeated, without a side in the first form."""
    return f"please relay {token * 64}{f' for side {side * 16}' if side else ''}{end}".encode()


# ── conversations ────────────────────────────────────────────────────────────────────────────────


class WebSocketClient(SocketClient):
    """A client that sends each piece as a binary message, and takes the messages that come as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.upgraded = asyncio.get_running_loop().create_future()
        self._unread = bytearray()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self.upgraded.done():
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101 "), head
            self.upgraded.set_result(None)
            self._unread = rest
        while (one := unframe(self._unread)) is not None:
            opcode, payload, size = one
            del self._unread[:size]
            if opcode == CLOSE:
                self.closed = True
                self.transport.write(frame(CLOSE, payload[:2]))
            elif opcode != PING and not self.closed:
                assert opcode == BINARY, opcode
                self.received += payload

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.upgraded.done():
            self.upgraded.set_result(None)


def unframe(data: bytes | bytearray) -> tuple[int, bytes, int] | None:
    """Return the opcode and payload of the frame that these bytes begin with, and its size. None: it is longer."""
    if len(data) < 2:
        return None
    assert data[0] & 0xF0 == 0x80
    assert data[1] < 0x80
    more = {126: 2, 127: 8}.get(data[1], 0)
    start = 2 + more
    if len(data) < start:
        return None
    size = int.from_bytes(data[2:start]) if more else data[1]
    if len(data) < start + size:
        return None
    return data[0] & 0x0F, bytes(data[start : start + size]), start + size


class LiveWorld(OurWorld, SocketClients):
    """A live relay, and clients by TCP, or by WebSockets if they are named."""

    nonce = "live"

    def __init__(self, live: LiveRelay, named_port: int, websockets: frozenset[str]) -> None:
        super().__init__()
        self.relay = live.relay
        self._live, self._named_port, self._websockets = live, named_port, websockets

    async def connect(self, name: str, address: str | None) -> None:
        """Connect; if it comes from an address, by a proxy that names this."""
        loop = asyncio.get_running_loop()
        factory = WebSocketClient if name in self._websockets else SocketClient
        port = self._live.port if address is None else self._named_port
        _, client = await loop.create_connection(factory, "127.0.0.1", port)
        self.inboxes[name] = client
        if address is not None:
            client.transport.write(line(address))
        if isinstance(client, WebSocketClient):
            client.transport.write(handshake("/"))
            await client.upgraded

    def send(self, name: str, data: bytes) -> None:
        client = self.client(name)
        client.transport.write(frame(BINARY, data) if name in self._websockets else data)

    def advance(self, seconds: float) -> None:
        self._live.pass_time(seconds)

    def drain(self) -> None:
        self.draining = asyncio.create_task(self._live.server.drain(600))

    async def settle(self) -> None:
        """Wait until the kernel has passed on what was sent, and let the relay's turns pass."""
        clients = [self.client(name) for name in self.inboxes]
        await until("all is sent", lambda: not any(unsent(client.transport) for client in clients))
        for _ in range(SETTLING_TURNS):
            await asyncio.sleep(0)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        await until(what, holds)

    def refusals(self) -> dict[str, float]:
        """Return them by limit: the server refuses before the core who has as many connections without a request."""
        limits: Counter[str] = Counter()
        for reason, number in self._live.refusals.items():
            limits[TOO_MANY_WAITING_FROM_ADDRESS.reason if reason == TOO_MANY_PENDING.reason else reason] += number
        return dict(limits)


def unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that the other end's kernel does not have yet (man 7 tcp, SIOCOUTQ)."""
    if transport.is_closing():
        return 0
    [queued] = struct.unpack("i", ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)))
    return int(queued) + transport.get_write_buffer_size()
