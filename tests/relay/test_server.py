"""The relay with sockets: how connections begin, and what passes between TCP and WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from relay.saving import record
from restante.common.certificate import ServerCertificate
from restante.common.newcomers import PENDING_BYTES
from restante.common.tls_handshake import IDLE_TLS_BYTES
from restante.relay.core.limits import Limits
from restante.relay.protocol.refusals import NO_DESCRIPTORS
from restante.relay.server import connection, recording
from restante.relay.server.pair import StreamPairs
from support.certificates import Certificate
from support.loops import on_uvloop, until
from support.mailbox.raw_socket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    frame,
    handshake,
)
from support.proc import descriptors
from support.proxy_headers import header, line
from support.relay.live import LiveRelay, request

OK: Final = (BINARY, b"ok\n")

CLOSED: Final = b"\x88"
"""The first byte of the frame that closes a WebSocket."""


async def payload(client: RawSocket, size: int) -> bytes:
    """Read messages until they have so many bytes, and answer nothing."""
    received = b""
    while len(received) < size:
        opcode, data = await client.read()
        assert opcode == BINARY, (opcode, data)
        received += data
    return received


# ── WebSockets ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["", "\n"], ids=["no newline", "a newline"])
@pytest.mark.parametrize("pieces", [1, 2, 40])
@on_uvloop
async def test_the_request_of_a_websocket_is_its_first_message(tmp_path: Path, end: str, pieces: int) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client, other = await live.dial(), await live.ask(side="b")
        message = request(side="a", end=end)
        size = -(-len(message) // pieces)
        for start in range(0, len(message), size):
            client.write(frame(PING, b"before"))
            opcode = CONTINUATION if start else BINARY
            client.write(frame(opcode, message[start : start + size], fin=start + size >= len(message)))
        pongs = -(-len(message) // size)
        assert [await client.read() for _ in range(pongs)] == [(PONG, b"before")] * pongs
        assert await client.read() == OK
        assert await other.reader.readexactly(3) == b"ok\n"


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 300_000, 1 << 20])
@on_uvloop
async def test_bytes_pass_between_a_websocket_and_tcp_both_ways(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    async with LiveRelay(tmp_path).serving() as live:
        web, tcp = await live.dial(), await live.ask(side="b")
        web.write(frame(BINARY, request(side="a")))
        assert await web.read() == OK
        assert await tcp.reader.readexactly(3) == b"ok\n"
        tcp.write(data)
        web.write(frame(BINARY, data))
        received, sent = await asyncio.gather(payload(web, size), tcp.reader.readexactly(size))
        assert (received, sent) == (data, data)
        tcp.cut()
        assert (await web.read())[0] == CLOSE
        web.bid_farewell()
        await until("the record", lambda: live.results == [("happy", 2 * size)])


@on_uvloop
async def test_frames_of_the_same_read_as_the_request_are_for_the_partner(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        tcp, web = await live.ask(side="b"), await live.dial()
        await until("one waits", lambda: live.relay.waiting == 1)
        web.write(frame(BINARY, request(side="a")), frame(BINARY, b"at "), frame(BINARY, b"once"))
        assert await tcp.reader.readexactly(10) == b"ok\nat once"


@on_uvloop
async def test_the_handshake_and_the_first_message_may_come_in_one_segment(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        tcp, web = await live.ask(side="b"), await live.connect()
        web.write(handshake("/"), frame(BINARY, request(side="a")), frame(BINARY, b"hello"))
        assert (await web.head()).startswith(b"HTTP/1.1 101 ")
        assert await web.read() == OK
        assert await tcp.reader.readexactly(8) == b"ok\nhello"


@pytest.mark.parametrize(
    ("frames", "answer", "code", "result"),
    [
        ([frame(TEXT, request())], b"", 1003, "errory"),
        ([frame(BINARY, b"hello")], b"bad handshake\n", 1000, "errory"),
        ([frame(BINARY)], b"bad handshake\n", 1000, "errory"),
        ([frame(BINARY, request()), frame(TEXT, b"early")], b"", 1003, "errory"),
        ([frame(BINARY, request()), frame(BINARY, b"early")], b"impatient\n", 1000, "impatient"),
        ([frame(BINARY, request() + b"early")], b"bad handshake\n", 1000, "errory"),
        ([frame(BINARY, b"x" * 1025)], b"", 1009, "empty"),
        ([frame(BINARY, b"x" * 1000, fin=False), frame(CONTINUATION, b"x" * 25)], b"", 1009, "empty"),
        ([frame(CONTINUATION, request())], b"", 1002, "errory"),
        ([frame(BINARY, b"please", fin=False), frame(BINARY, request())], b"", 1002, "errory"),
    ],
    ids=[
        "text",
        "no request",
        "nothing",
        "text while it waits",
        "bytes while it waits",
        "bytes behind the line",
        "too long",
        "too long in pieces",
        "a fragment of no message",
        "two messages at once",
    ],
)
@on_uvloop
async def test_a_websocket_is_closed_with_a_code(
    tmp_path: Path, frames: list[bytes], answer: bytes, code: int, result: str
) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        client.write(*frames)
        if answer:
            assert await client.read() == (BINARY, answer)
        assert await client.closed() == code
        client.bid_farewell(code)
        assert await client.ended()
        assert live.results == [(result, 0)]


@pytest.mark.parametrize(
    ("before", "result"),
    [(b"", "empty"), (frame(BINARY, request()), "impatient"), (frame(BINARY, b"no request"), "errory")],
    ids=["first", "while it waits", "after the answer"],
)
@on_uvloop
async def test_a_long_frame_before_ok_is_not_read_to_its_end(tmp_path: Path, before: bytes, result: str) -> None:
    """picows would read one of up to a MiB, for each of the thousands that may wait."""
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        client.write(before, frame(BINARY, bytes(1 << 20))[:-1])
        received = await client.rest()
        assert received.removeprefix(b"\x82\x0ebad handshake\n")[:1] == CLOSED
        assert live.results == [(result, 0)]


@pytest.mark.parametrize("relaying", [False, True], ids=["waiting", "relaying"])
@on_uvloop
async def test_a_close_is_answered_and_ends_the_pair(tmp_path: Path, *, relaying: bool) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        client.write(frame(BINARY, request()))
        if relaying:
            tcp = await live.ask()
            assert await client.read() == OK
            client.write(frame(BINARY, b"last"))
        client.bid_farewell(1000)
        if relaying:
            assert await tcp.rest() == b"ok\nlast"
        assert await client.closed() == 1000
        assert await client.ended()
        await until("the record", lambda: live.results == ([("happy", 4)] if relaying else [("lonely", 0)]))


@on_uvloop
async def test_websockets_are_pinged_while_they_wait_and_in_pairs(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        paired, waiting, tcp = await live.dial(), await live.dial(), await live.ask("p")
        paired.write(frame(BINARY, request("p")))
        waiting.write(frame(BINARY, request("w")))
        assert await paired.read() == OK
        await until("one waits", lambda: live.relay.waiting == 1)
        for _ in range(25):
            live.pass_time(1)
        assert await paired.read() == await waiting.read() == (PING, b"")
        waiting.write(frame(PONG))
        paired.write(frame(PONG), frame(PING, b"1"), frame(BINARY, b"on"))
        assert await tcp.reader.readexactly(5) == b"ok\non"
        assert await paired.read() == (PONG, b"1")
        assert live.relay.waiting == 1


def transport_of(live: LiveRelay) -> asyncio.Transport:
    """Return the relay's transport of the WebSocket that waits."""
    [side] = live.relay.waiting_sides()
    waiting = side.connection
    assert isinstance(waiting, connection.WebSocketConnection)
    assert waiting._transport is not None
    return connection.underlying(waiting._transport)


