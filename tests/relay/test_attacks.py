"""Who sends too much, too little, nonsense or resets gets little, and a pair beside notices nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from relay.test_serve import pair, serving
from restante.common.newcomers import PENDING_BYTES
from restante.relay.core.limits import Limits
from restante.relay.server.connection import MAX_CLOSING
from support.bounds import bounded
from support.certificates import Certificate
from support.loops import on_uvloop, until
from support.mailbox.raw_socket import BINARY, CLOSE, CONTINUATION, PING, TEXT, RawSocket, frame, handshake
from support.proc import descriptors, resident
from support.proxy_headers import line
from support.relay.live import LiveRelay, request

MIB: Final = 1 << 20

HELLO: Final = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(100)


@asynccontextmanager
async def beside_a_pair(data: Path, **options: Any) -> AsyncIterator[tuple[LiveRelay, int]]:
    """Run a relay with a pair that passes on bytes before and after; yield it with the port of a proxy's clients.

    In the end nothing is left of the others.
    """
    async with LiveRelay(data, **options).serving() as live:
        port = await live.listen("proxy:127.0.0.1:0")
        one, other = await live.pair("h")

        async def still_passes() -> None:
            for sender, reader in ((one, other), (other, one)):
                sender.write(b"honest" * 1000)
                assert await reader.reader.readexactly(6000) == b"honest" * 1000

        await still_passes()
        yield live, port
        await still_passes()
        for client in live.clients[2:]:
            client.cut()
        await until(
            "only the pair is left", lambda: live.relay.new + live.relay.waiting + live.server.reading_bytes == 0
        )
        await still_passes()


async def come(live: LiveRelay, port: int, address: str, *sent: bytes) -> RawSocket:
    """Connect from an address, and send this."""
    client = await live.connect(port)
    client.write(line(address), *sent)
    return client


HALVES: Final[dict[str, bytes]] = {
    "nothing": b"",
    "half lines": request()[:50],
    "lines without an end": b"x" * 1024,
    "half requests of HTTP": handshake("/")[:-2],
    "half handshakes of TLS": HELLO[:9],
}


@pytest.mark.parametrize("sent", HALVES)
@on_uvloop
async def test_an_address_has_few_connections_without_a_request_and_not_for_long(tmp_path: Path, sent: str) -> None:
    limits = Limits(address_waiting=5)
    async with beside_a_pair(tmp_path, limits=limits) as (live, port):
        crowd = [await come(live, port, "203.0.113.7", HALVES[sent]) for _ in range(30)]
        ended = [asyncio.create_task(client.rest()) for client in crowd]
        refused = len(crowd) - limits.address_waiting
        if sent == "half handshakes of TLS":
            await asyncio.gather(*ended)
            return
        await until("the others are refused", lambda: sum(live.refusals.values()) == refused)
        assert live.server.reading_bytes <= limits.address_waiting * (PENDING_BYTES + 1100)
        honest = await come(live, port, "203.0.113.8", request("o"))
        await until("another address has room", lambda: live.relay.waiting == 1)
        if "HTTP" not in sent:
            for _ in range(10):
                live.pass_time(1)
            assert await asyncio.gather(*ended) == [b""] * len(crowd)
            assert live.relay.new == 0
        honest.cut()
        for task in ended:
            task.cancel()


@on_uvloop
async def test_waiting_connections_are_limited_per_address_and_in_all(tmp_path: Path) -> None:
    limits = Limits(address_waiting=3, waiting=10)
    async with beside_a_pair(tmp_path, limits=limits) as (live, port):
        for number in range(25):
            await come(live, port, f"203.0.113.{number // 5}", request("s", "a"))
            await until("it waits or is refused", lambda: live.relay.waiting + sum(live.refusals.values()) > number)  # noqa: B023
        assert live.relay.waiting == 10
        assert live.refusals == {"address_waiting": 6, "waiting": 9}


@on_uvloop
async def test_a_household_of_ipv6_is_one_address(tmp_path: Path) -> None:
    async with beside_a_pair(tmp_path, limits=Limits(address_waiting=3)) as (live, port):
        for number in range(10):
            await come(live, port, f"2001:db8:1:2::{number + 1:x}", request("s", "a"))
        await until("the others are refused", lambda: sum(live.refusals.values()) == 7)
        assert live.relay.waiting == 3


FLOODS: Final[dict[str, tuple[bytes, ...]]] = {
    "bytes behind a bad line": (b"no request\n",),
    "bytes behind a request": (request("z"),),
    "bytes behind HTTP": (b"GET / HTTP/1.1\r\n\r\n",),
    "bytes behind a wrong message": (handshake("/"), frame(BINARY, b"no request")),
    "bytes behind a text": (handshake("/"), frame(TEXT, b"text")),
}


@pytest.mark.parametrize("sent", FLOODS)
@on_uvloop
async def test_who_is_answered_is_not_read_on_for_long(tmp_path: Path, sent: str) -> None:
    """The answer is the last; a client that goes on to send is not read beyond the buffers of the kernel."""
    async with beside_a_pair(tmp_path) as (live, _):
        client = await live.connect()
        client.write(*FLOODS[sent])
        total, piece = 0, frame(BINARY, bytes(1000)) * 64
        with contextlib.suppress(ConnectionError):
            while total < 512 * MIB:
                client.write(piece)
                await client.writer.drain()
                total += len(piece)
        assert total < 32 * MIB


@on_uvloop
async def test_few_connections_may_linger_after_their_last_answer(tmp_path: Path) -> None:
    """They have no place among the waiting ones any more, and would have two seconds."""
    async with beside_a_pair(tmp_path) as (live, _):
        clients = []
        for number in range(MAX_CLOSING + 20):
            clients.append(await live.dial() if number % 2 else await live.connect())
            early = frame(BINARY, request()) + frame(BINARY, b"early") if number % 2 else request() + b"early"
            clients[-1].write(early)
            await until("it is answered", lambda: len(live.results) > number)  # noqa: B023
        assert len(live.server.closing) == MAX_CLOSING
        for client in clients[:20]:
            assert b"impatient\n" in await client.rest()
        assert len(live.server.closing) == MAX_CLOSING


MOMENTS: Final[dict[str, tuple[bytes, ...]]] = {
    "at once": (),
    "in a line": (request()[:20],),
    "after the line": (request("a", "a"),),
    "after a wrong line": (b"hello\n",),
    "with bytes behind the line": (request("a", "a") + b"early",),
    "in a request of HTTP": (handshake("/")[:30],),
    "after the request of HTTP": (handshake("/"),),
    "in a message": (handshake("/"), frame(BINARY, request())[:20]),
    "between fragments": (handshake("/"), frame(BINARY, request()[:20], fin=False)),
    "after the message": (handshake("/"), frame(BINARY, request("a", "a"))),
    "after pings": (handshake("/"), frame(BINARY, request("a", "a")), frame(PING, b"1") * 10),
    "after a wrong fragment": (handshake("/"), frame(CONTINUATION, b"x")),
    "in a TLS hello": (HELLO[:5],),
    "in a PROXY header": (b"PROXY TCP4 ",),
}


@pytest.mark.parametrize("kind", ["plain", "proxied", "TLS"])
@on_uvloop
async def test_resets_at_every_moment_leave_nothing(tmp_path: Path, kind: str) -> None:
    certificate = Certificate(tmp_path)
    tls = certificate if kind == "TLS" else None
    async with LiveRelay(tmp_path / "data", certificate=tls).serving() as live:
        proxied = await live.listen("plain:proxy:127.0.0.1:0")
        for turns in range(4):
            for moment, pieces in MOMENTS.items():
                if kind == "TLS" and "hello" not in moment:
                    client = await live.connect(ssl=certificate.client)
                else:
                    client = await live.connect(proxied if kind == "proxied" else 0)
                if kind == "proxied" and "PROXY" not in moment:
                    client.write(line())
                client.write(*pieces)
                for _ in range(turns):
                    await asyncio.sleep(0)
                client.cut()
        await until("nothing is left", live.is_empty)


@pytest.mark.parametrize("kind", ["TCP", "WebSocket", "TLS"])
@on_uvloop
async def test_resets_around_ok_end_the_pair(tmp_path: Path, kind: str) -> None:
    """The second side comes, and one of them goes in one of the next turns of the loop."""
    certificate = Certificate(tmp_path)
    async with LiveRelay(tmp_path / "data", certificate=certificate if kind == "TLS" else None).serving() as live:
        tls = certificate.client if kind == "TLS" else None

        async def side() -> RawSocket:
            if kind != "WebSocket":
                return await live.ask(ssl=tls)
            client = await live.dial()
            client.write(frame(BINARY, request()))
            return client

        for turns in range(12):
            clients = [await side(), await side()]
            clients[turns % 2].write(frame(BINARY, b"bytes"))
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            clients[turns % 2].cut()
            await until("a pair, or a record", lambda: live.server.running or live.results)
            if live.server.running or live.results == [("happy", 0)]:
                await hears_the_end(clients[1 - turns % 2], kind)
            clients[1 - turns % 2].cut()
            await until("nothing is left", live.is_empty)
            live.relay.records.clear()


async def hears_the_end(client: RawSocket, kind: str) -> None:
    if kind != "WebSocket":
        await client.rest()
        return
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while (await client.read())[0] != CLOSE:
            pass


@on_uvloop
async def test_a_pair_at_line_rate_leaves_their_shares_to_ten_others(tmp_path: Path) -> None:
    """At any moment none of the ten that want as much has had less than half of what the greedy one has."""
    size = 1 * MIB
    async with LiveRelay(tmp_path, limits=Limits(rate=32 * MIB)).serving() as live:
        pairs = [await live.pair(str(number)[-1] if number < 10 else "g") for number in range(11)]
        greedy = pairs[10]

        async def send(client: RawSocket, amount: int) -> None:
            for _ in range(amount // (1 << 16)):
                client.write(bytes(1 << 16))
                await client.writer.drain()

        async def swallow(client: RawSocket) -> None:
            while await client.reader.read(1 << 16):
                pass

        tasks = [asyncio.create_task(work) for work in (send(greedy[0], 1 << 30), swallow(greedy[1]))]
        tasks += [asyncio.create_task(send(one, 4 * size)) for one, _ in pairs[:10]]
        tasks += [asyncio.create_task(swallow(other)) for _, other in pairs[:10]]
        running = list(live.relay_pairs())
        await until("the greedy one has had a share", lambda: running[10].bytes >= size)
        assert min(pair_.bytes for pair_ in running[:10]) >= size // 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# ── what a process holds ─────────────────────────────────────────────────────────────────────────


async def visit(port: int, number: int) -> None:
    """Come by one of the loopback addresses, and go in one of the ways in which clients go."""
    host = f"127.0.0.{1 + number % 8}"
    client = await RawSocket.connect(port, host)
    way = number % 6
    sent = {
        0: b"",
        1: request()[:30],
        2: b"no request\n",
        3: request(chr(65 + number % 26), "a"),
        4: handshake("/") + frame(BINARY, b"no request"),
        5: request(chr(97 + number // 6 % 26)),
    }[way]
    client.write(sent)
    if way == 5:
        other = await RawSocket.connect(port, host)
        other.write(sent)
        await other.reader.read(3)
        other.cut()
        await client.rest()
    elif way == 2:
        await client.rest()
    elif way == 4:
        await client.head()
        await hears_the_end(client, "WebSocket")
    client.cut()


@pytest.mark.parametrize("visits", [2000, pytest.param(100_000, marks=pytest.mark.thorough)])
async def test_memory_and_descriptors_are_flat(tmp_path: Path, visits: int) -> None:
    listen = ("--listen", "0.0.0.0:0", "--limit", "address_records=0")
    async with serving(tmp_path, *listen) as (server, port):
        one, other = await pair(port, "h")

        async def crowd(numbers: range) -> None:
            for start in range(numbers.start, numbers.stop, 20):
                await asyncio.gather(*(visit(port, number) for number in range(start, start + 20)))

        await crowd(range(visits // 4))
        before = resident(server.pid), descriptors(server.pid)
        await crowd(range(visits // 4, visits))
        async with bounded("they are gone"):
            while descriptors(server.pid) > before[1] + 8:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        assert resident(server.pid) - before[0] < 8 * MIB
        one.write(b"flat")
        assert await other.reader.readexactly(4) == b"flat"
        for client in (one, other):
            client.cut()
        await server.stop()


@pytest.mark.parametrize("kind", ["TCP", "WebSocket", "TLS"])
async def test_a_partner_that_reads_a_byte_now_and_then_takes_little_memory(tmp_path: Path, kind: str) -> None:
    certificate = Certificate(tmp_path)
    options = ("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path)) if kind == "TLS" else ()
    tls = certificate.client if kind == "TLS" else None
    async with serving(tmp_path / "data", *options) as (server, port):
        if kind == "WebSocket":
            slow = await RawSocket.connect(port)
            slow.write(handshake("/"), frame(BINARY, request()))
            await slow.head()
            quick = await RawSocket.connect(port)
            quick.write(request())
            await quick.reader.readexactly(3)
            await slow.read()
        else:
            slow, quick = await pair(port, ssl=tls)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = resident(server.pid)
        sent = 0
        quick.writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):  # nothing tells that it is stuck; less is sent if the machine is slow
                while sent < 256 * MIB:
                    quick.write(bytes(1 << 18))
                    await quick.writer.drain()
                    sent += 1 << 18
        assert sent < 64 * MIB
        assert resident(server.pid) - before < 4 * MIB
        for client in (slow, quick):
            client.cut()
        await server.stop()
