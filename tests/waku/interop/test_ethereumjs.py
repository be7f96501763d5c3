"""Our RLPx and devp2p against those of @ethereumjs/devp2p, over a socket, in both roles.

It knows one byte of a message id and no more, so codes from 112 on (ids from 80 on) are only read from it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from restante.waku.devp2p.hello import Capability, Hello, Reason
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionEvent
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import Key
from support.bounds import bounded
from support.dice import Seeded
from support.tools import NODE, MissingError, npm_packages

pytestmark = [pytest.mark.thorough, pytest.mark.parametrize("role", ["initiator", "recipient"])]

SOURCE = Path(__file__).parent.parent / "foreign" / "ethereumjs"
KEY = Key(b"\5" * 32)
HELLO = Hello("restante", (Capability("waku", 0), Capability("waku", 1)), 30303, KEY.public)


@pytest.fixture(scope="session")
def ethereumjs() -> tuple[str, ...]:
    try:
        folder = npm_packages("ethereumjs", SOURCE)
    except MissingError as missing:
        pytest.skip(str(missing))
    shutil.copy(SOURCE / "peer.mjs", folder)
    return str(NODE), str(folder / "peer.mjs")


class Foreign:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> dict[str, Any]:
        assert self._process.stdout
        line = await self._process.stdout.readline()
        assert line, "the other implementation has ended"
        event: dict[str, Any] = json.loads(line)
        return event

    def do(self, **order: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")


class Ours:
    def __init__(self, rlpx: Rlpx, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.core = Devp2p(rlpx, hello, 0.0)
        self.now = 0.0
        self.writer = writer
        self._reader = reader
        self._events: deque[SessionEvent] = deque()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.core.data_to_send())

    async def hears(self) -> SessionEvent:
        while not self._events:
            await self.read()
        return self._events.popleft()

    async def read(self) -> None:
        data = await self._reader.read(1 << 16)
        assert data, "the other implementation has closed the connection"
        self._events += self.core.receive_data(data, self.now)
        self.flush()

    async def read_on(self) -> None:
        while True:
            await self.read()


@asynccontextmanager
async def joined(role: str, command: tuple[str, ...], hello: Hello = HELLO) -> AsyncIterator[tuple[Ours, Foreign]]:
    dialled: asyncio.Future[Ours] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set_result(Ours(Rlpx.recipient(KEY, Seeded(2)), hello, reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    arguments = ("listen",) if role == "initiator" else ("dial", str(port), KEY.public.hex())
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdin=PIPE, stdout=PIPE, limit=1 << 22)
    foreign = Foreign(process)
    ours: Ours | None = None
    try:
        async with bounded(f"what is waited for, ours the {role}"):
            if role == "initiator":
                listening = await foreign.says()
                streams = await asyncio.open_connection("127.0.0.1", listening["listening"])
                ours = Ours(Rlpx.initiator(KEY, bytes.fromhex(listening["public"]), Seeded(1)), hello, *streams)
            else:
                ours = await dialled
            event = await ours.hears()
            assert isinstance(event, Connected)
            assert (event.hello.client_id, event.hello.version) == ("foreign", 5)
            assert await foreign.says() == {"connected": "restante", "public": KEY.public.hex()}
            yield ours, foreign
    finally:
        server.close()
        if ours is not None:
            ours.writer.transport.abort()
            with suppress(OSError):
                await ours.writer.wait_closed()
        if process.returncode is None:
            process.kill()
        await process.communicate()


noise = Random(7).randbytes
PAYLOADS = [b"", b"\xc0", b"x" * 300, noise(300), bytes(1_000_000), noise(200_000)]


@pytest.mark.parametrize("version", [4, 5])
async def test_packets_go_both_ways_compressed_or_not(role: str, version: int, ethereumjs: tuple[str, ...]) -> None:
    hello = msgspec.structs.replace(HELLO, version=version)
    async with joined(role, ethereumjs, hello) as (ours, foreign):
        for code, payload in zip((0, 1, 11, 22, 110, 111), PAYLOADS, strict=True):
            ours.core.send(code, payload)
            ours.flush()
            assert await foreign.says() == {"packet": [code, payload.hex()]}
        for code, payload in zip((0, 1, 111, 112, 126, 127), PAYLOADS, strict=True):
            foreign.do(send=[code, payload.hex()])
            assert await ours.hears() == Packet(code, payload)
        for size in (1, 56, 59, 256, 65_534, (1 << 20) - 3):  # where the head of a packet has another byte
            head, body = rlp.list_head(size), noise(size)
            ours.core.send_pieces(111, head, memoryview(body))
            ours.flush()
            assert await foreign.says() == {"packet": [111, (head + body).hex()]}


async def test_a_ping_is_answered_on_both_sides(role: str, ethereumjs: tuple[str, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        ours.now = 16.0
        assert ours.core.handle_timeout(ours.now) == []
        assert ours.core.next_timeout() == 30.0
        ours.flush()
        while ours.core.next_timeout() == 30.0:
            await ours.read()
        assert ours.core.next_timeout() == 16.0 + 15.0
        foreign.do(ping=True)
        reading = asyncio.create_task(ours.read_on())
        assert await foreign.says() == {"pong": True}
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.parametrize("reason", [Reason.TOO_MANY_PEERS, Reason.SUBPROTOCOL])
async def test_a_disconnect_is_understood(role: str, reason: Reason, ethereumjs: tuple[str, ...]) -> None:
    async with joined(role, ethereumjs) as (ours, foreign):
        ours.core.disconnect(reason)
        ours.flush()
        ours.writer.close()
        assert await foreign.says() == {"disconnected": reason.value, "byUs": False}
    async with joined(role, ethereumjs) as (ours, foreign):
        foreign.do(disconnect=reason.value)
        assert await ours.hears() == Disconnected(reason, f"the peer said {reason.name}")
        assert ours.core.closed
