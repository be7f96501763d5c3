"""The wire itself: a harness that is wrong would make every other test of this folder worth nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.bounds import bounded
from support.mailbox.frames import Follower, Piece
from support.mailbox.proxy import AFTER, BEFORE, Order, Proxy, to_client, to_server

HEAD = b"GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
MASK = b"\x01\x02\x03\x04"
BIND = {"type": "bind", "side": "s1"}


def frame(payload: bytes, *, opcode: int = 1, last: bool = True, mask: bytes = b"") -> bytes:
    """RFC 6455 5.2, written from the other side."""
    size = len(payload)
    if size < 126:
        length = bytes([size])
    elif size < 1 << 16:
        length = b"\x7e" + size.to_bytes(2, "big")
    else:
        length = b"\x7f" + size.to_bytes(8, "big")
    second = bytes([length[0] | (0x80 if mask else 0)]) + length[1:]
    if mask:
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([(0x80 if last else 0) | opcode]) + second + mask + payload


SHORT, MEDIUM, LONG = b"{}", b"m" * 126, b"l" * 65536
PING = frame(b"still there?", opcode=9)
FRAGMENTS = [frame(b"one ", last=False), frame(b"and ", opcode=0, last=False), frame(b"all", opcode=0)]
STREAMS = {
    "three lengths": (
        HEAD + frame(SHORT) + frame(MEDIUM) + frame(LONG),
        [Piece(HEAD), Piece(frame(SHORT), SHORT), Piece(frame(MEDIUM), MEDIUM), Piece(frame(LONG), LONG)],
    ),
    "masked": (HEAD + frame(MEDIUM, mask=MASK), [Piece(HEAD), Piece(frame(MEDIUM, mask=MASK), MEDIUM)]),
    "a ping between two messages": (
        HEAD + frame(SHORT) + PING + frame(SHORT),
        [Piece(HEAD), Piece(frame(SHORT), SHORT), Piece(PING), Piece(frame(SHORT), SHORT)],
    ),
    "fragments with a ping among them": (
        HEAD + FRAGMENTS[0] + PING + FRAGMENTS[1] + FRAGMENTS[2],
        [Piece(HEAD), Piece(PING), Piece(b"".join(FRAGMENTS), b"one and all")],
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_follower_splits_a_stream_between_messages(name: str, size: int) -> None:
    stream, pieces = STREAMS[name]
    follower = Follower()
    fed = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [piece for data in fed for piece in follower.feed(data)] == pieces


@pytest.mark.parametrize(
    "bad",
    [b"\xc1\x00", frame(b"lost its beginning", opcode=0), FRAGMENTS[0] + frame(b"")],
    ids=["compressed", "continuation of nothing", "message inside a message"],
)
def test_the_follower_does_not_guess(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"reserved bit|fragments"):
        list(Follower().feed(HEAD + bad))


class Pair:
    """A client and a server, without WebSocket libraries, at the two ends of a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        proxy.open()
        self._servers: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._ends: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        await self._servers.put((reader, writer))

    async def connect(self) -> tuple["End", "End"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        self._ends.append(writer)
        client, server = End(reader, writer, MASK), End(*await self._servers.get(), b"")
        client.writer.write(HEAD)
        server.writer.write(UPGRADED)
        assert await server.reader.readexactly(len(HEAD)) == HEAD
        assert await client.reader.readexactly(len(UPGRADED)) == UPGRADED
        client.say(BIND)
        assert await server.hears() == BIND
        return client, server

    async def close(self) -> None:
        for writer in self._ends:
            writer.close()
            await writer.wait_closed()


class End:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mask: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self._mask = mask
        self._follower = Follower()
        self._follower.head = b""  # read by Pair
        self._heard: list[Piece] = []

    def say(self, message: dict[str, Any]) -> None:
        self.writer.write(frame(json.dumps(message).encode(), mask=self._mask))

    async def hears(self) -> dict[str, Any] | None:
        """The next message; None at the end of the stream."""
        async with bounded("a message, or the end"):
            while not self._heard:
                if not (data := await self.reader.read(65536)):
                    return None
                self._heard += self._follower.feed(data)
        payload = self._heard.pop(0).payload
        assert payload is not None
        message: dict[str, Any] = json.loads(payload)
        return message


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair(Proxy())
    async with await asyncio.start_server(pair.accept, "127.0.0.1", 0) as listener:
        pair.proxy.server_port = listener.sockets[0].getsockname()[1]
        async with pair.proxy:
            yield pair
        await pair.close()


@pytest.mark.parametrize(("order", "arrives"), [(BEFORE, [{"type": "a"}]), (AFTER, [{"type": "a"}, {"type": "b"}])])
async def test_a_cut_lets_pass_what_came_before_it(pair: Pair, order: Order, arrives: list[dict[str, Any]]) -> None:
    client, server = await pair.connect()
    stop = pair.proxy.act(to_client(1, "b"), order, pair.proxy.cut)
    for kind in "abc":
        server.say({"type": kind})
    await stop.reached()
    heard = [await client.hears() for _ in range(len(arrives) + 1)]
    assert heard == [*arrives, None]
    assert await server.hears() is None


async def test_a_held_message_keeps_its_direction_waiting_and_no_other(pair: Pair) -> None:
    client, server = await pair.connect()
    held = pair.proxy.hold(to_server(1, "a"))
    client.say({"type": "a"})
    client.say({"type": "b"})
    await held.reached()
    server.say({"type": "c"})
    assert await client.hears() == {"type": "c"}
    assert [p.message["type"] for p in pair.proxy.transcript if p.passed] == ["bind", "c"]
    held.let_go()
    assert await server.hears() == {"type": "a"}
    assert await server.hears() == {"type": "b"}


async def test_a_dropped_message_takes_its_connection_along_and_no_other(pair: Pair) -> None:
    client, server = await pair.connect()
    other_client, other_server = await pair.connect()
    held = pair.proxy.hold(to_server(1, "a"))
    client.say({"type": "a"})
    await held.reached()
    held.drop()
    assert await client.hears() is None
    assert await server.hears() is None
    other_client.say({"type": "a"})
    assert await other_server.hears() == {"type": "a"}


async def test_a_client_is_known_by_its_side_over_connections(pair: Pair) -> None:
    await pair.connect()
    pair.proxy.cut()
    client, server = await pair.connect()
    server.say({"type": "message", "side": "s1", "phase": "pake"})
    passage = await pair.proxy.passed(to_client(1, "message", phase="pake", author=1))
    assert (passage.connection, passage.client) == (2, 1)
    assert pair.proxy.connections_of(1) == 2
    assert await client.hears() == passage.message


async def test_without_a_server_a_client_is_disconnected_at_once(pair: Pair) -> None:
    async with await asyncio.start_server(pair.accept, "127.0.0.1", 0) as listener:
        pair.proxy.server_port = listener.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.proxy.port)
    async with bounded("the end"):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert pair.proxy.connections_of(1) == 0


@pytest.mark.parametrize(
    "bad",
    [b"\xf1\x00", frame(b"[]"), frame(b"no JSON")],
    ids=["reserved bits", "no object", "no JSON"],
)
async def test_a_stream_that_the_follower_cannot_parse_fails_the_test(bad: bytes) -> None:
    pair = Pair(Proxy())

    async def hear(bad: bytes) -> None:
        async with pair.proxy:
            client, server = await pair.connect()
            server.writer.write(bad)
            assert await client.hears() is None

    async with await asyncio.start_server(pair.accept, "127.0.0.1", 0) as listener:
        pair.proxy.server_port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ExceptionGroup, match="could not follow"):
            await hear(bad)
        await pair.close()
