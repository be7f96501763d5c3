"""Proxies of a test, which note where they were asked to connect to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from client.liar import listening

SOCKS_NO_LOGIN, SOCKS_LOGIN = b"\x05\x00", b"\x05\x02"


class Proxy:
    """An HTTP or SOCKS5 proxy."""

    def __init__(self, scheme: str, login: bytes | None, refuses: bool) -> None:
        self._scheme = scheme
        self.port = 0
        self.targets: list[tuple[str, int]] = []
        self.heads: list[bytes] = []
        """The requests of HTTP."""
        self.logins: list[bytes] = []
        """The logins of SOCKS5."""
        self.forwarded = 0
        """Bytes, both ways."""
        self._login, self._refuses = login, refuses

    def url(self, login: str = "") -> str:
        return f"{self._scheme}://{login}127.0.0.1:{self.port}"

    async def serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if self._refuses:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        method, target, _ = head.split(b" ", 2)
        assert method == b"CONNECT"
        host, _, port = target.decode().rpartition(":")
        await self._forward(reader, writer, host, int(port), b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def serve_socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """RFC 1928, and RFC 1929 for logins."""
        _, count = await reader.readexactly(2)
        await reader.readexactly(count)
        writer.write(SOCKS_NO_LOGIN if self._login is None else SOCKS_LOGIN)
        if self._login is not None:
            user = await reader.readexactly((await reader.readexactly(2))[1])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            self.logins.append(user + b":" + password)
            writer.write(b"\x01\x00" if self.logins[-1] == self._login else b"\x01\x01")
        _, command, _, kind = await reader.readexactly(4)
        assert command == 1
        if kind == 1:
            host = ".".join(str(byte) for byte in await reader.readexactly(4))
        else:
            assert kind == 3
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2))
        if self._refuses:
            writer.write(b"\x05\x02\x00\x01" + bytes(6))
            return
        await self._forward(reader, writer, host, port, b"\x05\x00\x00\x01" + bytes(6))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, agreed: bytes
    ) -> None:
        self.targets.append((host, port))
        beyond_reader, beyond_writer = await asyncio.open_connection(host, port)
        writer.write(agreed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, beyond_writer))
                tasks.create_task(self._copy(beyond_reader, writer))
        finally:
            beyond_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.forwarded += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxying(scheme: str, *, login: bytes | None = None, refuses: bool = False) -> AsyncIterator[Proxy]:
    proxy = Proxy(scheme, login, refuses)
    async with listening(proxy.serve_http if scheme == "http" else proxy.serve_socks) as proxy.port:
        yield proxy
