"""A WebSocket client that does as it is told, wrong bytes too."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Any

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


@dataclass
class RawSocket:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: str = ""

    @classmethod
    async def dial(cls, port: int, path: str = "/v1", host: str = "127.0.0.1") -> RawSocket:
        reader, writer = await asyncio.open_connection(host, port)
        self = cls(reader, writer)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        self.status = head.decode().partition("\r\n")[0]
        return self

    def write(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def say(self, **message: Any) -> None:
        self.write(frame(TEXT, json.dumps(message).encode()))

    async def read(self) -> tuple[int, bytes]:
        """Read one frame: its opcode and payload. Servers do not fragment and do not mask."""
        first, size = await asyncio.wait_for(self.reader.readexactly(2), 5)
        assert first & 0xF0 == 0x80
        assert not size & 0x80
        if size == 126:
            (size,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def hear(self) -> dict[str, Any]:
        opcode, payload = await self.read()
        assert opcode in {TEXT, BINARY}, (opcode, payload)
        heard: dict[str, Any] = json.loads(payload)
        return heard

    async def closed(self) -> int:
        """Read the close frame; give its code."""
        opcode, payload = await self.read()
        assert opcode == CLOSE, (opcode, payload)
        code: int = struct.unpack(">H", payload[:2])[0]
        return code

    async def ended(self) -> bool:
        """Tell whether nothing more comes, and the connection ends."""
        return await asyncio.wait_for(self.reader.read(1), 5) == b""

    async def hang_up(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
