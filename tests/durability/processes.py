"""`restante serve` in a process of its own, to be killed and started again."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from durability.bounds import bounded

RESTANTE: Final = (sys.executable, "-m", "restante")
TESTS: Final = Path(__file__).parents[1]


def altered(how: str) -> tuple[str, ...]:
    """Name the program that is altered in this way."""
    return (sys.executable, "-m", "durability.altered", how)


def traced(notes: Path, program: tuple[str, ...] = RESTANTE) -> tuple[str, ...]:
    """Name the program under the tracer."""
    return (sys.executable, "-m", "durability.tracer", str(notes), *program)


class Serving:
    """A running server."""

    def __init__(self, process: Process, data: Path) -> None:
        self.data = data
        self.url = ""
        self.log: list[str] = []
        """The lines of its standard error."""
        self.process = process
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def logged(self, event: str) -> dict[str, Any]:
        """Wait until it has logged this event."""
        async with bounded(f"{event!r} in the log"):
            while True:
                for line in self.log:
                    if line.startswith("{") and (said := json.loads(line))["event"] == event:
                        return dict(said)
                await self.news()

    async def news(self) -> None:
        """Wait for one more line of its log."""
        assert not self._reading.done(), f"it ended instead: {self.log}"
        self._news.clear()
        await self._news.wait()

    async def ended(self) -> int:
        """Wait until it has ended; gives its exit code."""
        async with bounded("the end of the server"):
            await asyncio.wait([self._reading])
            return await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM; it must end as it promises."""
        self.send(signal.SIGTERM)
        assert await self.ended() == 0, self.log

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())
            self._news.set()
        self._news.set()


@asynccontextmanager
async def started(
    data: Path,
    program: tuple[str, ...] = RESTANTE,
    options: tuple[str, ...] = (),
    stdout: int = DEVNULL,
    **variables: str,
) -> AsyncIterator[Serving]:
    """Start a server on a free port, and do not wait for it. No process stays behind."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RESTANTE_")}
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(TESTS))))
    process = await asyncio.create_subprocess_exec(
        *(*program, "serve", "--data", str(data), "--listen", "127.0.0.1:0", "--admin", "off"),
        *("--log-format", "json", *options),
        env={**environment, "PYTHONPATH": path, **variables},
        stdin=DEVNULL,
        stdout=stdout,
        stderr=PIPE,
    )
    server = Serving(process, data)
    try:
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await server.ended()


@asynccontextmanager
async def serving(
    data: Path, program: tuple[str, ...] = RESTANTE, options: tuple[str, ...] = (), **variables: str
) -> AsyncIterator[Serving]:
    """Start a server, and wait until it listens."""
    async with started(data, program, options, DEVNULL, **variables) as server:
        server.url = (await server.logged("listening"))["url"]
        yield server


# ── what is on disk ──────────────────────────────────────────────────────────────────────────────


def database(data: Path) -> Path:
    return data / "restante.sqlite"


def wal(data: Path) -> Path:
    return data / "restante.sqlite-wal"


@contextmanager
def evidence(data: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database of a server that is down: looking must not repair what it will find."""
    copy = data.with_name(data.name + "-copy")
    shutil.copytree(data, copy)
    try:
        with closing(sqlite3.connect(database(copy))) as db:
            yield db
    finally:
        shutil.rmtree(copy)
