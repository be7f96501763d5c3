"""Who says too much, guesses, shakes no hands or does nothing gets little, and the others notice nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hostile.conftest import Siege
from restante.common.newcomers import PENDING_BYTES
from restante.mailbox.core.limits import MIB, Limits
from restante.mailbox.protocol.refusals import TOO_MANY_CLAIMS
from restante.mailbox.server.commit_loop import GRACE_SECONDS
from restante.mailbox.server.connection import ReadPauses
from support.bounds import BOUND
from support.loops import move_clock
from support.mailbox.raw_socket import CONTINUATION, PING, PONG, TEXT, RawSocket, frame, handshake

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS: Final = 12
LIMITS: Final = replace(Limits(), commands_at_once=100, address_claims_at_once=CLAIMS)
"""The clock stands, so a connection may say this much, an address claim this many, and no more."""

TRUSTED: Final = ("127.0.0.0/8",)


def text(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


STREAMS: Final[dict[str, bytes]] = {
    "adds": text(type="add", phase="0", body="ab" * 100),
    "long unknown types": text(type="hello", body="ab" * 100_000),
    "pings of 2 MiB": text(type="ping", ping="x" * (Limits().message_bytes - 100)),
    "frames of ping": frame(PING, b"x" * 125),
    "empty fragments": frame(TEXT, b"{", fin=False) + frame(CONTINUATION, fin=False) * 1000,
}
"""Each way through the server once: stored and fanned out, refused, answered by the transport, not answered."""


async def pour(flooder: RawSocket, stream: bytes) -> None:
    piece = stream * max(1, (1 << 16) // len(stream))
    with contextlib.suppress(ConnectionError):
        while True:
            flooder.write(piece)
            await flooder.writer.drain()
            await asyncio.sleep(0)


async def swallow(flooder: RawSocket) -> None:
    with contextlib.suppress(ConnectionError):
        while await flooder.reader.read(1 << 18):
            pass


@asynccontextmanager
async def flooders(siege: Siege, count: int, stream: bytes) -> AsyncIterator[None]:
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


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_flood_is_slowed_and_does_not_reach_the_pair(siege: Siege, stream: str) -> None:
    server, unread = siege.live.server, ReadPauses.BACKLOG | ReadPauses.FRAME_RATE
    async with siege.beside_the_pair(f"4 who pour {stream}", 4), flooders(siege, 4, STREAMS[stream]):
        await siege.until("an unread flooder", lambda: any(peer.read_pauses & unread for peer in server.sockets()))
        # A connection has one text that waits, one that is being read, in a buffer of twice its size, and an answer.
        assert server.held_bytes < 4 * 12 * MIB


async def claim(siege: Siege, side: str, address: str, nameplate: str) -> tuple[RawSocket, dict[str, Any]]:
    client = await siege.bind(side, X_Forwarded_For=address)
    return client, await siege.call(client, type="claim", nameplate=nameplate)


async def sender(siege: Siege, number: int) -> tuple[RawSocket, str, str]:
    client = await siege.bind(f"sender-{number}", X_Forwarded_For=f"198.51.100.{number}")
    nameplate = (await siege.call(client, type="allocate"))["nameplate"]
    mailbox = (await siege.call(client, type="claim", nameplate=nameplate))["mailbox"]
    client.say(type="open", mailbox=mailbox)
    assert (await client.hear())["type"] == "ack"
    assert (await siege.call(client, type="add", phase="pake", body="00"))["side"] == f"sender-{number}"
    return client, nameplate, mailbox


@pytest.mark.parametrize("speaks", [False, True], ids=["and leaves", "and speaks"])
async def test_who_claims_nameplates_gets_one_guess_each_up_to_its_quota(siege: Siege, *, speaks: bool) -> None:
    """Where one side waits, the guesser is the other, if it is the first: that is the protocol."""
    siege.live.clock.now += 3600
    busy, *senders = [await sender(siege, number) for number in range(CLAIMS + 3)]
    receiver, _ = await claim(siege, "receiver-0", "203.0.113.200", busy[1])
    assert (await siege.call(receiver, type="open", mailbox=busy[2]))["body"] == "00"
    address = "192.0.2.3" if speaks else "192.0.2.4"
    guesser = f"guesser at {address}"
    guesses = []
    for _, nameplate, mailbox in (busy, *senders):
        client, answer = await claim(siege, guesser, address, nameplate)
        guesses.append(answer.get("error", "claimed"))
        if answer["type"] == "claimed":
            assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
            if speaks:
                assert (await siege.call(client, type="add", phase="pake", body="66"))["side"] == guesser
        client.cut()
    assert guesses == ["crowded", *["claimed"] * (CLAIMS - 1), *[TOO_MANY_CLAIMS.message] * 3]
    busy[0].say(type="add", phase="0", body="11")
    assert (await receiver.hear())["body"] == "11"
    await siege.fence()
    outcomes = []
    async with siege.beside_the_pair("a guesser"):
        for number, (_, nameplate, mailbox) in enumerate(senders, 1):
            client, answer = await claim(siege, f"receiver-{number}", f"203.0.113.{number}", nameplate)
            outcomes.append(answer.get("error", "claimed"))
            if answer["type"] == "claimed":
                assert (await siege.call(client, type="open", mailbox=mailbox))["body"] == "00"
                await siege.close(client, mailbox)
    assert outcomes == (["crowded"] if speaks else ["claimed"]) * (CLAIMS - 1) + ["claimed"] * 3
    for number, (_, _, mailbox) in enumerate((busy, *senders)):  # what the other case claims is free again
        for side in (f"sender-{number}", f"receiver-{number}", guesser):
            await siege.close(await siege.bind(side, X_Forwarded_For=f"198.51.100.{number}"), mailbox)
    siege.everybody_goes()


CROWD: Final = 300

BAD, NOT_FOUND, OK = "400 Bad Request", "404 Not Found", "200 OK"
TOO_LARGE = "431 Request Header Fields Too Large"


def with_headers(*lines: str) -> bytes:
    return handshake().replace(b"\r\n\r\n", "".join(f"\r\n{line}" for line in lines).encode() + b"\r\n\r\n")


TLS: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200))

REQUESTS: Final[dict[str, tuple[bytes, str]]] = {
    "nothing but an end": (b"\r\n\r\n", BAD),
    "TLS": (TLS + b"\r\n\r\n", BAD),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
    "HTTP/1.0": (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), BAD),
    "no path": (handshake().replace(b" /v1 ", b"  "), BAD),
    "a space in the path": (handshake("/v1 /v1"), BAD),
    "another path": (handshake("/v2"), NOT_FOUND),
    "a path above": (handshake("/v1x/../v1"), NOT_FOUND),
    "a path of 7,900 letters": (handshake("/" + "x" * 7900), NOT_FOUND),
    "a path of 8,200 letters": (handshake("/" + "x" * 8200), TOO_LARGE),
    "the greeting, a hundred times": (b"GET / HTTP/1.1\r\n\r\n" * 100, OK),
    "POST": (handshake().replace(b"GET", b"POST"), BAD),
    "another upgrade": (handshake(Upgrade="h2c"), BAD),
    "another connection": (handshake(Connection="keep-alive"), BAD),
    "no version": (handshake(Sec_WebSocket_Version=""), BAD),
    "OPTIONS of no path": (b"OPTIONS  HTTP/1.0\r\n\r\n", BAD),
    "OPTIONS of HTTP/0.9": (b"OPTIONS /\r\n\r\n", BAD),
    "OPTIONS, fifty times": (b"OPTIONS / HTTP/1.0\r\n\r\n" * 50, OK),
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
    "20 KB without an end": (b"GET /v1 HTTP/1.1\r\nX: " + b"x" * 20_000, TOO_LARGE),
}

SLOW: Final[dict[str, bytes]] = {
    "nothing at all": b"",
    "all but the end": handshake()[:-1],
    "bare line feeds": handshake().replace(b"\r\n", b"\n"),
}


async def status(siege: Siege, request: bytes) -> str:
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
    frames = [await client.read() for _ in range(3)]
    assert (PONG, b"1") in frames
    assert sum(b'"pong":2' in payload for _, payload in frames) == 1


async def test_a_handshake_that_takes_too_long_is_closed(siege: Siege) -> None:
    """The time limit is that of the moment at which a client connects, so the pair may have another one."""
    server = siege.live.server
    async with siege.beside_the_pair("slow handshakes"):
        usual, server.policy.limits = server.limits, replace(server.limits, handshake=BOUND / 2)
        slow = [await siege.live.connect() for _ in SLOW]
        letters = await siege.live.connect()
        await siege.until("all have come", lambda: server.held_bytes >= (len(slow) + 1) * PENDING_BYTES)
        server.policy.limits = replace(usual, handshake=2 * BOUND)
        for client, request in zip(slow, SLOW.values(), strict=True):
            client.write(request)
        for letter in handshake()[:10]:
            letters.write(bytes((letter,)))
            await siege.fence()
            move_clock(asyncio.get_running_loop(), BOUND / 20)
        assert [await client.rest() for client in (*slow, letters)] == [b""] * (len(slow) + 1)
        server.policy.limits = usual


async def test_connections_that_never_bind_are_closed(siege: Siege) -> None:
    server = siege.live.server
    async with siege.beside_the_pair("hundreds that never bind"):
        bound = await siege.bind("bound")
        crowd = [await siege.live.enter() for _ in range(CROWD)]
        for client in crowd[::2]:
            client.say(type="ping", ping="still here")  # is no bind
        await siege.fence()

        def none_of_the_pair() -> bool:
            return sum(socket.connection.session.app_id is None for socket in server.unbound) == CROWD

        await siege.until("none of the pair has yet to bind", none_of_the_pair)  # no time passes until the ticks
        for _ in range(int(server.limits.bind) + 1 + CROWD // 250):
            server.tick()
        outcomes = await asyncio.gather(*(client.last_words() for client in crowd))
        for messages, code in outcomes:
            refusal = {"error": "must bind first", "hint": "within 300 s of connecting", "orig": None}
            assert (refusal.items() <= messages[-1].items(), code) == (True, 1008)
        assert {len(messages) for messages, _ in outcomes} == {1, 3}
        assert (await siege.call(bound, type="list"))["type"] == "nameplates"


async def test_clients_that_vanish_leave_nothing_behind(siege: Siege) -> None:
    siege.live.clock.now += GRACE_SECONDS
    async with siege.beside_the_pair("dozens that vanish"):
        crowd = []
        for number in range(20):
            fresh, inside = await siege.live.enter(), await siege.live.enter()
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
