"""Floods: who says too much is slowed, never refused; and the others wait for a batch, not for the flood."""

from __future__ import annotations

import asyncio
import contextlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio

from restante.mailbox.core.fair_queue import MAX_BATCH_COMMANDS, MAX_QUEUED_PER_CONNECTION
from restante.mailbox.core.limits import Limits
from support.effort import rounds, some
from support.mailbox.raw_socket import CONTINUATION, PING, PONG, TEXT, RawSocket, frame
from support.mailbox.siege import Siege
from support.proc import resident

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLOODERS: Final = 20

MESSAGES: Final = 2 * Limits().commands_at_once
"""In a mailbox, which two flooders share: the first storm fills all, and later ones, however long, store no more."""

OPTIONS: Final = ("--trace", "{folder}/trace.jsonl", "--limit", f"mailbox_messages={MESSAGES}")

AHEAD: Final = 2 * MAX_BATCH_COMMANDS + MAX_QUEUED_PER_CONNECTION * FLOODERS
"""Commands of others that may be answered between the arrival of a command and its answer: those of the batch that is
being done, and those that are in the queue before it (docs/decisions/fair-queue.md)."""


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

QUICK: Final = ("pings", "adds", "long adds", "long unknown types", "frames of ping", "empty fragments")
"""Each way through the server once: read, stored and fanned out, refused, answered by the transport, not answered."""


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
    tasks = [asyncio.ensure_future(each) for each in doing]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for ended in results:
        assert ended is None or isinstance(ended, asyncio.CancelledError), ended


class Line(msgspec.Struct):
    """A line of the trace."""

    id: Any
    server_rx: float
    server_tx: float


def ahead(trace: bytes) -> list[int]:
    """Count, for each command of the pair, the commands of others that were answered while it waited."""
    lines = msgspec.json.Decoder(Line).decode_lines(trace)
    theirs = [line for line in lines if isinstance(line.id, str) and line.id.startswith("pair-")]
    others = sorted(line.server_tx for line in lines if line.id is None)
    return [bisect_left(others, line.server_tx) - bisect_right(others, line.server_rx) for line in theirs]


async def flooder(siege: Siege, number: int) -> RawSocket:
    client = await siege.bind(f"flooder-{number}", "floods")
    client.say(type="open", mailbox=f"flood-{number // 2}")
    assert (await client.hear())["type"] == "ack"
    return client


async def clean_up(siege: Siege) -> None:
    """Close what flooders left open: what lives is kept, and should be."""
    for number in range(FLOODERS):
        client = await siege.bind(f"flooder-{number}", "floods")
        client.say(type="close", mailbox=f"flood-{number // 2}")
        assert [(await client.hear())["type"] for _ in range(2)] == ["ack", "closed"]
        client.cut()


async def add_many(client: RawSocket, count: int) -> None:
    for _ in range(count):
        client.write(STREAMS["adds"])
    client.say(type="ping", ping="all")
    while (await client.hear())["type"] != "pong":
        pass


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def first_storm(siege: Siege) -> None:
    """Fill and empty the mailboxes once, and send large messages, before anything is measured.

    Of what so many messages took, some 10 MiB stay with the allocator and with SQLite for the next ones, once: a
    second and a third storm take no more. What is looked for is what grows.
    """
    clients = [await flooder(siege, number) for number in range(FLOODERS)]
    await asyncio.gather(*(add_many(each, Limits().commands_at_once) for each in clients))
    clients = [await siege.enter() for _ in range(10)]
    for each in clients:
        each.write(HUGE, HUGE)
    for each in clients:
        assert [(await each.hear())["type"] for _ in range(4)] == ["ack", "pong"] * 2
    siege.everybody_goes()
    await clean_up(siege)
    await siege.until("an empty house", siege.empty)
    siege.resident = resident(siege.pid)


@pytest.mark.parametrize("stream", some(list(STREAMS), *QUICK))
async def test_a_flood_delays_no_other_client(siege: Siege, stream: str) -> None:
    """The trace tells how many commands of flooders were answered while one of the pair waited.

    Frames that are no commands are not in it; that few of them are taken in a second is for test_slow_readers.py.
    """
    trace = siege.folder / "trace.jsonl"
    before = trace.stat().st_size
    clients = [await flooder(siege, number) for number in range(FLOODERS)]
    async with (
        siege.beside_the_pair(f"{FLOODERS} who pour {stream}", rounds(2, 20)) as pair,
        running(*(pour(each, STREAMS[stream]) for each in clients), *(swallow(each) for each in clients)),
    ):
        await pair.plays(3)
    with trace.open("rb") as file:
        file.seek(before)
        waited = ahead(file.read().rpartition(b"\n")[0])
    assert len(waited) > 100
    assert max(waited) <= AHEAD
    await clean_up(siege)


async def test_waiting_commands_are_bounded_in_bytes(siege: Siege) -> None:
    clients = [await flooder(siege, number) for number in range(10)]
    before = peak = siege.resident_mib()
    async with (
        siege.beside_the_pair("10 who pour pings of 2 MiB") as pair,
        running(*(pour(each, HUGE) for each in clients), *(swallow(each) for each in clients)),
    ):
        for _ in range(rounds(6, 20)):
            await pair.plays(1)
            peak = max(peak, siege.resident_mib())
    # A connection has one that waits, one that is being read, in a buffer of up to twice its size, and an answer.
    assert peak - before < 10 * 12
    await clean_up(siege)
