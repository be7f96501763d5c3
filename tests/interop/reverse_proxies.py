"""Real reverse proxies before a mailbox server, set up as the guides say."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from support import foreign
from support.bounds import bounded
from support.certificates import Certificate
from support.documents import Document
from support.mailbox.wormhole import HOMES
from support.ports import held_port
from support.processes import RESTANTE, child, serving

GUIDES: Final = ("docs/mailbox/first-server.md", "docs/mailbox/network.md", "docs/mailbox/standby.md")
BLOCKS: Final = {name: block for guide in GUIDES for name, block in Document(guide).blocks.items()}


@dataclass(frozen=True)
class Proxy:
    arguments: tuple[str, ...]
    """Its command line, with {config}."""
    config: str
    """With {block}, {folder}, {port} and {tls}."""
    tls: str = ""
    """What its configuration has for TLS, with the file {pem}."""
    block: str = ""
    """The name of the block, if that is not the proxy's."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Words of the block, and those that are in their place."""


NGINX_LIMIT: Final = 60
"""Seconds after which nginx closes a silent connection by default (`proxy_read_timeout`)."""

NGINX: Final = Proxy(
    # In one process, and without a change of the user: another one could not read the folder.
    ("-e", "stderr", "-c", "{config}", "-g", "master_process off;"),
    """\
daemon off;
user root root;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port}{tls};
        {block}
    }}
}}
""",
    tls=" ssl; ssl_certificate {pem}; ssl_certificate_key {pem}",
)

HAPROXY: Final = Proxy(
    ("-db", "-f", "{config}"),
    """\
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
frontend clients
    bind 127.0.0.1:{port}{tls}
    default_backend restante
{block}
""",
    tls=" ssl crt {pem}",
)
"""It has no default limits: these are what Debian's /etc/haproxy/haproxy.cfg sets."""

HAPROXY_OF_TCP: Final = replace(HAPROXY, config=HAPROXY.config.replace("mode http", "mode tcp"), block="proxy")

CADDY: Final = Proxy(
    ("run", "--adapter", "caddyfile", "--config", "{config}"),
    "{{\n    admin off\n    auto_https disable_redirects\n}}\n{block}\n",
    tls="    tls {pem} {pem}\n",
)

PROXIES: Final = {"nginx": NGINX, "haproxy": HAPROXY, "caddy": CADDY}

BALANCERS: Final = {
    "haproxy": replace(HAPROXY, block="haproxy hosts"),
    "caddy": replace(CADDY, block="caddy hosts"),
}
"""Before two hosts."""

LISTENING: Final = re.compile(r"^ *\d+: 0100007F:([0-9A-F]{4}) \S+ 0A ", re.MULTILINE)
"""A socket of 127.0.0.1 that accepts connections, in a list of the kernel's (man 5 proc_pid_net)."""


def listens(pid: int, port: int) -> bool:
    with contextlib.suppress(OSError):  # it has just ended
        return f"{port:04X}" in LISTENING.findall(Path(f"/proc/{pid}/net/tcp").read_text())
    return False


@asynccontextmanager
async def behind(
    name: str,
    folder: Path,
    upstream: int,
    *,
    proxy: Proxy | None = None,
    certificate: Certificate | None = None,
    inside: tuple[str, ...] = (),
) -> AsyncIterator[int]:
    program, proxy = foreign.program(name), proxy or PROXIES[name]
    block = BLOCKS[proxy.block or name]
    for words, others in proxy.instead.items():
        block = block.replace(words, others)
    block = block.replace("127.0.0.1:4000", f"127.0.0.1:{upstream}")
    tls = proxy.tls.format(pem=certificate.path) if certificate else ""
    with held_port() as port:
        if name == "caddy":
            site = f"https://localhost:{port}" if certificate else f"http://127.0.0.1:{port}"
            block, replaced = re.subn(r"^relay\.example\.org \{\n", f"{site} {{\n    bind 127.0.0.1\n{tls}", block)
            assert replaced == 1, block
        config = folder / "config"
        config.write_text(proxy.config.format(block=block, folder=folder, port=port, tls=tls))
        arguments = (argument.format(config=config) for argument in proxy.arguments)
        homes = dict.fromkeys(HOMES, str(folder))
        async with child(*inside, str(program.path), *arguments, **program.variables, **homes) as running:
            async with bounded(f"a proxy that listens on {port}"):
                while not listens(running.pid, port):
                    assert running.running, running.said
                    await asyncio.sleep(0.01)
            yield port


DIRECT: Final = "restante"
FRONTS: Final = (DIRECT, *PROXIES)


@dataclass(frozen=True)
class Fronts:
    certificate: Certificate
    trace: Path
    ports: Mapping[str, int]

    def url(self, front: str) -> str:
        return f"wss://localhost:{self.ports[front]}/v1"


@asynccontextmanager
async def running_fronts(folder: Path, names: Iterable[str], inside: tuple[str, ...] = ()) -> AsyncIterator[Fronts]:
    certificate, trace = Certificate(folder), folder / "trace.jsonl"
    options = (
        *("--listen", "127.0.0.1:0", "--listen", "plain:127.0.0.1:0", "--trace", str(trace)),
        *("--tls-cert", str(certificate.path), "--tls-key", str(certificate.path)),
    )
    async with AsyncExitStack() as ends:
        server = await ends.enter_async_context(serving(folder / "data", (*inside, *RESTANTE), options))
        plain = int((await server.says(r"\bws://127\.0\.0\.1:(\d+)/v1"))[1])
        ports = {DIRECT: server.port}
        for name in names:
            if name != DIRECT:
                (folder / name).mkdir()
                front = behind(name, folder / name, plain, certificate=certificate, inside=inside)
                ports[name] = await ends.enter_async_context(front)
        yield Fronts(certificate, trace, ports)
