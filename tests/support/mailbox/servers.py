"""A mailbox server in a process of its own, to be killed and started again: ours, and the reference server."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from support.ports import held_port
from support.processes import RESTANTE, Child, spawn
from support.sqlite import select


class Server:
    """One data folder and one port; the process in between comes and goes."""

    main = "twisted.application.twist._twist:Twist.main"
    """What it runs, as MODULE:FUNCTION."""
    arguments: tuple[str, ...]
    ready = " starting on {port}\n"
    clean_exit = -signal.SIGTERM
    """What the process must return after a SIGTERM. Twisted stops its reactor, then dies of the same signal."""
    usage_file = live_file = ""
    usage_tables: tuple[str, ...] = ()
    live_tables: tuple[str, ...] = ()

    def __init__(self, folder: Path, *flags: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.flags = flags
        self.port = 0
        """Held by another socket, also while no process listens."""
        self._processes: list[Child] = []

    def usage(self) -> tuple[list[str], ...]:
        """Return the results in the file of the usage records of nameplates and of mailboxes, oldest first."""
        queries = (f"SELECT result FROM {table} ORDER BY rowid" for table in self.usage_tables)
        return tuple(self._column(self.usage_file, query) for query in queries)

    def live(self) -> dict[str, int]:
        counts = {name: self._column(self.live_file, f"SELECT COUNT(*) FROM {name}")[0] for name in self.live_tables}
        return {table: count for table, count in counts.items() if count}

    def _column(self, file: str, query: str) -> list[Any]:
        return [row[0] for row in select(self.folder / file, query)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        with held_port() as self.port:
            try:
                await self.start()
                yield self
                await self.stop()
            finally:
                await self.end()

    async def start(self) -> None:
        arguments = [argument.format(port=self.port) for argument in self.arguments]
        self._processes.append(await Child.forked(self.main, *arguments, *self.flags, cwd=self.folder))
        await self._process.says(self.ready.format(port=self.port))

    def kill(self) -> None:
        self._process.kill()

    async def restart(self) -> None:
        assert await self._process.ended() == -signal.SIGKILL, self.log()
        await self.start()

    def reload(self) -> None:
        """SIGHUP."""
        self._process.send(signal.SIGHUP)

    async def stop(self) -> None:
        if self._process.running:  # else it died: the exit code below says of what
            self._process.send(signal.SIGTERM)
        assert await self._process.ended() == self.clean_exit, self.log()
        assert "Traceback" not in self.log(), self.log()

    async def end(self) -> None:
        """Whatever state it is in: no process stays behind."""
        for process in self._processes:
            await process.end()

    async def logged(self, text: str) -> None:
        await self._process.says(re.escape(text))

    def log(self) -> str:
        return "".join(said for process in self._processes for said in process.said.values())

    @property
    def _process(self) -> Child:
        return self._processes[-1]


class Restante(Server):
    main = "restante.cli.main:main"
    arguments = ("restante", "serve", "--data", "data", "--listen", "127.0.0.1:{port}", "--admin", "off")
    ready = '"event": "listening"'
    clean_exit = 0
    usage_file = live_file = "data/restante.sqlite"
    usage_tables = "usage_nameplates", "usage_mailboxes"
    live_tables = "nameplates", "mailboxes", "messages"


class Replaced(Restante):
    """The same, whose process can replace itself: it is no fork of another program."""

    async def start(self) -> None:
        arguments = [argument.format(port=self.port) for argument in self.arguments[1:]]
        process = await spawn(*RESTANTE, *arguments, *self.flags, cwd=self.folder)
        self._processes.append(Child(process, "stdout", "stderr"))
        await self._process.says(self.ready)

    def replace(self) -> None:
        """SIGUSR2."""
        self._process.send(signal.SIGUSR2)

    async def replaced(self) -> None:
        """Replace it, and wait for that."""
        await self._process.restarts()


class Reference(Server):
    """magic-wormhole-mailbox-server, to show that the harness is right about a server everybody uses."""

    arguments = (
        *("twist", "--log-format=text", "wormhole-mailbox", "--port", "tcp:{port}:interface=127.0.0.1"),
        *("--channel-db=relay.sqlite", "--usage-db=usage.sqlite"),
    )
    usage_file, live_file = "usage.sqlite", "relay.sqlite"
    usage_tables = "nameplates", "mailboxes"
    live_tables = "nameplates", "nameplate_sides", "mailboxes", "mailbox_sides", "messages"
