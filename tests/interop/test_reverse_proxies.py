"""Behind a real nginx and a real HAProxy, set up as docs/mailbox/operating.md says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support import foreign
from support.bounds import bounded
from support.certificates import Certificate
from support.documents import Document
from support.mailbox.live import open_live
from support.mailbox.raw_socket import PING, PONG, RawSocket, frame, handshake
from support.ports import held_port
from support.processes import Child, child, serving

NGINX_CONFIG: Final = """\
daemon off;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        proxy_read_timeout {seconds}s;
        {location}
    }}
}}
"""

SECONDS: Final = 4
"""The time limit of proxies in the quick run. A ping comes each 1.7 s then, so the machine may be busy for 2.3 s."""

TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@asynccontextmanager
async def behind_nginx(folder: Path, upstream: int, seconds: int = 60) -> AsyncIterator[int]:
    """Run nginx before the server at this port, which closes what is silent for so long; gives its port."""
    program = foreign.nginx()
    location = Document("docs/mailbox/operating.md").blocks["nginx"]
    location = location.replace("127.0.0.1:4000", f"127.0.0.1:{upstream}")
    temporary = "\n    ".join(f"{each}_temp_path {folder}/{each};" for each in TEMPORARY)
    with held_port() as port:
        config = folder / "nginx.conf"
        config.write_text(
            NGINX_CONFIG.format(folder=folder, temporary=temporary, port=port, seconds=seconds, location=location)
        )
        # In one process: a worker would belong to another user, and could not read the folder.
        command = (str(program.path), "-e", "stderr", "-c", str(config), "-g", "master_process off;")
        async with child(*command, **program.variables) as nginx:
            await nginx.says("start worker|using the .* event method")
            await listening(nginx, port)
            yield port


HAPROXY_CONFIG: Final = """\
defaults
    mode {mode}
    timeout connect 5s
    timeout client {seconds}s
    timeout server {seconds}s
frontend clients
    bind 127.0.0.1:{port}
    default_backend restante
{backend}
"""


@asynccontextmanager
async def behind_haproxy(
    folder: Path, upstream: int, seconds: int = 60, *, of_tcp: bool = False
) -> AsyncIterator[int]:
    """Run HAProxy before the server at this port, which closes what is silent for so long; gives its port."""
    program = foreign.haproxy()
    backend = Document("docs/mailbox/operating.md").blocks["proxy" if of_tcp else "haproxy"]
    backend = backend.replace("127.0.0.1:4000", f"127.0.0.1:{upstream}")
    with held_port() as port:
        config = folder / "haproxy.cfg"
        config.write_text(
            HAPROXY_CONFIG.format(seconds=seconds, port=port, backend=backend, mode="tcp" if of_tcp else "http")
        )
        async with child(str(program.path), "-db", "-f", str(config), **program.variables) as haproxy:
            await listening(haproxy, port)
            yield port


async def listening(proxy: Child, port: int) -> None:
    """Wait until a proxy accepts connections."""
    async with bounded("a proxy that listens"):
        while True:
            try:
                (await RawSocket.connect(port)).writer.close()
                break
            except ConnectionRefusedError:
                assert proxy.running, proxy.said
                await asyncio.sleep(0.01)


BEHIND: Final = {"nginx": behind_nginx, "haproxy": behind_haproxy}
"""The proxies that the document has a configuration of."""


@pytest.mark.parametrize("proxy", BEHIND)
async def test_a_client_is_served_and_has_an_address_of_its_own(tmp_path: Path, proxy: str) -> None:
    async with (
        serving(tmp_path / "data", options=("--trust-proxy", "127.0.0.0/8")) as server,
        BEHIND[proxy](tmp_path, server.port) as port,
    ):
        socket = await RawSocket.dial(port, X_Forwarded_For="203.0.113.9")
        welcome = await socket.hear()
        assert welcome["welcome"]["your-address"] == {"ipv4": "203.0.113.9", "port": 0}
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()


@pytest.mark.parametrize("tls", [False, True])
async def test_a_proxy_of_tcp_names_the_client_in_a_proxy_header(tmp_path: Path, tls: bool) -> None:
    """The client's address is that of its end of the connection to the proxy."""
    certificate = Certificate(tmp_path)
    options: tuple[str, ...] = ("--listen", "proxy:127.0.0.1:0", "--trust-proxy", "127.0.0.0/8")
    if tls:
        options += ("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path))
    async with (
        serving(tmp_path / "data", options=options) as server,
        behind_haproxy(tmp_path, server.port, of_tcp=True) as port,
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


@pytest.mark.parametrize("proxy", BEHIND)
async def test_pings_keep_a_connection_open_beyond_the_time_limit_of_a_proxy(tmp_path: Path, proxy: str) -> None:
    """Both are shortened alike: the proxy's 60 s and the time between our pings.

    A connection without pings is closed.
    """
    async with (
        open_live(tmp_path / "data") as live,
        BEHIND[proxy](tmp_path, live.port, SECONDS) as port,
    ):
        silent = await RawSocket.dial(port)
        assert (await silent.hear())["type"] == "welcome"
        for bucket in live.server.buckets:
            bucket.clear()
        pinged = await RawSocket.dial(port)
        assert (await pinged.hear())["type"] == "welcome"
        async with every(SECONDS / 60, live.server.tick):
            assert await silent.ended()
        pinged.say(type="ping", ping=1)
        while (answer := await pinged.read())[0] == PING:
            pinged.write(frame(PONG))
        assert b'"ack"' in answer[1]
        for each in (silent, pinged):
            await each.hang_up()


@asynccontextmanager
async def every(seconds: float, call: Callable[[], None]) -> AsyncIterator[None]:
    """Call this again and again."""

    async def call_again() -> None:
        while True:
            await asyncio.sleep(seconds)
            call()

    calling = asyncio.create_task(call_again())
    try:
        yield
    finally:
        calling.cancel()


@pytest.mark.thorough
async def test_a_silent_client_is_not_disconnected(tmp_path: Path) -> None:
    """nginx cuts what was silent for 60 s (`proxy_read_timeout`); the server says something before that."""
    async with serving(tmp_path / "data") as server, behind_nginx(tmp_path, server.port) as port:
        socket = await RawSocket.dial(port)
        assert (await socket.hear())["type"] == "welcome"
        for _ in range(60 // PING_INTERVAL_SECONDS + 1):
            opcode, payload = await asyncio.wait_for(socket.read(), 60)
            assert (opcode, payload) == (PING, b"")
            socket.write(frame(PONG))
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()
