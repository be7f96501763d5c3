"""Both ends of a connection with another implementation: it, in a process of its own, and our core on a socket.

The process says a line of JSON for what happens to it, and does what a line of JSON on its input says.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from restante.waku.devp2p.hello import Capability, Hello
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Devp2p, SessionEvent
from restante.waku.envelope.keys import Key
from support.dice import Seeded

KEY = Key(b"\5" * 32)
HELLO = Hello("restante", (Capability("waku", 0), Capability("waku", 1)), 30303, KEY.public)


class Foreign:
    """The other implementation."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._input, self._output = process.stdin, process.stdout

    @classmethod
    @asynccontextmanager
    async def run(cls, *command: str | Path) -> AsyncIterator[Foreign]:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 22
        )
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def said(self) -> dict[str, Any]:
        line = await self._output.readline()
        assert line, "the other implementation has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def do(self, **order: Any) -> None:
        self._input.write(json.dumps(order).encode() + b"\n")


class Ours:
    """Our core on a socket. Its clock stands still unless a test moves it."""

    def __init__(self, rlpx: Rlpx, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.core = Devp2p(rlpx, hello, 0.0)
        self.now = 0.0
        self._reader, self._writer = reader, writer
        self._events: deque[SessionEvent] = deque()
        self.flush()

    @classmethod
    async def dial(cls, port: int, public: bytes, hello: Hello) -> Ours:
        streams = await asyncio.open_connection("127.0.0.1", port)
        return cls(Rlpx.initiator(KEY, public, Seeded(1)), hello, *streams)

    @classmethod
    @asynccontextmanager
    async def listen(cls, hello: Hello) -> AsyncIterator[tuple[int, asyncio.Future[Ours]]]:
        """The port, and who will have been dialled there."""
        dialled: asyncio.Future[Ours] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled.set_result(cls(Rlpx.recipient(KEY, Seeded(2)), hello, reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1], dialled
        finally:
            server.close()

    def flush(self) -> None:
        self._writer.write(self.core.data_to_send())

    def send(self, code: int, payload: bytes) -> None:
        self.core.send(code, payload)
        self.flush()

    def send_whole(self, code: int, head: bytes, body: bytes) -> None:
        self.core.send_whole(code, head, memoryview(body))
        self.flush()

    async def heard(self) -> SessionEvent:
        while not self._events:
            await self.read()
        return self._events.popleft()

    async def read(self) -> None:
        """Read what has arrived, and answer it."""
        data = await self._reader.read(1 << 16)
        assert data, "the other implementation has closed the connection"
        self._events += self.core.receive_data(data, self.now)
        self.flush()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read what arrives while the other implementation is asked for something else."""

        async def forever() -> None:
            while True:
                await self.read()

        task = asyncio.create_task(forever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def hang_up(self) -> None:
        """Close when all is written."""
        self._writer.close()

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()
