"""What does the TLS before a mailbox server: the server itself, or a reverse proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.certificates import Certificate
from support.mailbox.reverse_proxies import BEHIND, Setup
from support.processes import RESTANTE, Serving, serving

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
