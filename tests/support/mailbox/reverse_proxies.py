"""Real reverse proxies before a mailbox server, set up as docs/mailbox/operating.md says."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support import foreign
from support.bounds import bounded
from support.certificates import Certificate
from support.documents import Document
from support.foreign import Program
from support.ports import held_port
from support.processes import RESTANTE, Child, Serving, child, serving

Words = tuple[str, ...]

NGINX_LIMIT: Final = 60
"""Seconds after which nginx closes a silent connection by default (`proxy_read_timeout`)."""

HAPROXY_LIMIT: Final = 50
"""The same of HAProxy, which has no default: what Debian's /etc/haproxy/haproxy.cfg sets."""


@dataclass(frozen=True)
class Setup:
    """How a proxy runs in a test."""

    upstream: int
    """The port of the server."""
    seconds: int | None = None
    """Seconds of silence after which it closes a connection; None: what it does by default."""
    certificate: Certificate | None = None
    """Its certificate; None: no TLS."""
    inside: Words = ()
    """What puts it into a network of its own."""

    @property
    def here(self) -> str:
        return f"127.0.0.1:{self.upstream}"


NGINX_CONFIG: Final = """\
daemon off;
user root root;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    {settings}
    server {{
        listen 127.0.0.1:{port}{tls};
        {location}
    }}
}}
"""

TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@asynccontextmanager
async def behind_nginx(folder: Path, setup: Setup) -> AsyncIterator[int]:
    """Run nginx; gives its port."""
    program = foreign.nginx()
    location = Document("docs/mailbox/operating.md").blocks["nginx"].replace("127.0.0.1:4000", setup.here)
    settings = [f"{each}_temp_path {folder}/{each};" for each in TEMPORARY]
    if setup.seconds is not None:
        settings.append(f"proxy_read_timeout {setup.seconds}s;")
    if setup.certificate is not None:
        path = setup.certificate.path
        settings += [f"ssl_certificate {path};", f"ssl_certificate_key {path};"]
    with held_port() as port:
        config = folder / "nginx.conf"
        config.write_text(
            NGINX_CONFIG.format(
                folder=folder,
                settings="\n    ".join(settings),
                port=port,
                tls=" ssl" if setup.certificate else "",
                location=location,
            )
        )
        # In one process, and without a change of the user: another one could not read the folder.
        command = (str(program.path), "-e", "stderr", "-c", str(config), "-g", "master_process off;")
        async with _running(program, setup, port, *command):
            yield port


HAPROXY_CONFIG: Final = """\
defaults
    mode {mode}
    timeout connect 5s
    timeout client {seconds}s
    timeout server {seconds}s
frontend clients
    bind 127.0.0.1:{port}{tls}
    default_backend restante
{backend}
"""


@asynccontextmanager
async def behind_haproxy(folder: Path, setup: Setup, *, of_tcp: bool = False) -> AsyncIterator[int]:
    """Run HAProxy; gives its port."""
    program = foreign.haproxy()
    blocks = Document("docs/mailbox/operating.md").blocks
    backend = blocks["proxy" if of_tcp else "haproxy"].replace("127.0.0.1:4000", setup.here)
    with held_port() as port:
        config = folder / "haproxy.cfg"
        config.write_text(
            HAPROXY_CONFIG.format(
                seconds=HAPROXY_LIMIT if setup.seconds is None else setup.seconds,
                port=port,
                tls=f" ssl crt {setup.certificate.path}" if setup.certificate else "",
                backend=backend,
                mode="tcp" if of_tcp else "http",
            )
        )
        async with _running(program, setup, port, str(program.path), "-db", "-f", str(config)):
            yield port


CADDY_CONFIG: Final = """\
{{
    admin off
    auto_https disable_redirects
}}
{block}
"""


@asynccontextmanager
async def behind_caddy(folder: Path, setup: Setup) -> AsyncIterator[int]:
    """Run Caddy; gives its port. It closes no connection for its silence."""
    assert setup.seconds is None
    program = foreign.caddy()
    block = Document("docs/mailbox/operating.md").blocks["caddy"].replace("127.0.0.1:4000", setup.here)
    with held_port() as port:
        site = f"https://localhost:{port}" if setup.certificate else f"http://127.0.0.1:{port}"
        path = setup.certificate and setup.certificate.path
        own = f"{site} {{\n    bind 127.0.0.1\n" + (f"    tls {path} {path}\n" if path else "")
        block, replaced = re.subn(r"^relay\.example\.org \{\n", own, block)
        assert replaced == 1, block
        config = folder / "Caddyfile"
        config.write_text(CADDY_CONFIG.format(block=block))
        command = (str(program.path), "run", "--adapter", "caddyfile", "--config", str(config))
        homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        async with _running(program, setup, port, *command, **homes):
            yield port


@asynccontextmanager
async def _running(program: Program, setup: Setup, port: int, *command: str, **variables: str) -> AsyncIterator[None]:
    async with child(*setup.inside, *command, **program.variables, **variables) as proxy:
        await listening(proxy, port)
        yield


LISTENING: Final = re.compile(r"^ *\d+: 0100007F:([0-9A-F]{4}) \S+ 0A ", re.MULTILINE)
"""A socket of 127.0.0.1 that accepts connections, in a list of the kernel's (man 5 proc_pid_net)."""


async def listening(proxy: Child, port: int) -> None:
    """Wait until a proxy accepts connections, in the network that it is in."""
    sockets = Path(f"/proc/{proxy.pid}/net/tcp")
    async with bounded(f"a proxy that listens on {port}"):
        while proxy.running:
            with contextlib.suppress(OSError):  # it has just ended
                if f"{port:04X}" in LISTENING.findall(sockets.read_text()):  # noqa: ASYNC240 - no disk
                    return
            await asyncio.sleep(0.01)
    raise AssertionError(f"the proxy ended with {await proxy.ended()}: {proxy.said}")


BEHIND: Final[dict[str, Callable[[Path, Setup], AbstractAsyncContextManager[int]]]] = {
    "nginx": behind_nginx,
    "haproxy": behind_haproxy,
    "caddy": behind_caddy,
}
"""The proxies that the document has a configuration of."""


DIRECT: Final = "restante"
"""The server's own TLS."""
FRONTS: Final = (DIRECT, *BEHIND)


@dataclass(frozen=True)
class Fronts:
    """A server, and what does the TLS before it."""

    server: Serving
    certificate: Certificate
    trace: Path
    ports: Mapping[str, int]
    """The port of each."""

    def url(self, front: str) -> str:
        return f"wss://localhost:{self.ports[front]}/v1"


@asynccontextmanager
async def running_fronts(folder: Path, names: Iterable[str], inside: tuple[str, ...] = ()) -> AsyncIterator[Fronts]:
    """Run a server that has TLS on one address and none on another, and proxies with TLS before the latter."""
    certificate, trace = Certificate(folder), folder / "trace.jsonl"
    options = (
        *("--listen", "127.0.0.1:0", "--listen", "plain:127.0.0.1:0", "--trace", str(trace)),
        *("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path)),
    )
    async with AsyncExitStack() as ends:
        server = await ends.enter_async_context(serving(folder / "data", (*inside, *RESTANTE), options))
        plain = int((await server.says(r"\bws://127\.0\.0\.1:(\d+)/v1")).group(1))
        setup = Setup(plain, certificate=certificate, inside=inside)
        ports = {DIRECT: server.port}
        for name in names:
            if name != DIRECT:
                (folder / name).mkdir()
                ports[name] = await ends.enter_async_context(BEHIND[name](folder / name, setup))
        yield Fronts(server, certificate, trace, ports)
