"""The client's end of a WebSocket, as cheap as Python can be: one handshake, masked frames out, frames in.

Written out by hand because a load generator is the ceiling of what it measures: this costs two thirds of
what picows' own client does, and shares no code with the server under test.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import time
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

HOST = "127.0.0.1"
_KEY = base64.b64encode(b"restante's bench")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_ACCEPT = base64.b64encode(hashlib.sha1(_KEY + _GUID).digest())
_MASK = b"\x5a\xc3\x17\x8e"  # any but zero, which a server could skip
_TEXT, _CLOSE, PING, _PONG = 0x81, 0x88, 0x89, 0x8A


@functools.cache
def _pad(size: int) -> int:
    return int.from_bytes((_MASK * (size // 4 + 1))[:size], "little")


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """One masked frame."""
    size = len(payload)
    masked = (int.from_bytes(payload, "little") ^ _pad(size)).to_bytes(size, "little")
    if size < 126:
        return bytes((opcode, 0x80 | size)) + _MASK + masked
    if size < 1 << 16:
        return bytes((opcode, 0x80 | 126)) + size.to_bytes(2, "big") + _MASK + masked
    return bytes((opcode, 0x80 | 127)) + size.to_bytes(8, "big") + _MASK + masked


@functools.cache
def _handshake(port: int) -> bytes:
    return (
        b"GET /v1 HTTP/1.1\r\nHost: %b:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ) % (HOST.encode(), port, _KEY)


class BadWireError(Exception):
    """The server said something that is not the WebSocket conversation expected of it."""


class Wire(asyncio.Protocol):
    """A connection: `received` for every text frame, `failed` once if anything else comes or it is cut."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls
        self.over = False
        self.transport: asyncio.Transport | None = None
        self._upgraded = False
        self._rest = b""

    def received(self, payload: bytes, now: float) -> None:
        """Handle one text frame, read at `now`."""
        raise NotImplementedError

    def ponged(self, payload: bytes) -> None:
        """Ignore the answer to a ping frame; none is requested here."""
        raise BadWireError(f"a pong that nobody asked for: {payload!r}")

    def failed(self, why: str) -> None:
        """Hear that the connection is of no more use."""
        raise NotImplementedError

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, HOST, self.port, ssl=self.tls)
        except OSError as error:
            self.fail(f"connect: {error}")

    def write(self, frames: bytes) -> None:
        if self.transport is not None and not self.over:
            self.transport.write(frames)

    def end(self) -> None:
        """Leave as the Python client does: TCP is closed, without a close frame."""
        self.over = True
        if self.transport is not None:
            self.transport.close()

    def fail(self, why: str) -> None:
        if not self.over:
            self.end()
            self.failed(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(_handshake(self.port))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc or 'end of file'}")

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()  # the loop's clock ticks in milliseconds
        self._rest += data
        try:
            if not self._upgraded and not self._take_handshake():
                return
            for payload in self._frames():
                self.received(payload, now)
                if self.over:
                    return
        except BadWireError as error:
            self.fail(str(error))

    def _take_handshake(self) -> bool:
        head, end, rest = self._rest.partition(b"\r\n\r\n")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 101 ") or _ACCEPT not in head:
            raise BadWireError(f"handshake: {head[:200]!r}")
        self._upgraded = True
        self._rest = rest
        return True

    def _frames(self) -> Iterator[bytes]:
        """Cut whole text frames off what has come; answer pings."""
        data, at, have = self._rest, 0, len(self._rest)
        while have - at >= 2:
            size, body = data[at + 1], at + 2
            if size == 126:
                body += 2
                size = int.from_bytes(data[at + 2 : body], "big")
            elif size == 127:
                body += 8
                size = int.from_bytes(data[at + 2 : body], "big")
            if have < body + size:
                break
            opcode, payload, at = data[at], data[body : body + size], body + size
            if opcode == _TEXT:
                yield payload
            else:
                self._control(opcode, payload)
        self._rest = data[at:]

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.write(frame(payload, _PONG))
        elif opcode == _PONG:
            self.ponged(payload)
        elif opcode == _CLOSE:
            code = int.from_bytes(payload[:2], "big")
            raise BadWireError(f"closed by the server: {code} {payload[2:].decode(errors='replace')}")
        else:
            raise BadWireError(f"frame with opcode byte {opcode:#x}")
