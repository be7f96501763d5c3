"""The WebSocket shell: frames, HTTP, keep-alive, drain."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from restante.common.errors import Misuse
from restante.common.listening import listen_address
from restante.common.net import networks
from restante.mailbox.core.address_quotas import REFUSALS_PER_SECOND
from restante.mailbox.core.addresses import Client, identify
from restante.mailbox.core.admission import TOO_MANY_FROM_ADDRESS, Admission, AdmissionTerms
from restante.mailbox.core.connection_state import ConnectionState
from restante.mailbox.core.fair_queue import MAX_BACKLOG_COMMANDS
from restante.mailbox.core.limits import MIB, UNLIMITED
from restante.mailbox.core.quotas import TOO_MANY_RECORDS
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.descriptors import RESERVED_DESCRIPTORS
from restante.mailbox.server.first_request import END_OF_REQUEST, MAX_REQUEST_BYTES, READ_BYTES
from restante.mailbox.server.refusals import TOO_MANY_WITHOUT_REQUEST
from restante.mailbox.server.server import MAX_PINGS_PER_TURN, PING_INTERVAL_SECONDS, SILENCE_TIMEOUT_SECONDS
from restante.mailbox.server.system import system_secret
from restante.mailbox.server.welcome import WelcomeOptions
from support.bounds import BOUND
from support.loops import until
from support.mailbox.live import LiveServer, open_live
from support.mailbox.raw_socket import BINARY, CONTINUATION, PING, PONG, TEXT, RawSocket, frame, handshake
from support.proc import descriptors


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with open_live(tmp_path) as live:
        yield live


async def test_the_welcome_comes_first_and_tells_the_client_its_own_address(live: LiveServer) -> None:
    socket = await live.dial()
    welcome = await socket.hear()
    own = socket.writer.get_extra_info("sockname")
    assert welcome == {
        "type": "welcome",
        "welcome": {"your-address": {"ipv4": "127.0.0.1", "port": own[1]}},
        "server_tx": 1e9,
    }


def test_your_address_is_of_its_version_without_mapping_and_scope() -> None:
    for host, address in (("::ffff:192.0.2.1", {"ipv4": "192.0.2.1"}), ("fe80::1%eth0", {"ipv6": "fe80::1"})):
        welcome = msgspec.json.decode(WelcomeOptions().welcome(identify((host, 5, 0, 0), {}, ())) + b"}")["welcome"]
        assert welcome == {"your-address": {**address, "port": 5}}


async def test_fragments_without_end_are_not_kept(live: LiveServer) -> None:
    socket = await live.enter()
    socket.write(frame(TEXT, b" " * MIB, fin=False), frame(CONTINUATION, b" ", fin=False))
    assert (await socket.hear())["orig"] is None
    (kept,) = live.server.sockets()
    assert await socket.closed() == 1009
    socket.write(*(frame(CONTINUATION, b" " * 65536, fin=False) for _ in range(20)), frame(8, b"\x03\xf1"))
    assert await socket.ended()
    assert kept.fragments.size == 0
    socket = await live.enter()
    socket.write(frame(TEXT, b"{", fin=False), *(frame(CONTINUATION, fin=False) for _ in range(500)), frame(PING))
    assert await socket.read() == (PONG, b"")
    assert live.latest.fragments.size == 1, "empty fragments take no memory"


def connections() -> list[ConnectionState]:
    """Return all that there are; as long as they are held, those that other tests left are not collected."""
    return [each for each in gc.get_objects() if type(each) is ConnectionState]


@pytest.mark.parametrize("kind", ["refused", "lost"])
async def test_a_connection_that_is_over_leaves_no_reference_cycles(live: LiveServer, kind: str) -> None:
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for text in (b"no JSON", b'{"no": JSON}', b"[]", b"\xff", b"long" * 20_000):
            socket = await live.enter()
            if kind == "refused":
                socket.write(frame(TEXT, text))
                assert (await socket.hear())["type"] == "error"
                await socket.leave()
            else:
                socket.say(type="bind", appid="x", side="a")
                await socket.hear()
                await socket.hang_up()
        other = await live.enter()
        await other.is_served()  # the answer comes after the commit loop has taken note of the others
        await live.server.commit_loop.idle.wait()
        assert len(connections()) == len(before) + 1
    finally:
        gc.enable()


async def test_a_close_is_answered_with_a_close(live: LiveServer) -> None:
    for payload, code in ((b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"", 1000)):
        socket = await live.enter()
        socket.write(frame(8, payload))
        assert await socket.closed() == code
        assert await socket.ended()


async def test_frames_are_binary_and_the_welcome_says_more_if_the_operator_wants_it(tmp_path: Path) -> None:
    settings = {"motd": "hi", "current_cli_version": "9.9", "error": "closed today"}
    async with open_live(tmp_path, binary=True, **settings) as live:
        socket = await live.dial()
        opcode, payload = await socket.read()
        assert opcode == BINARY
        assert settings.items() <= msgspec.json.decode(payload)["welcome"].items()
        socket.say(type="ping", ping=1)  # served all the same
        assert [(await socket.read())[0] for _ in range(2)] == [BINARY, BINARY]


async def test_the_server_accepts_all_paths_that_the_reference_server_accepts(live: LiveServer) -> None:
    for path in ("/v1", "/v1/", "/v1/x", "/v1?x=1"):
        socket = await live.dial(path, Connection="keep-alive, Upgrade")  # as Firefox says it
        assert (await socket.hear())["type"] == "welcome", path
    assert (await live.dial("/")).status == "HTTP/1.1 200 OK", "the greeting is no WebSocket"


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET / HTTP/1.1", "200 OK", "Wormhole Relay\n"),
        ("HEADS / HTTP/1.1", "400 Bad Request", None),
        ("HEAD / HTTP/1.1", "200 OK", ""),
        ("HEAD /?x=1 HTTP/1.1", "200 OK", ""),
        ("HEAD /v1 HTTP/1.1", "400 Bad Request", ""),
        ("HEAD /else HTTP/1.1", "404 Not Found", ""),
        ("HEAD / HTTP/1.0", "400 Bad Request", ""),
        ("HEAD /", "400 Bad Request", ""),
        ("HE", "400 Bad Request", None),
        ("HEAD /".ljust(MAX_REQUEST_BYTES + len(END_OF_REQUEST), "/"), "431 Request Header Fields Too Large", None),
    ],
)
async def test_plain_http_is_answered(live: LiveServer, request_line: str, status: str, body: str | None) -> None:
    """hostile/test_handshakes.py has many others."""
    socket = await live.connect()
    socket.write(f"{request_line}\r\nHost: x\r\n\r\n".encode())
    head, _, rest = (await socket.rest()).decode().partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status}\r\n")
    assert body in {rest, None}
    assert status != "200 OK" or "\r\nContent-Length: 15" in head, "also for HEAD"


async def test_too_much_with_a_handshake_is_not_read(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.server.commit_loop.queue, "gather", lambda *_: [])
    socket = await live.connect()
    said = handshake() + frame(TEXT, b"{}") * 2 * MAX_BACKLOG_COMMANDS
    assert len(said) < READ_BYTES, "it is read at once"
    socket.write(said)
    await until("the handshake", live.server.sockets)
    transport = live.latest._open()
    assert transport is not None
    assert not transport.is_reading()
    monkeypatch.undo()
    async with asyncio.timeout(BOUND):
        await socket.reader.readuntil(b"\r\n\r\n")
    assert (await socket.hear())["type"] == "welcome"
    live.server.commit_loop._wake_up()
    for _ in range(2 * MAX_BACKLOG_COMMANDS):
        assert (await socket.hear())["type"] == "error"


async def test_a_silent_connection_is_pinged_and_dropped_after_ten_minutes(live: LiveServer) -> None:
    silent, alive = await live.enter(), await live.enter()
    assert 2 * PING_INTERVAL_SECONDS < 60, "a default nginx closes what was silent for 60 s; with one ping all were"
    for second in range(1, SILENCE_TIMEOUT_SECONDS + PING_INTERVAL_SECONDS + 1):
        live.server.tick()
        if second % PING_INTERVAL_SECONDS == 0:
            assert await alive.read() == (PING, b"")
            alive.write(frame(PONG))
            await alive.is_served()  # the pong was read
            if second <= SILENCE_TIMEOUT_SECONDS:
                assert await silent.read() == (PING, b"")
    assert await silent.ended()
    assert len(live.server.sockets()) == 1


async def test_pings_due_at_once_are_sent_over_several_turns(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To send one takes 9 µs, and the connections of the same second may be thousands."""
    pinged = list[Socket]()
    monkeypatch.setattr(Socket, "ping", lambda socket: pinged.append(socket))  # noqa: PLW0108 - a method is bound
    live.server.buckets[1] = {Socket(live.server) for _ in range(2 * MAX_PINGS_PER_TURN + 1)}
    live.server.tick()
    turns = [len(pinged)]
    for _ in range(2):
        await asyncio.sleep(0)
        turns.append(len(pinged))
    live.server.buckets[1].clear()
    assert turns == [MAX_PINGS_PER_TURN, 2 * MAX_PINGS_PER_TURN, 2 * MAX_PINGS_PER_TURN + 1]


