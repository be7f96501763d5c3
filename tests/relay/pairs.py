"""Pairs of a live relay: the ends of their clients, of every kind, and what passes on their bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from restante.relay.core.limits import UNLIMITED
from support.certificates import Certificate
from support.loops import until
from support.mailbox.raw_socket import BINARY, CLOSE, RawSocket, frame, handshake
from support.relay.live import LiveRelay, request

KINDS = ("tcp", "unix", "tls", "websocket", "wss")

MESSAGE_BYTES = 300_000
"""Largest message to a WebSocket."""


class End:
    """The end of a connection that a client has, whatever its kind."""

    def __init__(self, raw: RawSocket, kind: str) -> None:
        self.raw = raw
        self.is_websocket = kind in {"websocket", "wss"}
        self._read = bytearray()
        self.close_code: int | None = None

    @property
    def socket(self) -> socket.socket:
        return cast("socket.socket", self.raw.writer.get_extra_info("socket"))

    def write(self, data: bytes) -> None:
        if self.is_websocket:
            self.raw.write(
                *(frame(BINARY, data[at : at + MESSAGE_BYTES]) for at in range(0, len(data), MESSAGE_BYTES))
            )
        else:
            self.raw.write(data)

    async def send(self, data: bytes) -> None:
        self.write(data)
        await self.raw.writer.drain()

    async def read(self, size: int) -> bytes:
        """Read so many bytes, or fewer if there are no more."""
        while len(self._read) < size and (piece := await self._piece()):
            self._read += piece
        data, self._read = bytes(self._read[:size]), self._read[size:]
        return data

    async def _piece(self) -> bytes:
        if not self.is_websocket:
            return await self.raw.reader.read(1 << 16)
        if self.close_code is not None:
            return b""
        try:
            opcode, payload = await self.raw.read()
        except asyncio.IncompleteReadError:
            return b""
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2])
            return b""
        assert opcode == BINARY
        return payload

    async def rest(self) -> bytes:
        """Read what comes until the end."""
        return await self.read(1 << 40)

    def end(self) -> None:
        """Say that nothing follows."""
        if self.is_websocket:
            self.raw.bid_farewell()
        elif self.raw.writer.can_write_eof():
            self.raw.writer.write_eof()
        else:
            self.raw.writer.close()

    def reset(self) -> None:
        self.raw.cut()


class Running:
    """A pair, and the ends of its clients."""

    def __init__(self, world: World, first: End, second: End) -> None:
        self.world = world
        self.first, self.second = first, second
        self._record, self.pair = list(world.live.server.running.items())[-1]

    @property
    def counted(self) -> int:
        return self._record.bytes

    @property
    def has_ended(self) -> bool:
        return self._record.ended

    async def ended(self) -> None:
        """Wait until both sides are closed. Nothing of the pair is left."""
        await until("the end of a pair", lambda: self.has_ended)
        assert self.pair not in self.world.pairs.running


class World:
    """A relay, and where its clients connect."""

    def __init__(self, live: LiveRelay, certificate: Certificate, plain_port: int, path: Path) -> None:
        self.live = live
        self.pairs = live.server.pairs
        self._certificate, self._plain_port, self._path = certificate, plain_port, path
        self.tls_limit = 1 << 16
        """Bytes of a client of TLS from which on it does not read the socket. uvloop drops what the client has not
        read then when TLS ends (sslproto.pyx: _do_flush)."""

    async def connect(self, kind: str, receive_buffer: int = 1 << 16) -> End:
        if kind == "unix":
            raw = RawSocket(*await asyncio.open_unix_connection(self._path))
        else:
            tls = self._certificate.client if kind in {"tls", "wss"} else None
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)  # else it grows to megabytes
            connection.setblocking(False)
            port = self.live.port if tls else self._plain_port
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            name = "127.0.0.1" if tls else None
            limit = self.tls_limit if tls else receive_buffer
            raw = RawSocket(
                *await asyncio.open_connection(sock=connection, ssl=tls, server_hostname=name, limit=limit)
            )
        self.live.clients.append(raw)
        if kind in {"websocket", "wss"}:
            raw.write(handshake("/"))
            assert (await raw.head()).startswith(b"HTTP/1.1 101 ")
        return End(raw, kind)

    async def pair(
        self, first: str = "tcp", second: str = "tcp", leftover: bytes = b"", *, receive_buffer: int = 1 << 16
    ) -> Running:
        """Begin a pair. Both ends have read `ok`. `receive_buffer`: that of the second end, if it is a TCP socket."""
        ends = [await self.connect(first)]
        ends[0].write(request())
        await until("the first waits", lambda: self.live.relay.waiting)
        ends.append(await self.connect(second, receive_buffer))
        ends[1].write(request() + leftover)
        for end in ends:
            assert await end.read(3) == b"ok\n"
        return Running(self, *ends)


@asynccontextmanager
async def opened(folder: Path, **limits: float) -> AsyncIterator[World]:
    certificate, path = Certificate(folder), folder / "socket"
    live = LiveRelay(folder / "data", limits=replace(UNLIMITED, **limits), certificate=certificate)
    async with live.serving():
        await live.listen(f"unix:{path}")
        yield World(live, certificate, await live.listen("plain:127.0.0.1:0"), path)
