"""Our RLPx and devp2p against those of @ethereumjs/devp2p, over a socket, in both roles.

It knows one byte of a message id and no more, so codes from 112 on (ids from 80 on) are only read from it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from restante.waku.devp2p.hello import Capability, Hello, Reason, Shared
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionEvent
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import Key
from support.bounds import bounded
from support.dice import Seeded

pytestmark = pytest.mark.thorough
"""It is installed from the network. tests/waku/test_rlpx.py, test_keys.py and
test_devp2p.py check the same parts against published vectors and by our own two ends."""

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


ROLES = ["initiator", "recipient"]
SHARED = (Shared("waku", 1, 16, 128),)

noise = Random(7).randbytes
PAYLOADS = [b"", b"\xc0", b"x" * 300, noise(300), bytes(1_000_000), noise(200_000)]
"""Empty, small, and large; some that compress and some that do not."""


@asynccontextmanager
async def joined(role: str, command: tuple[Path, ...], hello: Hello = HELLO) -> AsyncIterator[tuple[Ours, Foreign]]:
    """Both ends; ours in the role that is named."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bounded(f"what is waited for, ours the {role}"))
        if role == "initiator":
            foreign = await stack.enter_async_context(Foreign.run(*command, "listen"))
            listening = await foreign.said()
            ours = await Ours.dial(listening["listening"], bytes.fromhex(listening["public"]), hello)
        else:
            port, dialled = await stack.enter_async_context(Ours.listen(hello))
            foreign = await stack.enter_async_context(Foreign.run(*command, "dial", str(port), KEY.public.hex()))
            ours = await dialled
        stack.push_async_callback(ours.close)
        yield ours, foreign


async def greeted(ours: Ours, foreign: Foreign) -> dict[str, Any]:
    """What it says when both are connected."""
    assert isinstance(await ours.heard(), Connected)
    return await foreign.said()


@pytest.mark.parametrize("role", ROLES)
async def test_both_say_hello(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        event = await ours.heard()
        assert isinstance(event, Connected)
        assert event.shared == SHARED
        assert (event.hello.client_id, event.hello.version) == ("foreign", 5)
        assert event.hello.public == ours.core.remote
        assert await foreign.said() == {"connected": "restante", "public": KEY.public.hex()}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("role", ROLES)
async def test_packets_go_both_ways_compressed_or_not(role: str, version: int, ethereumjs: tuple[Path, ...]) -> None:
    hello = msgspec.structs.replace(HELLO, version=version)
    async with joined(role, ethereumjs, hello) as (ours, foreign):
        await greeted(ours, foreign)
        for code, payload in zip((0, 1, 11, 22, 110, 111), PAYLOADS, strict=True):
            ours.send(code, payload)
            assert await foreign.said() == {"packet": [code, payload.hex()]}
        for code, payload in zip((0, 1, 111, 112, 126, 127), PAYLOADS, strict=True):
            foreign.do(send=[code, payload.hex()])
            assert await ours.heard() == Packet(code, payload)
        for size in (1, 56, 59, 256, 65_534, (1 << 20) - 3):  # where the head of a packet has another byte
            head, body = rlp.list_head(size), noise(size)
            ours.send_whole(111, head, body)
            assert await foreign.said() == {"packet": [111, (head + body).hex()]}
        foreign.do(ping=True)
        async with ours.reading():
            assert await foreign.said() == {"pong": True}


@pytest.mark.parametrize("role", ROLES)
async def test_our_ping_is_answered(role: str, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        ours.now = 16.0
        assert ours.core.handle_timeout(ours.now) == []
        assert ours.core.next_timeout() == 30.0
        ours.flush()
        while ours.core.next_timeout() == 30.0:
            await ours.read()
        assert ours.core.next_timeout() == 16.0 + 15.0


@pytest.mark.parametrize("reason", [Reason.TOO_MANY_PEERS, Reason.SUBPROTOCOL])
@pytest.mark.parametrize("role", ROLES)
async def test_a_disconnect_is_understood(role: str, reason: Reason, ethereumjs: tuple[Path, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        ours.core.disconnect(reason)
        ours.flush()
        ours.hang_up()
        assert await foreign.said() == {"disconnected": reason.value, "byUs": False}
    async with joined(role, ethereumjs) as (ours, foreign):
        await greeted(ours, foreign)
        foreign.do(disconnect=reason.value)
        assert await ours.heard() == Disconnected(reason, False, f"the peer said {reason.name}")
        assert ours.core.closed
