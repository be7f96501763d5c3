"""Ways to a server: TLS, proxies, work that it demands, slow readers, and servers that are killed and come back."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, AsyncMock, Mock

import pytest

from client.liar import NO_ROOM, carry, honest, instead_of, listening, lying
from client.live import Heard, meet, read, url_of, use, wormhole
from restante import client
from restante.client import ConnectionOptions
from restante.client.connection import driver, websocket, work
from restante.mailbox.protocol.hashcash import Demand, problem
from restante.mailbox.store import backup
from support.bounds import bounded
from support.certificates import Certificate
from support.mailbox.servers import Reference, Restante, Server
from support.ports import nobodys_port

NOWHERE = "ws://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _no_delay_and_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    monkeypatch.setattr(driver, "delay_before", lambda *_: 0.02)
    yield
    assert caplog.messages == []


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


async def exchange(alice: client.Wormhole, bob: client.Wormhole) -> None:
    async with alice, bob:
        await meet(alice, bob)
        await alice.send(bytes(100_000))
        assert await read(bob, 1) == [bytes(100_000)]


async def test_the_certificates_of_the_system_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read_certificates = Mock(wraps=ssl.create_default_context)
    monkeypatch.setattr(ssl, "create_default_context", read_certificates)
    websocket._system_tls.cache_clear()
    async with lying(honest, Certificate(tmp_path).server) as liar:
        for _ in range(2):
            with pytest.raises(client.ServerGoneError, match="certificate is not valid"):
                await use(wormhole(liar.url))
    read_certificates.assert_called_once()


@pytest.mark.parametrize(
    ("days", "trusted", "reason"),
    [(1, False, r"certificate is not valid \(self.signed"), (1, True, ""), (-1, True, "expired")],
)
async def test_only_a_valid_certificate_that_the_program_trusts_is_accepted(
    tmp_path: Path, days: int, trusted: bool, reason: str
) -> None:
    certificate = Certificate(tmp_path, days=days)
    options = {"ssl": certificate.client} if trusted else {}
    async with lying(honest, certificate.server) as liar:
        if reason:
            with pytest.raises(client.ServerGoneError, match=reason):
                await use(wormhole(liar.url, **options))
            await assert_that_what_waits_tries_again(tmp_path / "x", liar.url, **options)
        else:
            await exchange(*(wormhole(liar.url, **options) for _ in range(2)))


AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
USUAL = "check its host and port$"
NO_SERVERS = [
    (b"HTTP/1.1 404 Not Found\r\n\r\n", r"not a mailbox server \(HTTP status 404\): write ws://127.0.0.1:\d+/v1$"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", USUAL),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", USUAL),
    (b"HTTP/1.0 200 OK\r\n\r\nhello", USUAL),
    (b"HTTP/1.1 301 Moved\r\nLocation: https://a.example/v1?b#c\r\n\r\n", "redirects: write wss://a.example/v1$"),
    (b"HTTP/1.0 302 Found\r\nlocation: //a\x1b/" + b"v" * 500 + b"\r\n\r\n", r": write ws://a\\x1b/v{191}…$"),
    (b"HTTP/1.1 308 Moved\r\nLocation: //me:secret@a.example\r\n\r\n", "redirects: write ws://a.example$"),
    (b"HTTP/1.1 307 Moved\r\nLocation: http://[::1/v1\r\n\r\n", "redirects, but to no other mailbox server: check"),
    (b"HTTP/1.1 426 Upgrade Required\r\n\r\n", r"write wss://\S+/v1 if it has TLS, or .* Upgrade and Connection$"),
    (b"HTTP/1.1 400 Bad\r\n\r\nclient sent an HTTP request to an HTTPS server", r"TLS: write wss://\S+/v1$"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\nthis port needs TLS: wss://\n", r"TLS: write wss://\S+/v1$"),
    (b"HTTP/1.1 501 Not Implemented\r\n\r\n", r"is not a mailbox server \(.*501.*: check its host and port$"),
    (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "demands a login, which no mailbox client sends: ask"),
    (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "name it as the proxy, like http://USER:PASSWORD@HOST"),
    (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, USUAL),
    *((AGREED + accept, USUAL) for accept in (b"\r\n", b"Sec-WebSocket-Accept: AAAA\r\n\r\n")),
    (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", r"not a mailbox server \(.*ssh-2.0-openssh_9.2.*: check"),
]
HUNG_UP = r"without an answer in HTTP: check its host and port, write wss://\S+/v1 if it has TLS, or try again later$"
NOT_NOW = [
    (b"", HUNG_UP),
    (b"\x15\x03\x01\x00\x02\x02\x46", HUNG_UP),  # an alert of TLS
    (b"SSH-2.0-OpenSSH_9.2\r\n", HUNG_UP),
    (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "answered with HTTP status 503$"),
    (b"HTTP/1.0 429 Too Many Requests\r\n\r\n", "answered with HTTP status 429$"),
    (b"HTTP/1.1 521 Origin Down\r\n\r\n", "answered with HTTP status 521$"),
]


def answering(answer: bytes | None) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
            await writer.drain()

    return listening(serve)


async def assert_that_what_waits_tries_again(path: Path, url: str, **options: Any) -> None:
    options |= {"server": url, "on_event": (heard := Heard())}
    async with client.Journal[dict[str, str]](path, {}) as journal:
        for patient in (
            journal.wormhole("peer", "example.com/test", **options),
            client.Wormhole.create("example.com/test", wait=True, **options),
        ):
            heard.events.clear()
            with pytest.raises(client.ServerGoneError):
                async with bounded("the end"), patient:
                    await heard.until(client.Reconnecting, 2)


@pytest.mark.parametrize(
    ("scheme", "answer", "message"),
    [
        *(("ws", answer, message) for answer, message in (*NO_SERVERS, *NOT_NOW)),
        *((scheme, None, "did not answer within .* s: check its host and port, write ") for scheme in ("ws", "wss")),
        ("wss", b"HTTP/1.1 400 Bad Request\r\n\r\n", r"securely: TLS failed .*it has no TLS: write ws://\S+/v1$"),
        ("wss", b"", r"closed during the TLS handshake: check .* write ws://\S+/v1 if it has no TLS, or try again"),
        *(
            (proxy, answer, "cannot connect to")
            for proxy in ("http", "socks5", "socks4")
            for answer in (b"", b"garbage\r\n\r\n", b"x" * 1_000_000, b"HTTP/1.1 403 Forbidden\r\n\r\n")
        ),
    ],
)
async def test_what_is_no_server_or_no_proxy_is_an_error_and_what_waits_tries_again(
    tmp_path: Path, scheme: str, answer: bytes | None, message: str
) -> None:
    limits: Any = {"options": ConnectionOptions(connect_seconds=0.1 if answer is None else 2.0)}
    async with answering(answer) as port:
        url = f"{scheme}://127.0.0.1:{port}{'' if 'write ws://127' in message else '/v1'}"
        if scheme[0] != "w":
            url, limits = NOWHERE, limits | {"proxy": url.removesuffix("/v1")}
        for program in (wormhole(url, **limits), wormhole(url, **limits)._entered_at_once()):
            with pytest.raises(client.ServerGoneError, match=message):
                await use(program)
        await assert_that_what_waits_tries_again(tmp_path / "x", url, **limits)


async def test_a_program_names_itself_to_the_server_and_logs_where_it_wants(caplog: pytest.LogCaptureFixture) -> None:
    requests: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    caplog.set_level(logging.DEBUG, "chat")
    options = ConnectionOptions(user_agent="chat/1.0", logger=logging.getLogger("chat"))
    async with listening(serve) as port:
        with pytest.raises(client.ServerGoneError):
            await use(wormhole(f"ws://127.0.0.1:{port}/v1", options=options))
    assert b"\r\nUser-Agent: chat/1.0\r\n" in requests.get_nowait()
    assert {record.name for record in caplog.records} == {"chat"}


async def test_a_server_that_stays_busy_is_an_error_after_a_while() -> None:
    options = ConnectionOptions(connect_seconds=0.2)
    async with lying(instead_of("welcome", NO_ROOM)) as liar:
        with pytest.raises(client.ServerGoneError, match=r"no connection within 0.2 s: .*'no room'"):
            await use(wormhole(liar.url, options=options))
    assert liar.connections > 1


async def test_leaving_a_journaled_wormhole_says_that_no_server_has_answered(tmp_path: Path) -> None:
    options = ConnectionOptions(close_seconds=0.1)
    async with answering(None) as port, client.Journal[dict[str, str]](tmp_path / "journal", {}) as journal:
        alice = journal.wormhole("peer", "x", server=f"ws://127.0.0.1:{port}/v1", options=options)
        with pytest.raises(client.ServerGoneError, match="no server has answered: the journal keeps"):
            async with bounded("the end"), alice:
                await alice.set_code("1-code")


async def test_what_waits_asks_for_a_name_again_that_is_unknown_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, unknown = Heard(), socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    answers = chain([unknown, unknown], repeat(DEFAULT))
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=answers, wraps=socket.getaddrinfo))
    async with (
        lying(honest) as liar,
        wormhole(f"ws://localhost:{liar.port}/v1", wait=True, on_event=heard) as alice,
        bounded("names"),
    ):
        assert await alice.nameplates() == []
    assert len(heard.of(client.Reconnecting)) == 2


class Proxy:
    """A SOCKS5 or HTTP proxy with the login user:secret. It lets nobody pass who has another one."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a CONNECT (RFC 9110, section 9.3.6; RFC 7617)."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b" ", 2)
        assert method == b"CONNECT"
        if b"Basic dXNlcjpzZWNyZXQ=" not in head:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        await self._forward(reader, writer, target.decode(), b"HTTP/1.1 200 Connected\r\n\r\n")

    async def socks5(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connect (RFC 1928, RFC 1929)."""
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x02")
        user = await reader.readexactly((await reader.readexactly(2))[1])
        password = await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x01\x00")
        *head, kind = await reader.readexactly(4)
        host, port = ".".join(map(str, await reader.readexactly(4))), int.from_bytes(await reader.readexactly(2))
        assert (head, kind) == ([5, 1, 0], 1)
        if (user, password) != (b"user", b"secret"):
            writer.write(b"\x05\x02\x00\x01" + bytes(6))
            return
        await self._forward(reader, writer, f"{host}:{port}", b"\x05\x00\x00\x01" + bytes(6))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, answer: bytes
    ) -> None:
        self.targets.append(target)
        beyond_reader, beyond_writer = await asyncio.open_connection(*target.split(":"))
        writer.write(answer)
        await asyncio.gather(carry(reader, beyond_writer), carry(beyond_reader, writer))


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_two_sides_meet_through_a_proxy_with_a_login(tmp_path: Path, scheme: str) -> None:
    certificate, proxy = Certificate(tmp_path), Proxy()
    async with lying(honest, certificate.server) as liar, listening(getattr(proxy, scheme)) as port:
        options = {"ssl": certificate.client, "proxy": f"{scheme}://user:secret@127.0.0.1:{port}"}
        await exchange(*(wormhole(liar.url, **options) for _ in range(2)))
        assert proxy.targets == [f"127.0.0.1:{liar.port}"] * 2
        with pytest.raises(client.ServerGoneError, match="through the proxy"):
            await use(wormhole(NOWHERE, proxy=f"{scheme}://user:wrong@127.0.0.1:{port}"))
    with pytest.raises(client.ServerGoneError, match=r"cannot connect to.*through the proxy.*refused"):
        await use(wormhole(NOWHERE, proxy=f"{scheme}://127.0.0.1:{nobodys_port()}"))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    started: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    return started


def demanding(hashcash: Any) -> Any:
    permissions = {"none": None, "hashcash": hashcash}
    return instead_of("welcome", {"type": "welcome", "welcome": {"permission-required": permissions}})


@pytest.mark.parametrize("bits", [0, 1, 9, work.BITS_IN_PROCESS, work.BITS_IN_PROCESS + 1, 17])
async def test_a_stamp_is_one_that_the_server_accepts(bits: int, processes: list[Process]) -> None:
    async with bounded("a stamp"):
        stamp = await work.find_stamp(bits, "resource", lambda _: None)
    assert problem(Demand(bits, "resource"), "hashcash", stamp) is None
    assert bool(processes) == (bits > work.BITS_IN_PROCESS)
    assert all(process.returncode is not None for process in processes)


async def test_work_is_reported_and_ends_with_a_close(processes: list[Process]) -> None:
    heard = Heard()
    async with lying(demanding({"bits": 60, "resource": "r"})) as liar:
        alice = wormhole(liar.url, max_work_bits=60, on_event=heard)
        async with alice:
            await heard.until(client.Working, 2)
            async with bounded("the close"):
                await alice.close()
            assert processes
            assert all(process.returncode is not None for process in processes)
    first, second = heard.of(client.Working)[:2]
    assert (first.bits, first.expected_hashes) == (60, 2**60)
    assert 0 < first.hashes < second.hashes
    assert 0 <= first.seconds <= second.seconds <= time.monotonic()


@pytest.mark.parametrize(
    ("hashcash", "message"),
    [
        ({"bits": work.DEFAULT_MAX_BITS + 1, "resource": "r"}, None),
        ({"bits": 10**30, "resource": "r"}, None),
        ({"bits": 1, "resource": "with:colon"}, None),
        ({"bits": 20, "resource": "with\0zero"}, None),
        (None, None),
        ({"bits": 20, "resource": "r"}, "cannot start a process"),
    ],
)
async def test_work_that_cannot_be_done_is_an_error(
    monkeypatch: pytest.MonkeyPatch, hashcash: Any, message: str | None
) -> None:
    fails = AsyncMock(side_effect=BlockingIOError(11, "Resource temporarily unavailable"))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
    async with lying(demanding(hashcash)) as liar:
        with pytest.raises(client.PermissionNeededError, match=message):
            await use(wormhole(liar.url))
    assert fails.called == bool(message)


async def test_a_task_that_is_cancelled_while_it_connects_leaves_nothing_open(tmp_path: Path) -> None:
    tls = Certificate(tmp_path).client
    async with Restante(tmp_path / "server").running() as server:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            nobody = f"127.0.0.1:{silent.getsockname()[1]}/v1"
            before = open_files(), asyncio.all_tasks()
            for url, options in ((url_of(server), {}), (f"ws://{nobody}", {}), (f"wss://{nobody}", {"ssl": tls})):
                for steps in range(0, 60, 2):
                    task = asyncio.create_task(use(wormhole(url, **options)))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    assert (open_files(), asyncio.all_tasks()) == before


async def test_a_reader_that_pauses_is_not_taken_for_a_lost_connection_and_outlives_one() -> None:
    options = ConnectionOptions(max_unread_messages=20, ping_seconds=1.0)
    messages, heard = [b"%d" % number + bytes(20_000) for number in range(300)], Heard()
    async with lying(honest) as liar, wormhole(liar.url) as alice:
        liar.answers_pings = True
        async with wormhole(liar.url, on_event=heard, options=options) as bob:
            await meet(alice, bob)
            for message in messages:
                await alice.send(message)
            async with bounded("pings"):
                for _ in range(3):  # without an answer to the first, the second would not come
                    while await liar.pings.get() != 2:
                        pass
            assert liar.writer(2).transport.get_write_buffer_size() > 0  # bob reads no more
            assert heard.of(client.Reconnecting) == []
            liar.writer(2).transport.abort()
            await heard.until(client.Reconnecting)
            assert await read(bob, 300) == messages


@pytest.mark.parametrize(
    ("kind", "event", "count"),
    [
        (Restante, client.WaitingForPeer, 1),
        (Restante, client.MessageStored, 17),
        (Reference, client.MessageStored, 1),
        pytest.param(Restante, client.KeyAgreed, 1, marks=pytest.mark.thorough),
        pytest.param(Reference, client.WaitingForPeer, 1, marks=pytest.mark.thorough),
    ],
)
async def test_a_server_that_is_killed_and_comes_back_loses_nothing(
    tmp_path: Path, kind: type[Server], event: type[Any], count: int
) -> None:
    heard, restarting = (Heard(), Heard()), list[asyncio.Task[None]]()

    def kill(news: client.Event) -> None:
        heard[0](news)
        if len(heard[0].of(event)) == count and not restarting:
            running.kill()
            restarting.append(asyncio.create_task(running.restart()))

    messages = [b"%d" % number for number in range(20)]
    async with (
        kind(tmp_path / "server").running() as running,
        wormhole(url_of(running), on_event=kill) as alice,
        wormhole(url_of(running), on_event=heard[1]) as bob,
    ):
        await bob.nameplates()  # its first connection, which must succeed
        code = await alice.allocate_code()
        if event is client.WaitingForPeer:
            await heard[0].until(client.WaitingForPeer)
        async with bounded("everything, over a killed server"):
            await bob.set_code(code)
            for message in messages:
                await alice.send(message)
                await bob.send(message)
            assert await read(bob, 20) == await read(alice, 20) == messages
            await asyncio.gather(*restarting, alice.flush(), bob.flush())
            await asyncio.gather(alice.close(), bob.close())
        assert len(restarting) == 1
        for events in heard:
            assert Counter(stored.number for stored in events.of(client.MessageStored)) == Counter(range(20))
        assert running.live() == {}


@pytest.mark.parametrize("mailbox_is_in_it", [True, False])
async def test_clients_add_again_what_a_backup_lacks(tmp_path: Path, mailbox_is_in_it: bool) -> None:
    heard, data, copy = Heard(), tmp_path / "server" / "data", tmp_path / "copy"
    back_up = partial(backup.back_up, data, copy, lambda _: None)
    async with (
        Restante(tmp_path / "server").running() as server,
        wormhole(url_of(server), on_event=heard) as alice,
        wormhole(url_of(server)) as bob,
    ):
        if not mailbox_is_in_it:
            await asyncio.to_thread(back_up)
        await meet(alice, bob)
        await alice.send(b"before")
        assert await read(bob, 1) == [b"before"]
        if mailbox_is_in_it:
            await asyncio.to_thread(back_up)
        for number in range(5):
            await alice.send(b"%d" % number)
        await heard.until(client.MessageStored, 6)
        server.kill()
        data.rename(tmp_path / "damaged")
        await asyncio.to_thread(backup.restore, copy, data, lambda _: None)
        await server.restart()
        await heard.until(client.Reconnecting)
        await bob.send(b"after")
        assert await read(alice, 1) == [b"after"]
        assert await read(bob, 5) == [b"%d" % number for number in range(5)]
        await asyncio.gather(alice.close(), bob.close())
        assert server.live() == {}


@pytest.fixture
async def reference(tmp_path: Path) -> AsyncIterator[Server]:
    async with Reference(tmp_path / "server").running() as running:
        yield running


async def test_two_sides_exchange_messages_with_receipts_there_and_meet_again(reference: Server) -> None:
    url = url_of(reference)
    async with wormhole(url, receipts=True, seeds=True) as alice, wormhole(url, receipts=True, seeds=True) as bob:
        await meet(alice, bob)
        sent = [await alice.send(b"%d" % number) for number in range(50)]
        assert await read(bob, 50) == [b"%d" % number for number in range(50)]
        async with bounded("the receipt"):
            await sent[-1].delivered()
        seed = await alice.seed()
        assert seed == await bob.seed()
        await asyncio.gather(alice.close(), bob.close())
    async with wormhole(url) as alice, wormhole(url) as bob, bounded("another meeting"):
        await asyncio.gather(*(side.set_code(client.seed_code(seed)) for side in (alice, bob)))
        await alice.send(b"hello again")
        assert await bob.receive() == b"hello again"
        with pytest.raises(client.NoSeedError):
            await alice.seed()
        await asyncio.gather(alice.close(), bob.close())
    assert reference.usage() == (["happy", "happy"], ["happy", "happy"])
    assert reference.live() == {}


async def test_a_third_side_gives_back_the_number_that_it_did_not_get_there(reference: Server) -> None:
    url = url_of(reference)
    async with wormhole(url) as alice, wormhole(url) as bob, wormhole(url) as carol:
        code = await alice.allocate_code()
        await alice.nameplates()
        await bob.set_code(code)
        await bob.nameplates()  # the claims before are answered
        await carol.set_code(code)
        async with bounded("the refusal"):
            with pytest.raises(client.CrowdedError):
                await carol.verifier()
    async with wormhole(url) as later:
        assert await later.nameplates() == []