async def test_refused_connections_that_still_clean_up_are_closed_with_1001_in_a_drain(live: LiveServer) -> None:
    live.server.cleanup_seconds = 3600.0
    socket = await live.enter()
    [theirs] = live.server.sockets()
    theirs.hang_up(1008, "must bind first")
    theirs.hang_up(1008, "once is enough")
    await live.server.drain(live.running)
    assert await socket.closed() == 1001


async def test_a_port_in_use_is_reported_in_one_sentence(live: LiveServer) -> None:
    with pytest.raises(Misuse, match=rf"cannot listen on 127.0.0.1:{live.port}: .*in use.* \(--listen\)"):
        await live.server.listeners.listen(listen_address(f"127.0.0.1:{live.port}", "--listen"))


BUGS = {"server.server.Socket._take_frame": [], "core.dispatcher.decide": ["ack", "error"]}
"""Where a bug is, and what its client is told before the end."""


@pytest.mark.parametrize("where", BUGS)
async def test_a_bug_closes_one_connection(live: LiveServer, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    first, second = await live.enter(), await live.enter()
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(f"restante.mailbox.{where}", broken)
        first.say(type="ping", ping=1)
        messages, code = await first.last_words()
    assert ([message["type"] for message in messages], code) == (BUGS[where], 1011)
    assert not messages or messages[-1]["error"] == "internal error"
    [line] = logs
    assert line["fault"].startswith("ZeroDivisionError < test_server.py")
    await second.is_served()


async def test_refusals_beyond_the_ten_most_frequent_are_logged_in_one_line(live: LiveServer) -> None:
    quotas = live.server.commit_loop.dispatcher.quotas
    for number in range(12):
        for _ in range(12 - number):
            quotas.count_refusal("too many", f"address {number}")
    with structlog.testing.capture_logs() as logged:
        live.server.commit_loop.log_refusals()
        live.server.commit_loop.log_refusals()
    *named, others = logged
    assert [(line["address"], line["times"]) for line in named] == [
        (f"address {number}", 12 - number) for number in range(10)
    ]
    assert others == {"event": "other refusals", "log_level": "warning", "times": 2 + 1, "pairs": 2}


async def test_usage_records_that_are_left_out_are_logged(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    abroad = Client(IPv4Address("8.8.8.8"), 1, counted=True)
    monkeypatch.setattr("restante.mailbox.core.admission.identify", lambda *_: abroad)
    server = live.server
    server.apply_settings(
        server.welcome_options, server.admission.terms, replace(server.limits, address_records=1)
    )  # the record of the bind is stored, and of what ends, none is
    for _ in range(2):
        socket = await live.enter()
        socket.say(type="bind", appid="x", side="a")
        socket.say(type="claim", nameplate="4")
        socket.say(type="release", nameplate="4")
        while (await socket.hear())["type"] != "released":
            pass
        await socket.leave()
    with structlog.testing.capture_logs() as logged:
        server.commit_loop.log_refusals()
        server.commit_loop.log_refusals()
    [refusal, total] = logged
    named = server.admission.addresses.day_id(abroad.address, 1e9)
    assert (refusal["words"], refusal["times"], refusal["address"]) == (TOO_MANY_RECORDS, 3, named)
    assert total["event"] == "usage records were left out"
    assert (total["records"], total["since_start"]) == (3, 3)


async def test_connections_without_a_request_are_limited(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    abroad = Client(IPv4Address("8.8.8.8"), 1, counted=True)
    monkeypatch.setattr("restante.mailbox.core.admission.identify", lambda *_: abroad)
    server = live.server
    server.admission.limits = replace(server.limits, address_connections=3)

    async def until_asking(number: int) -> None:
        quotas = server.admission.addresses.quotas
        asking = f"{number} connections that ask for nothing"
        await until(asking, lambda: sum(quota.pending_requests for quota in quotas.values()) == number)

    silent = [await live.connect() for _ in range(3)]
    for socket, request in zip(silent, (b"", b"G", b"HEAD / HT"), strict=True):
        socket.write(request)
    await until_asking(3)
    refused = server.commit_loop.dispatcher.quotas.refused
    assert not refused
    late = await live.connect()
    assert await late.rest() == b""
    assert set(refused) == {(TOO_MANY_WITHOUT_REQUEST, server.admission.addresses.day_id(abroad.address, 1e9))}

    silent[0].write(handshake())  # asks, and is in
    await silent[0].reader.readuntil(b"\r\n\r\n")
    assert (await silent[0].hear())["type"] == "welcome"
    silent[1].write(b"ET / HTTP/1.1\r\n\r\n")
    assert (await silent[1].rest()).startswith(b"HTTP/1.1 200 OK")
    silent[2].cut()
    await until_asking(0)


# ── descriptors ──────────────────────────────────────────────────────────────────────────────────


async def test_a_few_free_descriptors_are_not_enough_to_take_connections_again(tmp_path: Path) -> None:
    """The listening socket that was closed frees one, and a single one would let a whole queue in."""
    async with open_live(tmp_path) as live:
        live.server.listeners.most = 2 * RESERVED_DESCRIPTORS + descriptors(os.getpid())
        with structlog.testing.capture_logs() as logged:
            came: list[RawSocket] = []
            while not logged:
                came.append(await live.enter())  # each takes two descriptors: one here, and one there
            assert "file descriptors are short" in logged.pop()["event"]
            for _ in range(3):
                await live.server.listeners.check_descriptors(len(live.server.admitted))
            assert not logged
            inside = len(came)
            while not logged:
                await came.pop().leave()
                await live.server.listeners.check_descriptors(len(live.server.admitted))
            assert logged.pop()["event"] == "new connections are accepted again"
            assert inside - len(came) == pytest.approx(RESERVED_DESCRIPTORS / 2, abs=3)
            await live.enter()


async def test_of_many_refused_connections_some_may_clean_up_and_all_are_counted(tmp_path: Path) -> None:
    admission = Admission(AdmissionTerms(trusted=networks(["127.0.0.0/8"], "--trust-proxy")), system_secret)
    limits = replace(UNLIMITED, address_connections=1)
    async with open_live(tmp_path, admission=admission, limits=limits) as live:
        sockets = [await live.dial(X_Forwarded_For="8.8.8.8")]
        sockets += [await live.dial(X_Forwarded_For="8.8.8.8") for _ in range(REFUSALS_PER_SECOND)]
        at_once = [await live.dial(X_Forwarded_For="8.8.8.8") for _ in range(5)]
        for socket in at_once:
            await socket.rest()  # to its end; the others have a second
        assert len(live.server.sockets()) == len(sockets)
        await live.server.commit_loop.idle.wait()
        refused = live.server.commit_loop.dispatcher.quotas.refused
        assert [words for words, _ in refused] == [TOO_MANY_FROM_ADDRESS]
        assert refused.total() == REFUSALS_PER_SECOND + 5
