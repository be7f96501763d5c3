"""Behind a real nginx, set up as docs/mailbox/operating.md says. Without nginx it is skipped (Debian: nginx)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.mailbox.server.server import PING_INTERVAL_SECONDS
from support.documents import Document
from support.mailbox.raw_socket import PING, PONG, RawSocket, frame
from support.ports import held_port
from support.processes import Serving, child, serving

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
        {location}
    }}
}}
"""

TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@asynccontextmanager
async def behind_nginx(folder: Path, server: Serving) -> AsyncIterator[int]:
    """Run nginx before a server; gives its port."""
    location = (
        Document("docs/mailbox/operating.md").blocks["nginx"].replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    )
    temporary = "\n    ".join(f"{each}_temp_path {folder}/{each};" for each in TEMPORARY)
    with held_port() as port:
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, temporary=temporary, port=port, location=location))
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
        behind_nginx(tmp_path, server) as port,
    ):
        socket = await RawSocket.dial(port, X_Forwarded_For="203.0.113.9")
        welcome = await socket.hear()
        assert welcome["welcome"]["your-address"] == {"ipv4": "203.0.113.9", "port": 0}
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()


@pytest.mark.thorough
async def test_a_silent_client_is_not_disconnected(tmp_path: Path) -> None:
    """nginx cuts what was silent for 60 s (`proxy_read_timeout`); the server says something before that."""
    async with serving(tmp_path / "data") as server, behind_nginx(tmp_path, server) as port:
        socket = await RawSocket.dial(port)
        assert (await socket.hear())["type"] == "welcome"
        for _ in range(60 // PING_INTERVAL_SECONDS + 1):
            opcode, payload = await asyncio.wait_for(socket.read(), 60)
            assert (opcode, payload) == (PING, b"")
            socket.write(frame(PONG))
        socket.say(type="ping", ping=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.hang_up()
