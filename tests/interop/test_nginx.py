"""Behind a real nginx, set up as docs/mailbox/operating.md says. Without nginx it is skipped (Debian: nginx)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.documents import Document
from support.mailbox.live import open_live
from support.mailbox.raw_socket import PING, PONG, RawSocket, frame
from support.ports import held_port
from support.processes import child, serving

NGINX: Final = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is missing (Debian: apt install nginx)")

CONFIG: Final = """\
daemon off;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        {directives}
        {location}
    }}
}}
"""

NGINX_SECONDS: Final = 4
"""Its time limit in the quick run. A ping comes each 1.7 s then, so the machine may be busy for 2.3 s."""

TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@asynccontextmanager
async def behind_nginx(folder: Path, upstream: int, directives: str = "") -> AsyncIterator[int]:
    """Run nginx before the server at this port, with directives beside those of the document; gives its port."""
    location = Document("docs/mailbox/operating.md").blocks["nginx"]
    location = location.replace("127.0.0.1:4000", f"127.0.0.1:{upstream}")
    temporary = "\n    ".join(f"{each}_temp_path {folder}/{each};" for each in TEMPORARY)
    with held_port() as port:
        config = folder / "nginx.conf"
        config.write_text(
            CONFIG.format(folder=folder, temporary=temporary, port=port, directives=directives, location=location)
        )
        # In one process: a worker would belong to another user, and could not read the folder.
        async with child(str(NGINX), "-e", "stderr", "-c", str(config), "-g", "master_process off;") as nginx:
            await nginx.says("start worker|using the .* event method")
            while True:
                try:
                    (await RawSocket.connect(port)).writer.close()
                    break
                except ConnectionRefusedError:
                    assert nginx.running, nginx.said
                    await asyncio.sleep(0.01)
            yield port


async def test_a_client_is_served_and_has_an_address_of_its_own(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "data", options=("--trust-proxy", "127.0.0.0/8")) as server,
        behind_nginx(tmp_path, server.port) as port,
    ):
        socket = await RawSocket.dial(port, X_Forwarded_For="203.0.113.9")
        welcome = await socket.hear()
        assert welcome["welcome"]["your-address"] == {"ipv4": "203.0.113.9", "port": 0}
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()


async def test_pings_keep_a_connection_open_beyond_the_time_limit_of_nginx(tmp_path: Path) -> None:
    """Both are shortened alike: nginx's 60 s and the time between our pings. A connection without pings is closed."""
    async with (
        open_live(tmp_path / "data") as live,
        behind_nginx(tmp_path, live.port, f"proxy_read_timeout {NGINX_SECONDS}s;") as port,
    ):
        silent = await RawSocket.dial(port)
        assert (await silent.hear())["type"] == "welcome"
        for bucket in live.server.buckets:
            bucket.clear()
        pinged = await RawSocket.dial(port)
        assert (await pinged.hear())["type"] == "welcome"
        async with every(NGINX_SECONDS / 60, live.server.tick):
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
