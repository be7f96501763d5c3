"""A WebSocket client that does as it is told, wrong bytes too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from dataclasses import dataclass
from socket import SO_LINGER, SOL_SOCKET
from ssl import SSLContext
from typing import Any

from support.bounds import BOUND

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bool = True) -> bytes:
    """Build a frame as a client sends it (RFC 6455 section 5.2); the mask is four zeros."""
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    masked = 0x80 if mask else 0
    if len(payload) < 126:
        header = bytes((first, masked | len(payload)))
    elif len(payload) < 1 << 16:
        header = struct.pack(">BBH", first, masked | 126, len(payload))
    else:
        header = struct.pack(">BBQ", first, masked | 127, len(payload))
    return header + (bytes(4) if mask else b"") + payload


def handshake(path: str = "/v1", host: str = "127.0.0.1", **headers: str) -> bytes:
    """Build the request of a client (RFC 6455 section 4.1). Keywords are headers, `_` a hyphen; "" leaves one out."""
    named = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{name}: {value}\r\n" for name, value in named.items() if value]
    return f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


@dataclass
class RawSocket:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: str = ""

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1", ssl: SSLContext | None = None) -> RawSocket:
        return cls(*await asyncio.open_connection(host, port, ssl=ssl))

    @classmethod
    async def dial(cls, port: int, path: str = "/v1", host: str = "127.0.0.1", **headers: str) -> RawSocket:
        """Connect and shake hands. A server that goes meanwhile leaves no connection open."""
        self = await cls.connect(port, host)
        try:
            self.write(handshake(path, host, **headers))
            self.status = (await self.head()).decode().partition("\r\n")[0]
        except BaseException:
            self.writer.transport.abort()
            raise
        return self

    async def head(self) -> bytes:
        """Read the first line and the headers of an answer."""
        async with asyncio.timeout(BOUND):
            return await self.reader.readuntil(b"\r\n\r\n")

    def write(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def say(self, **message: Any) -> None:
        self.write(frame(TEXT, json.dumps(message).encode()))

    async def read(self, bound: float | None = BOUND) -> tuple[int, bytes]:
        """Read one frame: its opcode and payload. Servers do not fragment and do not mask."""
        async with asyncio.timeout(bound):
            first, size = await self.reader.readexactly(2)
        assert first & 0xF0 == 0x80
        assert not size & 0x80
        if size > 125:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def hear(self) -> dict[str, Any]:
        while (received := await self.read())[0] == PING:
            self.write(frame(PONG, received[1]))
        opcode, payload = received
        assert opcode in {TEXT, BINARY}, (opcode, payload)
        return dict(json.loads(payload))

    async def is_served(self, ping: object = 1) -> None:
        """Say a ping command, and take its answers; nothing else may come."""
        self.say(type="ping", ping=ping)
        assert [(await self.hear())["type"] for _ in range(2)] == ["ack", "pong"]

    async def closed(self) -> int:
        opcode, payload = await self.read()
        assert opcode == CLOSE, (opcode, payload)
        return int.from_bytes(payload[:2])

    async def last_words(self) -> tuple[list[dict[str, Any]], int | None]:
        """Read until the end, also a reset, and answer a close: all it was told, and the first close code, if any."""
        messages: list[dict[str, Any]] = []
        code = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                opcode, payload = await self.read()
                if opcode in {TEXT, BINARY}:
                    assert code is None, "something was said after the close"
                    messages.append(json.loads(payload))
                elif opcode == CLOSE and code is None:
                    code = int.from_bytes(payload[:2])
                    self.bid_farewell(code)
        self.cut()
        return messages, code

    async def ended(self) -> bool:
        async with asyncio.timeout(BOUND):
            return await self.reader.read(1) == b""

    async def rest(self) -> bytes:
        read = bytearray()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(BOUND):
                while piece := await self.reader.read(1 << 16):
                    read += piece
        self.cut()
        return bytes(read)

    def bid_farewell(self, code: int = 1000) -> None:
        self.write(frame(CLOSE, code.to_bytes(2, "big")))

    async def leave(self) -> None:
        """Close as RFC 6455 section 7 has it: say so, take what is still on its way, hear it answered."""
        self.bid_farewell()
        while (await self.read())[0] != CLOSE:
            pass
        await self.hang_up()

    def cut(self) -> None:
        """Vanish as a process does that is killed with data unread: by a reset, and what was not sent yet is lost."""
        if not self.writer.is_closing():
            self.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):  # who closes on something unread sends a reset
            await self.writer.wait_closed()
