"""Behind a real nginx, HAProxy and Caddy, set up as docs/mailbox/operating.md says, with and without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from support.bounds import bounded
from support.certificates import Certificate
from support.mailbox.live import open_live
from support.mailbox.raw_socket import PING, PONG, RawSocket, frame, handshake
from support.mailbox.reverse_proxies import BEHIND, DIRECT, NGINX_LIMIT, Setup, behind_haproxy, running_fronts
from support.mailbox.wormhole import Client
from support.processes import serving

TEXT: Final = "held until called for"

SECONDS: Final = 4
"""The time limit of proxies. The time between our pings is shortened alike."""


@pytest.mark.parametrize("proxy", BEHIND)
async def test_a_client_is_served_and_has_an_address_of_its_own(tmp_path: Path, proxy: str) -> None:
    """The address of its connection to the proxy, whatever a header of its own says."""
    async with (
        serving(tmp_path / "data", options=("--trust-proxy", "127.0.0.1/32")) as server,
        BEHIND[proxy](tmp_path, Setup(server.port)) as port,
    ):
        socket = RawSocket(*await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))
        socket.write(handshake(X_Forwarded_For="203.0.113.9"))
        async with bounded("an answer"):
            await socket.reader.readuntil(b"\r\n\r\n")
        assert (await socket.hear())["welcome"]["your-address"] == {"ipv4": "127.0.0.2", "port": 0}
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()


@pytest.mark.parametrize("front", [DIRECT, *(pytest.param(name, marks=pytest.mark.thorough) for name in BEHIND)])
async def test_a_text_arrives_over_tls(tmp_path: Path, front: str) -> None:
    """From one `wormhole` to another. Other clients are in test_clients.py."""
    async with running_fronts(tmp_path, [front]) as fronts, AsyncExitStack() as ends:

        async def start(name: str, *command: str) -> Client:
            (tmp_path / name).mkdir()
            started = await Client.start(tmp_path / name, fronts.url(front), *command, **fronts.certificate.trust)
            ends.push_async_callback(started.end)
            return started

        sender = await start("sender", "send", "--no-qr", "--text", TEXT)
        receiver = await start("receiver", "receive", await sender.code())
        assert [(await each.leaves()).exit_code for each in (receiver, sender)] == [0, 0], (
            receiver.said,
            sender.said,
        )
        assert receiver.said["stdout"] == f"{TEXT}\n"


async def test_a_client_that_does_not_trust_the_certificate_sends_nothing(tmp_path: Path) -> None:
    async with running_fronts(tmp_path, [DIRECT]) as fronts:
        (tmp_path / "other").mkdir()
        trust = Certificate(tmp_path / "other").trust
        sender = await Client.start(tmp_path, fronts.url(DIRECT), "send", "--text", TEXT, **trust)
        try:
            assert (await sender.leaves()).exit_code == 1, sender.said
            assert "code is" not in sender.said["stderr"]
        finally:
            await sender.end()


@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.thorough), True])
async def test_a_proxy_of_tcp_names_the_client_in_a_proxy_header(tmp_path: Path, tls: bool) -> None:
    """The client's address is that of its end of the connection to the proxy."""
    certificate = Certificate(tmp_path)
    options: tuple[str, ...] = ("--listen", "proxy:127.0.0.1:0", "--trust-proxy", "127.0.0.0/8")
    if tls:
        options += ("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path))
    async with (
        serving(tmp_path / "data", options=options) as server,
        behind_haproxy(tmp_path, Setup(server.port), of_tcp=True) as port,
    ):
        context = certificate.client if tls else None
        socket = RawSocket(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        _, own_port = socket.writer.get_extra_info("sockname")
        socket.write(handshake())
        async with bounded("an answer"):
            await socket.reader.readuntil(b"\r\n\r\n")
        assert (await socket.hear())["welcome"]["your-address"] == {"ipv4": "127.0.0.1", "port": own_port}
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        socket.cut()


@pytest.mark.thorough
@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
async def test_pings_keep_a_connection_open_beyond_the_time_limit_of_a_proxy(tmp_path: Path, proxy: str) -> None:
    """Both are shortened alike: the proxy's 60 s and the time between our pings.

    A connection without pings is closed.
    """
    async with (
        open_live(tmp_path / "data") as live,
        BEHIND[proxy](tmp_path, Setup(live.port, SECONDS)) as port,
    ):
        silent = await RawSocket.dial(port)
        assert (await silent.hear())["type"] == "welcome"
        for bucket in live.server.buckets:
            bucket.clear()
        pinged = await RawSocket.dial(port)
        assert (await pinged.hear())["type"] == "welcome"
        passing = asyncio.create_task(pass_seconds(live.server.tick))
        try:
            assert await silent.ended()
        finally:
            passing.cancel()
        pinged.say(type="ping", ping=1)
        while (answer := await pinged.read())[0] == PING:
            pinged.write(frame(PONG))
        assert b'"ack"' in answer[1]
        for each in (silent, pinged):
            await each.hang_up()


async def pass_seconds(tick: Callable[[], None]) -> None:
    """Let the server's seconds pass as much faster as the time limit of the proxy is shorter than its default."""
    while True:
        await asyncio.sleep(SECONDS / NGINX_LIMIT)
        tick()
