"""`restante waku serve` in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from restante.waku.devp2p import enode
from support.bounds import BOUND, bounded
from support.processes import RESTANTE, Serving, started
from support.waku.archives import rows_of
from support.waku.raw_peer import Reachable, everybody_goes

WAKU: Final = (*RESTANTE, "waku")


def altered(how: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "support.waku.altered", how, "waku")


class NodeProcess(Reachable):
    def __init__(self, serving: Serving, url: str) -> None:
        self.serving = serving
        self.url = url
        self.enode = enode.parse(url)


@asynccontextmanager
async def node_process(
    data: Path, *options: str, program: tuple[str, ...] = WAKU, variables: Mapping[str, str] | None = None
) -> AsyncIterator[NodeProcess]:
    async with started(data, program, options, PIPE, **(variables or {})) as serving:
        try:
            assert serving.process.stdout is not None
            async with bounded("the enode"):
                line = (await serving.process.stdout.readline()).decode()
            assert line, serving.log
            yield NodeProcess(serving, line.strip())
        finally:
            await everybody_goes()


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """Run a node for a test that is not asynchronous, and give its enode. It drains at the end."""
    serve = (*WAKU, "serve", "--data", str(data), "--listen", "127.0.0.1:0", "--admin", "off")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.terminate()
            _, log = process.communicate(timeout=BOUND)
            assert process.returncode == 0, log
        finally:
            process.kill()


async def archived(data: Path) -> list[bytes]:
    return [row.envelope().hash for row in await asyncio.to_thread(rows_of, data)]
