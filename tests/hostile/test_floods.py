"""Floods: who says too much is slowed, never refused; and the others wait for a batch, not for the flood."""

from __future__ import annotations

import asyncio
import contextlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from restante.mailbox.core.fair_queue import MAX_BATCH_COMMANDS, MAX_QUEUED_PER_CONNECTION
from restante.mailbox.core.limits import Limits
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.read_pauses import ReadPauses
from support.mailbox.raw_socket import CONTINUATION, PING, PONG, TEXT, RawSocket, frame
from support.mailbox.siege import LiveSiege, Siege, besieged_process
from support.proc import resident

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB: Final = 1 << 20
LIMITS: Final = replace(Limits(), commands_at_once=100)
"""The clock stands, so a connection may say this much, and no more."""


def text(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


STREAMS: Final[dict[str, bytes]] = {
    "pings": text(type="ping", ping="now?"),
    "lists": text(type="list"),
    "adds": text(type="add", phase="0", body="ab" * 100),
    "long adds": text(type="add", phase="0", body="ab" * 100_000),
    "allocations": text(type="allocate"),
    "claims of nothing": text(type="claim", nameplate="x"),
    "unknown types": text(type="hello", body="ab" * 100),
    "long unknown types": text(type="hello", body="ab" * 100_000),
    "no types": text(body="ab" * 100),
    "frames of ping": frame(PING, b"x" * 125),
    "frames of pong": frame(PONG, b"x" * 125),
    "empty fragments": frame(TEXT, b"{", fin=False) + frame(CONTINUATION, fin=False) * 1000,
}
"""What is said again and again, by somebody who is bound and has a mailbox open."""

HUGE: Final = text(type="ping", ping="x" * (Limits().message_bytes - 100))


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
async def running(*doing: Awaitable[None]) -> AsyncIterator[None]:
    """Run these while the block lasts."""
    tasks = [asyncio.ensure_future(work) for work in doing]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        assert result is None or isinstance(result, asyncio.CancelledError), result


@asynccontextmanager
async def flooders(siege: Siege, count: int, stream: bytes) -> AsyncIterator[None]:
    """So many pour a stream, two into each mailbox; in the end they close what they left open."""
    clients = [await siege.bind(f"flooder-{number}", "floods") for number in range(count)]
    for number, client in enumerate(clients):
        client.say(type="open", mailbox=f"flood-{number // 2}")
        assert (await client.hear())["type"] == "ack"
    async with running(*(pour(client, stream) for client in clients), *(swallow(client) for client in clients)):
        yield
    siege.everybody_goes()
    for number in range(count):
        await siege.close(await siege.bind(f"flooder-{number}", "floods"), f"flood-{number // 2}")
    siege.everybody_goes()


def is_left_unread(socket: Socket) -> bool:
    return bool(socket.read_pauses.reasons & (ReadPauses.BACKLOG | ReadPauses.FRAME_RATE))


@pytest.mark.parametrize("stream", ["adds", "long unknown types", "frames of ping", "empty fragments"])
async def test_a_flood_is_slowed_and_does_not_reach_the_pair(siege: LiveSiege, stream: str) -> None:
    """Each way through the server once: stored and fanned out, refused, answered by the transport, not answered."""
    server = siege.live.server
    async with siege.beside_the_pair(f"4 who pour {stream}", 4), flooders(siege, 4, STREAMS[stream]):
        await siege.until("a flooder that is not read", lambda: any(map(is_left_unread, server.sockets())))
        assert server.held < 4 * 12 * MIB


class Line(msgspec.Struct):
    """A line of the trace."""

    id: Any
    server_rx: float
    server_tx: float


def ahead(trace: bytes) -> list[int]:
    """Count, for each command of the pair, the commands of others that were answered while it waited."""
    lines = msgspec.json.Decoder(Line).decode_lines(trace)
    theirs = [line for line in lines if line.id is not None]  # flooders give none
    others = sorted(line.server_tx for line in lines if line.id is None)
    return [bisect_left(others, line.server_tx) - bisect_right(others, line.server_rx) for line in theirs]


@pytest.mark.thorough
@pytest.mark.parametrize("stream", STREAMS)
async def test_a_flood_delays_no_other_client(tmp_path: Path, stream: str) -> None:
    """The trace tells how many commands of flooders were answered while one of the pair waited.

    Frames that are no commands are not in it. A command waits for the batch at hand, and for what is in the queue
    before it (docs/decisions/fair-queue.md).
    """
    trace, count = tmp_path / "trace.jsonl", 20
    options = ("--trace", str(trace), "--limit", "mailbox_messages=2000")
    async with besieged_process(tmp_path / "data", *options) as (siege, _):
        pouring = flooders(siege, count, STREAMS[stream])
        async with siege.beside_the_pair(f"{count} who pour {stream}", 5) as pair, pouring:
            await pair.plays(5)
        waited = ahead(trace.read_bytes().rpartition(b"\n")[0])
        assert len(waited) > 100
        assert max(waited) <= 2 * MAX_BATCH_COMMANDS + MAX_QUEUED_PER_CONNECTION * count


async def test_waiting_commands_are_bounded_in_bytes_and_leave_nothing_in_the_process(tmp_path: Path) -> None:
    """Of a first flood, some MiB stay with the allocator and with SQLite for the next one."""
    peak = after = 0
    async with besieged_process(tmp_path / "data") as (siege, server):
        for _ in range(2):
            before = max(after, resident(server.pid))
            async with siege.beside_the_pair("10 who pour pings of 2 MiB") as pair, flooders(siege, 10, HUGE):
                for _ in range(3):
                    await pair.plays(1)
                    peak = max(peak, resident(server.pid))
            # A connection has one that waits, one that is being read, in a buffer of twice its size, and an answer.
            assert peak - before < 10 * 12 * MIB
            await siege.until("an empty house", siege.empty)
            after = resident(server.pid)
        assert after - before < 8 * MIB, "a big frame that is kept is 10"