@on_uvloop
async def test_pongs_that_nobody_reads_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SECONDS_PER_FRAME", 0.0)
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        client.write(frame(BINARY, request()))
        await until("one waits", lambda: live.relay.waiting == 1)
        transport = transport_of(live)
        pings = frame(PING, bytes(125)) * 500
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):  # 13 MB, which is more than the buffers of the kernel
            client.write(pings)
            await client.writer.drain()
            assert transport.get_write_buffer_size() <= 1 << 16
        assert live.relay.waiting == 1


@on_uvloop
async def test_of_a_websocket_that_waits_few_frames_are_read_at_once(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        client.write(frame(BINARY, request()))
        await until("one waits", lambda: live.relay.waiting == 1)
        transport = transport_of(live)
        client.write(frame(PING) * 500)
        await until("it is not read", lambda: not transport.is_reading())
        assert [await client.read() for _ in range(500)] == [(PONG, b"")] * 500
        client.write(frame(PING) * 100)
        await until("it is not read", lambda: not transport.is_reading())
        tcp = await live.ask()
        while (received := await client.read()) != OK:
            assert received == (PONG, b"")
        tcp.write(b"bytes")
        while (received := await client.read()) != (BINARY, b"bytes"):
            assert received == (PONG, b"")
        client.write(frame(BINARY, b"back"))
        assert await tcp.reader.readexactly(7) == b"ok\nback"


@on_uvloop
async def test_a_close_may_come_with_many_frames(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.dial()
        with structlog.testing.capture_logs() as logged:
            client.write(frame(BINARY, request()), frame(PING) * 50, frame(CLOSE, b"\x03\xe8"))
            assert [await client.read() for _ in range(50)] == [(PONG, b"")] * 50
            assert await client.closed() == 1000
            assert await client.ended()
            await until("nothing is left", live.is_empty)
        assert (live.results, logged) == ([("lonely", 0)], [])


# ── where connections come from ──────────────────────────────────────────────────────────────────


@on_uvloop
async def test_tls_carries_lines_and_websockets(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    async with LiveRelay(tmp_path / "data", certificate=certificate).serving() as live:
        plain_port = await live.listen("plain:127.0.0.1:0")
        tls = certificate.client
        line_client = await live.ask("t", "a", ssl=tls)
        web = await live.dial(ssl=tls)
        web.write(frame(BINARY, request("t", "b")))
        assert await line_client.reader.readexactly(3) == b"ok\n"
        assert await web.read() == OK
        line_client.write(bytes(100_000))
        assert await payload(web, 100_000) == bytes(100_000)
        web.write(frame(BINARY, b"back"))
        assert await line_client.reader.readexactly(4) == b"back"

        secret, tcp = await live.ask("u", ssl=tls), await live.ask("u", port=plain_port)
        assert await secret.reader.readexactly(3) == await tcp.reader.readexactly(3) == b"ok\n"
        tcp.write(b"last")
        tcp.writer.write_eof()
        assert await secret.rest() == b"last"


@pytest.mark.parametrize("text", ["hello\n", request("t").decode() + "early"], ids=["bad handshake", "impatient"])
@on_uvloop
async def test_an_answer_over_tls_arrives_before_the_close(tmp_path: Path, text: str) -> None:
    certificate = Certificate(tmp_path)
    async with LiveRelay(tmp_path / "data", certificate=certificate).serving() as live:
        client = await live.connect(ssl=certificate.client)
        client.write(text.encode())
        assert await client.rest() in {b"bad handshake\n", b"impatient\n"}
        await until("nothing is left", lambda: live.server.reading_bytes == 0)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("begun", [b"", b"please rel", b"GET / HTTP/1.1\r\n"], ids=["nothing", "a line", "HTTP"])
@on_uvloop
async def test_a_request_has_one_limit_of_time_with_all_that_comes_before(
    tmp_path: Path, begun: bytes, *, secure: bool
) -> None:
    certificate = Certificate(tmp_path)
    limits = Limits(handshake=0.3)
    relay = LiveRelay(tmp_path / "data", limits=limits, certificate=certificate if secure else None)
    async with relay.serving() as live:
        client = await live.connect(ssl=certificate.client if secure else None)
        came = asyncio.get_running_loop().time()
        size = PENDING_BYTES + (IDLE_TLS_BYTES if secure else 0)
        await until("it is here", lambda: live.server.reading_bytes >= size)
        client.write(begun)
        if not secure and not begun.startswith(b"G"):
            live.pass_time(0.3)  # by the relay's clock
        assert await client.rest() == b""
        assert asyncio.get_running_loop().time() - came < 30
        await until("nothing is left", lambda: live.server.reading_bytes == 0)
        records = [] if begun.startswith(b"G") else [("empty", 0)]
        assert (live.results, live.refusals) == (records, {"handshake": 1})


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"], ids=["nothing", "a ClientHello"])
@on_uvloop
async def test_a_tls_handshake_that_does_not_end_in_time_is_counted_as_one_and_not_recorded(
    tmp_path: Path, begun: bytes
) -> None:
    relay = LiveRelay(tmp_path / "data", limits=Limits(handshake=0.3), certificate=Certificate(tmp_path))
    async with relay.serving() as live:
        client = await live.connect()
        client.write(begun)
        assert await client.rest() == b""
        assert (live.results, live.refusals) == ([], {"handshake": 1})
        assert live.server.failed_handshakes == bool(begun)


@on_uvloop
async def test_all_kinds_of_addresses(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    inherited = socket.create_server(("127.0.0.1", 0))
    async with LiveRelay(tmp_path / "data").serving() as live:
        second = await live.listen("127.0.0.1:0")
        await live.listen(f"unix:{path}")
        await live.listen(f"fd:{inherited.fileno()}")
        proxied = await live.listen("proxy:127.0.0.1:0")
        ports = [live.port, second, inherited.getsockname()[1]]
        clients = [await live.connect(port) for port in ports]
        clients.append(RawSocket(*await asyncio.open_unix_connection(str(path))))
        live.clients.append(clients[-1])
        for head in (header("203.0.113.7"), line("203.0.113.8")):
            clients.append(await live.connect(proxied))
            clients[-1].write(head)
        for number, client in enumerate(clients):
            client.write(request(str(number // 2)))
        for client, other in zip(clients[::2], clients[1::2], strict=True):
            assert await client.reader.readexactly(3) == await other.reader.readexactly(3) == b"ok\n"
            client.write(b"to the other")
            assert await other.reader.readexactly(12) == b"to the other"
    assert not path.exists()
    inherited.close()


@pytest.mark.parametrize("websocket", [False, True], ids=["PROXY", "X-Forwarded-For"])
@on_uvloop
async def test_records_and_limits_count_the_client_that_a_trusted_proxy_names(
    tmp_path: Path, *, websocket: bool
) -> None:
    limits = Limits(address_waiting=1)
    async with LiveRelay(tmp_path, limits=limits).serving() as live:
        port = await live.listen("proxy:127.0.0.1:0")

        async def come(address: str, token: str) -> RawSocket:
            if websocket:
                client = await live.dial(X_Forwarded_For=address)
                client.write(frame(BINARY, request(token)))
            else:
                client = await live.connect(port)
                client.write(line(address) + request(token))
            return client

        first = await come("203.0.113.7", "a")
        await until("one waits", lambda: live.relay.waiting == 1)
        refused = await come("203.0.113.7", "b")
        if websocket:
            assert await refused.closed() == 1013
        else:
            assert await refused.rest() == b""
        other = await come("203.0.113.8", "c")
        await until("two wait", lambda: live.relay.waiting == 2)
        for client in (first, other):
            client.cut()
        await until("both have gone", lambda: len(live.relay.records) == 2)
        address_ids = [record.address_id for record in live.relay.records]
        names = [live.server.admission.address_id((f"203.0.113.{number}", 0), 1e9) for number in (7, 8)]
        assert sorted(map(str, address_ids)) == sorted(names)


# ── other protocols ──────────────────────────────────────────────────────────────────────────────

GREETING: Final = b"Restante transit relay\n"


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", GREETING),
        (b"GET / HTTP/1.0\r\n\r\n", "200 OK", GREETING),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", b""),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", b""),
        (b"GET /x HTTP/1.0\r\n\r\n", "400 Bad Request", None),
    ],
)
@pytest.mark.parametrize("bite", [1, 1000], ids=["by bytes", "at once"])
@on_uvloop
async def test_monitors_are_answered(tmp_path: Path, sent: bytes, status: str, body: bytes | None, bite: int) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.connect()
        for start in range(0, len(sent), bite):
            client.write(sent[start : start + bite])
            await client.writer.drain()
            await asyncio.sleep(0)
        head, _, rest = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status}\r\n".encode())
        if body is not None:
            assert rest == body
        assert (live.results, live.refusals) == ([], {}), "a monitor is no client"


@pytest.mark.parametrize(
    ("sent", "answer", "result"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"HTTP/1.1 400 Bad Request", "errory"),
        (b"POST / HTTP/1.1\r\n\r\n", b"bad handshake\n", "errory"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"bad handshake\n", "errory"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", b"bad handshake\n", "errory"),
        (b"\n", b"bad handshake\n", "errory"),
        (b"\0" * 1024 + b"\n", b"bad handshake\n", "errory"),
        (b"x" * 1025, b"", "empty"),
        (header("203.0.113.7"), b"bad handshake\n", "errory"),
    ],
    ids=["TLS", "POST", "SSH", "PROXY", "an empty line", "zeros", "too long", "PROXY of version 2"],
)
@on_uvloop
async def test_lines_of_other_protocols_are_answered_and_closed(
    tmp_path: Path, sent: bytes, answer: bytes, result: str
) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        client = await live.connect()
        client.write(sent)
        received = await client.rest()
        assert received.startswith(answer)
        assert bool(received) == bool(answer)
        assert live.results == [(result, 0)]


@on_uvloop
async def test_a_port_of_tls_says_so_to_a_line(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path / "data", certificate=Certificate(tmp_path)).serving() as live:
        client = await live.ask()
        assert b"this port needs TLS" in await client.rest()


@on_uvloop
async def test_a_new_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    old = Certificate(tmp_path, name="old")
    async with LiveRelay(tmp_path / "data", certificate=old).serving() as live:
        first = await live.ask(ssl=old.client)
        await until("one waits", lambda: live.relay.waiting == 1)
        new = Certificate(tmp_path, name="new")
        live.server.certificate = ServerCertificate(new.path, new.path)
        second = await live.ask(ssl=new.client)
        assert await first.reader.readexactly(3) == await second.reader.readexactly(3) == b"ok\n"


# ── shortages ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", ["TCP", "TLS", "WebSocket", "WebSocket over TLS"])
@pytest.mark.parametrize("order", [1, -1], ids=["waits", "comes"])
@on_uvloop
async def test_a_pair_that_cannot_be_connected_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, order: int
) -> None:
    """A side over TCP needs one descriptor more for a moment."""
    certificate = Certificate(tmp_path)
    async with LiveRelay(tmp_path / "data", certificate=certificate).serving() as live:
        plain = await live.listen("plain:127.0.0.1:0")

        async def come(kind: str) -> RawSocket:
            where: dict[str, Any] = {"ssl": certificate.client} if "TLS" in kind else {"port": plain}
            if "WebSocket" not in kind:
                return await live.ask(**where)
            client = await live.dial(**where)
            client.write(frame(BINARY, request()))
            return client

        def no_descriptor(_descriptor: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        kinds = (first, "TCP")[::order]
        clients = [await come(kinds[0])]
        await until("one waits", lambda: live.relay.waiting == 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", no_descriptor)
            clients.append(await come(kinds[1]))
            for client in clients:
                assert b"ok" not in await client.rest()
        assert live.relay.refusal_counts.since_start == {NO_DESCRIPTORS.reason: 1}
        assert live.results == [("errory", 0)]
        await until("nothing is left", live.is_empty)
        await live.pair(port=plain)


@on_uvloop
async def test_a_pair_whose_sockets_cannot_be_watched_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = StreamPairs.watch

    def watch_one(pairs: StreamPairs, *arguments: Any) -> None:
        if pairs._watched:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        watch(pairs, *arguments)

    async with LiveRelay(tmp_path).serving() as live:
        with monkeypatch.context() as patch:
            patch.setattr(StreamPairs, "watch", watch_one)
            for client in [await live.ask(), await live.ask()]:
                assert await client.rest() in {b"", b"ok\n"}
        assert live.results == [("errory", 0)]
        await until("nothing is left", live.is_empty)
        await live.pair()


@on_uvloop
async def test_who_comes_while_descriptors_are_short_waits_in_the_kernel(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        listeners = live.server.listeners
        listeners.max_descriptor = descriptors(os.getpid()) + 40
        with structlog.testing.capture_logs() as logged:
            clients: list[RawSocket] = []
            while not logged:
                clients.append(await live.ask(str(len(clients) % 10)))
                await until("it is here or waits", lambda: live.server.opened == len(clients) or logged)
            assert "file descriptors are short" in logged.pop()["event"]
            late = await live.ask("x"), await live.ask("x")
            for client in clients:
                client.cut()
            await until("all have gone", live.is_empty)
            listeners.max_descriptor += 200
            await listeners.check_descriptors(0)
            assert logged.pop()["event"] == "new connections are accepted again"
        for client in late:
            assert await client.reader.readexactly(3) == b"ok\n"


@on_uvloop
async def test_a_full_disk_loses_records_but_no_bytes(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path, limits=Limits(free_disk=1 << 62)).serving() as live:
        with structlog.testing.capture_logs() as logged:
            for token in "ab":
                one, other = await live.pair(token)
                one.write(b"12345")
                assert await other.reader.readexactly(5) == b"12345"
                for client in (one, other):
                    client.cut()
                await until("nobody is here", live.is_empty)
                await live.recording.save()
            assert [line["event"] for line in logged] == [
                "usage records cannot be written; the relay goes on without them"
            ]
            assert (live.recording.lost_records, live.relay.records) == (2, [])
            assert records(live) == []
            live.server.apply_limits(Limits(free_disk=0))
            await live.recording.save()
            assert logged[-1] == {
                "event": "usage records are written again",
                "lost_since_start": 2,
                "log_level": "info",
            }
        assert live.store.traffic is not None
        assert live.store.traffic.month_bytes == 10, "the counts have always the same size"


@on_uvloop
async def test_a_disk_that_hangs_is_a_problem_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asyncio.Event()

    async def hang(*_arguments: object) -> None:
        await answers.wait()

    async with LiveRelay(tmp_path).serving() as live:
        with monkeypatch.context() as patch:
            patch.setattr(live.store, "save", hang)
            live.recording.save_soon()
            live.clock.now += recording.HANG_SECONDS
            live.recording.save_soon()
            assert live.recording.problem == "the disk hangs"
            patch.setattr(recording, "HANG_SECONDS", 0.01)
            assert not await live.recording.close()
            answers.set()
            assert await live.recording.close()
        assert live.recording.problem == ""


@on_uvloop
async def test_records_that_a_full_disk_refuses_wait_for_room(tmp_path: Path) -> None:
    async with LiveRelay(tmp_path).serving() as live:
        [[pages]] = live.store.database.execute("PRAGMA page_count")
        live.store.database.execute(f"PRAGMA max_page_count = {pages}")
        live.relay.records += [record()] * 1000
        await live.recording.save()
        assert (live.recording.problem, live.recording.lost_records) == (
            "the database refused: database or disk is full",
            0,
        )
        one, other = await live.pair()
        one.write(b"goes on")
        assert await other.reader.readexactly(7) == b"goes on"
        live.store.database.execute("PRAGMA max_page_count = 1000000")
        await live.recording.save()
        assert (live.recording.problem, live.recording.lost_records, len(records(live))) == ("", 0, 1000)


def records(live: LiveRelay) -> list[tuple[str, int]]:
    """Return the result and the bytes of all records that are saved."""
    return list(live.store.database.execute("SELECT result, total_bytes FROM transfers ORDER BY id"))


@on_uvloop
async def test_the_kernel_finds_out_whose_clients_are_gone(tmp_path: Path) -> None:
    """A pair may be silent for a day; nothing that strangers send keeps it open longer than its sides are there."""
    async with LiveRelay(tmp_path).serving() as live:
        await live.pair()
        ours = [client.writer.get_extra_info("sockname") for client in live.clients]
        connections = [socket.socket(fileno=os.dup(number)) for number in connected_to(ours)]
        assert len(connections) == 2
        for one in connections:
            with one:
                assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
                assert [one.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [60, 20, 6]


def connected_to(peers: list[Any]) -> list[int]:
    """Return the descriptors of this process whose sockets are connected to one of these addresses."""
    numbers = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this list is closed, and some sockets have no peer
            if str(link.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as connected:
                    if connected.getpeername() in peers:
                        numbers.append(int(link.name))
    return numbers
