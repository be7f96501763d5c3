"""Floods: who says too much is slowed, never refused; and the others wait for a batch, not for the flood."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from restante.mailbox.core.limits import MIB, Limits
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.read_pauses import ReadPauses
from support.mailbox.raw_socket import CONTINUATION, PING, TEXT, RawSocket, frame
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS: Final = replace(Limits(), commands_at_once=100)
"""The clock stands, so a connection may say this much, and no more."""


def text(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


STREAMS: Final[dict[str, bytes]] = {
    "adds": text(type="add", phase="0", body="ab" * 100),
    "long unknown types": text(type="hello", body="ab" * 100_000),
    "pings of 2 MiB": text(type="ping", ping="x" * (Limits().message_bytes - 100)),
    "frames of ping": frame(PING, b"x" * 125),
    "empty fragments": frame(TEXT, b"{", fin=False) + frame(CONTINUATION, fin=False) * 1000,
}
"""What is said again and again, by somebody who is bound and has a mailbox open. Each way through the server once:
stored and fanned out, refused, answered by the transport, not answered."""


async def pour(flooder: RawSocket, stream: bytes) -> None:
    """Write this as fast as it is taken, and never stop."""
    piece = stream * max(1, (1 << 16) // len(stream))
    with contextlib.suppress(ConnectionError):
        while True:
            flooder.write(piece)
            await flooder.writer.drain()
            await asyncio.sleep(0)


async def swallow(flooder: RawSocket) -> None:
    """Read all that comes, and look at nothing."""
    with contextlib.suppress(ConnectionError):
        while await flooder.reader.read(1 << 18):
            pass


@asynccontextmanager
async def flooders(siege: Siege, count: int, stream: bytes) -> AsyncIterator[None]:
    """So many pour a stream, two into each mailbox; in the end they close what they left open."""
    clients = [await siege.bind(f"flooder-{number}", "floods") for number in range(count)]
    for number, client in enumerate(clients):
        client.say(type="open", mailbox=f"flood-{number // 2}")
        assert (await client.hear())["type"] == "ack"
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for client in clients for work in (pour(client, stream), swallow(client))]
        yield
        for task in running:
            task.cancel()
    siege.everybody_goes()
    for number in range(count):
        await siege.close(await siege.bind(f"flooder-{number}", "floods"), f"flood-{number // 2}")
    siege.everybody_goes()


def is_left_unread(socket: Socket) -> bool:
    return bool(socket.read_pauses.reasons & (ReadPauses.BACKLOG | ReadPauses.FRAME_RATE))


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_flood_is_slowed_and_does_not_reach_the_pair(siege: Siege, stream: str) -> None:
    server = siege.live.server
    async with siege.beside_the_pair(f"4 who pour {stream}", 4), flooders(siege, 4, STREAMS[stream]):
        await siege.until("a flooder that is not read", lambda: any(map(is_left_unread, server.sockets())))
        # A connection has one text that waits, one that is being read, in a buffer of twice its size, and an answer.
        assert server.held < 4 * 12 * MIB
