"""Broken HTTP, slow handshakes, and connections that come and then do nothing."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

import pytest
from msgspec.structs import replace

from restante.mailbox.server.commit_loop import GRACE_SECONDS
from restante.mailbox.server.newcomer import PENDING_BYTES
from support.mailbox.raw_socket import PING, PONG, TEXT, frame, handshake
from support.mailbox.siege import Siege

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROWD: Final = 300
"""Connections at once."""

LATE: Final = "within 300 s of connecting"

BAD, NOT_FOUND, OK = "400 Bad Request", "404 Not Found", "200 OK"
TOO_LARGE = "431 Request Header Fields Too Large"


def with_headers(*lines: str) -> bytes:
    """Return a good request with these lines too many."""
    return handshake().replace(b"\r\n\r\n", "".join(f"\r\n{line}" for line in lines).encode() + b"\r\n\r\n")


REQUESTS: Final[dict[str, tuple[bytes, str]]] = {
    "nothing but an end": (b"\r\n\r\n", BAD),
    "a word": (b"hello\r\n\r\n", BAD),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n", BAD),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
    "HTTP/1.0": (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), BAD),
    "HTTP/1.11": (handshake().replace(b"HTTP/1.1", b"HTTP/1.11"), BAD),
    "no path": (handshake().replace(b" /v1 ", b"  "), BAD),
    "a space in the path": (handshake("/v1 /v1"), BAD),
    "another path": (handshake("/v2"), NOT_FOUND),
    "a path above": (handshake("/v1x/../v1"), NOT_FOUND),
    "a whole address": (handshake("http://127.0.0.1/v1"), NOT_FOUND),
    "a path of 7,900 letters": (handshake("/" + "x" * 7900), NOT_FOUND),
    "a path of 8,200 letters": (handshake("/" + "x" * 8200), TOO_LARGE),
    "a path of 10,000 letters": (handshake("/" + "x" * 10_000), TOO_LARGE),
    "the greeting, a hundred times": (b"GET / HTTP/1.1\r\n\r\n" * 100, OK),
    "POST": (handshake().replace(b"GET", b"POST"), BAD),
    "get": (handshake().replace(b"GET", b"get"), BAD),
    "no upgrade": (handshake(Upgrade=""), BAD),
    "another upgrade": (handshake(Upgrade="h2c"), BAD),
    "no connection": (handshake(Connection=""), BAD),
    "another connection": (handshake(Connection="keep-alive"), BAD),
    "no version": (handshake(Sec_WebSocket_Version=""), BAD),
    "another version": (handshake(Sec_WebSocket_Version="12"), BAD),
    "no key": (handshake(Sec_WebSocket_Key=""), BAD),
    "a key of 15 bytes": (handshake(Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAA"), BAD),
    "a key of no base64": (handshake(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25j*Q=="), BAD),
    "a header without a colon": (with_headers("hello"), BAD),
    "a header without a name": (with_headers(": x"), BAD),
    "a space before the colon": (with_headers("X : x"), BAD),
    "a folded header": (with_headers("X: x", " y"), BAD),
    "a NUL in a header": (with_headers("X: \0"), BAD),
    "a line feed in a header": (with_headers("X: \nY: y"), BAD),
    "700 headers": (with_headers(*(f"X{i}: x" for i in range(700))), BAD),
    "1,000 headers": (with_headers(*(f"X{i}: x" for i in range(1000))), TOO_LARGE),
    "a body": (with_headers("Content-Length: 5"), BAD),
    "chunks": (with_headers("Transfer-Encoding: chunked"), BAD),
    "a header of 20 KB": (with_headers("X: " + "x" * 20_000), TOO_LARGE),
    "20 KB without an end": (b"GET /v1 HTTP/1.1\r\nX: " + b"x" * 20_000, TOO_LARGE),
    "a megabyte without an end": (b"GET /" + b"x" * (1 << 20), TOO_LARGE),
}

SLOW: Final[dict[str, bytes]] = {
    "nothing at all": b"",
    "a letter": b"G",
    "all but the end": handshake()[:-1],
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    "bare line feeds": handshake().replace(b"\r\n", b"\n"),
}


async def status(siege: Siege, request: bytes) -> str:
    """Send this; gives the status that it gets, and reads to the end."""
    client = await siege.live.connect()
    client.write(request)
    head = (await client.rest()).partition(b"\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 ") or not head, head
    return head.removeprefix("HTTP/1.1 ")


async def test_broken_http_is_answered_and_closed(siege: Siege) -> None:
    async with siege.beside_the_pair("broken HTTP"):
        got = await asyncio.gather(*(status(siege, request) for request, _ in REQUESTS.values()))
        assert dict(zip(REQUESTS, got, strict=True)) == {name: due for name, (_, due) in REQUESTS.items()}


@pytest.mark.parametrize("bite", [1, 7, 1000])
async def test_a_request_may_come_in_pieces_and_frames_with_its_end(siege: Siege, bite: int) -> None:
    client = await siege.live.connect()
    stream = handshake() + frame(PING, b"1") + frame(TEXT, b'{"type": "ping", "ping": 2}')
    for start in range(0, len(stream), bite):
        client.write(stream[start : start + bite])
        await client.writer.drain()
        await asyncio.sleep(0)
    await client.reader.readuntil(b"\r\n\r\n")
    assert (await client.hear())["type"] == "welcome"
    heard = [await client.read() for _ in range(3)]
    assert (PONG, b"1") in heard
    assert sum(b'"pong":2' in payload for _, payload in heard) == 1


async def test_a_handshake_that_takes_too_long_is_closed(siege: Siege) -> None:
    """The time limit is that of the moment at which a client connects, so the pair has the usual one."""
    server = siege.live.server
    async with siege.beside_the_pair("slow handshakes"):
        usual, server.limits = server.limits, replace(server.limits, handshake=0.5)
        slow = [await siege.live.connect() for _ in SLOW]
        letters = await siege.live.connect()
        await siege.until("all have come", lambda: server.held >= (len(slow) + 1) * PENDING_BYTES)
        server.limits = usual
        for client, request in zip(slow, SLOW.values(), strict=True):
            client.write(request)
        ending = asyncio.create_task(letters.rest())
        for letter in itertools.cycle(handshake(X="x" * 10_000)[:-4]):
            letters.write(bytes((letter,)))
            await asyncio.sleep(0.01)
            if ending.done():
                break
        assert [await client.rest() for client in slow] == [b""] * len(slow)
        assert await ending == b""


# ── those who come and do nothing ────────────────────────────────────────────────────────────────


async def test_connections_that_never_bind_are_closed(siege: Siege) -> None:
    server = siege.live.server
    async with siege.beside_the_pair("hundreds that never bind"):
        bound = await siege.bind("bound")
        crowd = [await siege.enter() for _ in range(CROWD)]
        for client in crowd[::2]:
            client.say(type="ping", ping="still here")  # is no bind
        await siege.fence()
        for _ in range(int(server.limits.bind) + 1 + CROWD // 250):
            server.tick()
        outcomes = await asyncio.gather(*(client.last_words() for client in crowd))
        for messages, code in outcomes:
            last = messages[-1]
            assert (last["error"], last["hint"], last["orig"]) == ("must bind first", LATE, None)
            assert code == 1008
        assert {len(messages) for messages, _ in outcomes} == {1, 3}
        assert (await siege.call(bound, type="list"))["type"] == "nameplates"


async def test_clients_that_vanish_leave_nothing_behind(siege: Siege) -> None:
    """Half of them close their half of the connection; then all are reset."""
    siege.live.clock.now += GRACE_SECONDS
    async with siege.beside_the_pair("dozens that vanish"):
        crowd = []
        for number in range(20):
            fresh, inside = await siege.enter(), await siege.enter()
            bound, subscribed = [await siege.bind(f"gone-{number}") for _ in range(2)]
            inside.write(frame(TEXT, b'{"type": "pi', fin=False), frame(TEXT, PING.to_bytes() * 100)[:50])
            subscribed.say(type="open", mailbox=f"gone-{number // 2}")
            assert (await subscribed.hear())["type"] == "ack"
            crowd += [fresh, inside, bound, subscribed]
        for client in crowd[::2]:
            client.writer.write_eof()
            await client.rest()  # the server has nobody to talk with, and closes the other half
        for client in crowd:
            client.cut()
        for number in range(10):  # both sides of each mailbox are gone: there is room for others
            newcomer = await siege.bind("new")
            newcomer.say(type="open", mailbox=f"gone-{number}")
            assert (await newcomer.hear())["type"] == "ack"
            newcomer.say(type="close", mood="happy")
            assert [(await newcomer.hear())["type"] for _ in range(2)] == ["ack", "closed"]
            newcomer.cut()
