"""Pairs of live sockets: both ends of each side, of every kind."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from picows import WSFrame, WSListener, WSTransport, WSUpgradeRequest

from restante.common.read_budget import ReadBudget
from restante.common.tls_transport import TlsTransport
from restante.common.websocket_request import PicowsTransport, websocket_protocol
from restante.relay.core.pacing import Rates
from restante.relay.server.pair import StreamPair, StreamPairs
from restante.relay.server.streams import PlainSocket, Stream, TlsStream, WebSocketReader, WebSocketStream
from support.bounds import bounded
from support.certificates import Certificate
from support.loops import until
from support.mailbox.raw_socket import BINARY, CLOSE, RawSocket, frame, handshake

KINDS = ("tcp", "unix", "tls", "websocket", "wss")

MESSAGE_BYTES = 300_000
"""Largest message to a WebSocket."""

Make = Callable[[], Stream]
"""What makes the stream of a side, in the call in which the pair begins."""


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


class _Listener(WSListener):
    def __init__(self, accepted: asyncio.Queue[Make]) -> None:
        self._accepted = accepted
        self._stream: WebSocketStream | None = None
        self._transport: WSTransport | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._accepted.put_nowait(self._make)

    def _make(self) -> WebSocketStream:
        assert self._transport is not None
        underlying = cast("PicowsTransport", self._transport.underlying_transport).transport
        self._stream = WebSocketStream(self._transport, underlying)
        return self._stream

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        assert self._stream is not None
        self._stream.frame_received(frame)

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        if self._stream is not None:
            self._stream.disconnected()

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause_writing()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.resume_writing()


class _Accepting(asyncio.BufferedProtocol):
    """Makes the stream of a side when the connection is complete."""

    def __init__(self, world: World, kind: str) -> None:
        self._world, self._kind = world, kind
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._kind in {"tls", "wss"}:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._world.certificate.path)
            self._transport = TlsTransport(cast("asyncio.Transport", transport), context, ReadBudget(), self)
            transport.set_protocol(self._transport)
        elif self._kind == "websocket":
            self._transport.set_protocol(self._websocket())
        else:
            self._world.accepted.put_nowait(lambda: PlainSocket.taken_from(self._transport))

    def _websocket(self) -> asyncio.BufferedProtocol:
        def upgrade(_request: WSUpgradeRequest) -> WSListener:
            return _Listener(self._world.accepted)

        protocol = websocket_protocol(upgrade, handshake_timeout=300, max_frame_size=1 << 20, read_buffer_size=2048)
        protocol.connection_made(PicowsTransport(self._transport))
        return WebSocketReader(protocol)

    def handshake_sent(self, records: bytes) -> None:
        pass

    def handshake_done(self) -> asyncio.BufferedProtocol:
        if self._kind == "wss":
            return _Made(self._websocket())
        return _Waiting(self._world)

    def handshake_failed(self) -> None:
        raise AssertionError


class _Waiting(asyncio.BufferedProtocol):
    """A TLS connection that is not read yet."""

    def __init__(self, world: World) -> None:
        self._world = world

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = cast("TlsTransport", transport)
        tls.pause_reading()
        self._world.accepted.put_nowait(lambda: TlsStream(tls))


class _Made(asyncio.BufferedProtocol):
    """The same protocol, which has its transport already."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def get_buffer(self, sizehint: int) -> Any:
        return self._protocol.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class Running:
    """A pair, and the ends of its clients."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.first: End
        self.second: End
        self.pair: StreamPair
        self.counted = 0
        self.max_bytes = 1 << 60
        self.ends = 0

    def count(self, size: int) -> bool:
        self.counted += size
        return self.counted <= self.max_bytes

    def note_end(self) -> None:
        self.ends += 1

    async def ended(self) -> None:
        """Wait until both sides are closed. Nothing of the pair is left."""
        await until("the end of a pair", lambda: self.ends)
        pairs = self.world.pairs
        assert self.ends == 1
        assert self.pair not in pairs.running


class World:
    """What the relay has, and where its clients connect."""

    def __init__(self, folder: Path, rates: Rates) -> None:
        self._folder = folder
        self.pairs = StreamPairs(rates)
        self.accepted: asyncio.Queue[Make] = asyncio.Queue()
        self._ends: list[End] = []
        self._servers: list[asyncio.Server] = []
        self._numbers = iter(range(1 << 20))
        self._certificate: Certificate | None = None
        self.tls_limit = 1 << 16
        """Bytes of a client of TLS from which on it does not read the socket. uvloop drops what the client has not
        read then when TLS ends (sslproto.pyx: _do_flush)."""

    @property
    def certificate(self) -> Certificate:
        if self._certificate is None:
            self._certificate = Certificate(self._folder)
        return self._certificate

    async def side(self, kind: str, *, receive_buffer: int = 1 << 16) -> tuple[End, Make]:
        """Connect a client. Return its end, and what makes the stream of the other."""
        loop = asyncio.get_running_loop()
        path = str(self._folder / f"{next(self._numbers)}")
        if kind == "unix":
            server = await loop.create_unix_server(lambda: _Accepting(self, kind), path)
            raw = RawSocket(*await asyncio.open_unix_connection(path))
        else:
            server = await loop.create_server(lambda: _Accepting(self, kind), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)  # else it grows to megabytes
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", port))
            tls = self._client_tls() if kind in {"tls", "wss"} else None
            name = "127.0.0.1" if tls else None
            limit = self.tls_limit if tls else receive_buffer
            raw = RawSocket(
                *await asyncio.open_connection(sock=connection, ssl=tls, server_hostname=name, limit=limit)
            )
        self._servers.append(server)
        if kind in {"websocket", "wss"}:
            raw.write(handshake("/"))
            assert (await raw.head()).startswith(b"HTTP/1.1 101 ")
        async with bounded("a side"):
            make = await self.accepted.get()
        end = End(raw, kind)
        self._ends.append(end)
        return end, make

    def _client_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate.path))

    async def pair(
        self,
        first: str = "tcp",
        second: str = "tcp",
        leftover: bytes = b"",
        *,
        receive_buffer: int = 1 << 16,
        addresses: tuple[str, ...] = (),
    ) -> Running:
        """Begin a pair. Both ends have read `ok`. `receive_buffer`: that of the second end, if it is a TCP socket."""
        running = Running(self)
        running.first, make_first = await self.side(first)
        running.second, make_second = await self.side(second, receive_buffer=receive_buffer)
        running.pair = self.pairs.begin(
            make_first(), make_second(), leftover, addresses, running.count, running.note_end
        )
        for end in (running.first, running.second):
            assert await end.read(3) == b"ok\n"
        return running

    async def close(self) -> None:
        self.pairs.close()
        for end in self._ends:
            end.reset()
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(folder: Path, rates: Rates = Rates()) -> AsyncIterator[World]:  # noqa: B008 - it is immutable
    world = World(folder, rates)
    try:
        yield world
    finally:
        await world.close()
