"""A mailbox server in a process of its own, to be killed and started again: ours, and the reference server."""

import asyncio
import random
import signal
import socket
import sqlite3
import sys
from asyncio.subprocess import STDOUT, Process
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from interop.bounds import bounded
from interop.processes import environment


class Usage(NamedTuple):
    """The results of all usage records, oldest first."""

    nameplates: list[str]
    mailboxes: list[str]


def free_port() -> int:
    """Find a port that stays free while the server is down.

    A port above 32767 might be somebody's local end at the restart: there Linux takes those of outgoing connections
    from (net.ipv4.ip_local_port_range; other systems begin at 49152).
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Server:
    """One data folder and one port; the process in between comes and goes."""

    clean_exit = 0
    """What the process must return after a SIGTERM."""

    def __init__(self, folder: Path, bytecode: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.bytecode = bytecode
        self.port = free_port()
        self._log = folder / "server.log"
        self._log.touch()
        self._process: Process | None = None

    @property
    def command(self) -> list[str]:
        raise NotImplementedError

    def usage(self) -> Usage:
        raise NotImplementedError

    def live(self) -> dict[str, int]:
        """How many rows are left, of each table that has any."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start it and wait until it accepts connections."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                cwd=self.folder,
                env=environment(self.bytecode, "RESTANTE_"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=STDOUT,
            )
        async with bounded(f"{type(self).__name__} accepts connections"):
            while not await self._accepts():
                assert self._process.returncode is None, f"it ended by itself:\n{self.log()}"
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, at once."""
        assert self._process is not None
        self._process.kill()

    async def restart(self) -> None:
        """Start it again on the same data and port, after `kill`."""
        assert self._process is not None
        async with bounded("the killed server is gone"):
            assert await self._process.wait() == -signal.SIGKILL, self.log()
        await self.start()

    async def stop(self) -> None:
        """SIGTERM, and it must end as it promises."""
        assert self._process is not None
        if self._process.returncode is None:  # else it died: the exit code below says of what
            self._process.terminate()
        async with bounded("the server ends after SIGTERM"):
            assert await self._process.wait() == self.clean_exit, self.log()
        assert "Traceback" not in self.log(), self.log()

    async def end(self) -> None:
        """Whatever state it is in: no process stays behind."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        await writer.wait_closed()
        return True


class Restante(Server):
    """Ours."""

    flags: tuple[str, ...] = ()
    """What the operator wants beyond that."""

    @property
    def command(self) -> list[str]:
        listen = f"127.0.0.1:{self.port}"
        return [
            *(sys.executable, "-m", "restante", "serve"),
            *("--data", "data", "--listen", listen, "--admin", "off"),
            *self.flags,
        ]

    def usage(self) -> Usage:
        # Commit, then speak (docs/design.md): what a client was told is in the file, without a wait.
        return Usage(
            _column(self._path, "SELECT result FROM usage_nameplates ORDER BY id"),
            _column(self._path, "SELECT result FROM usage_mailboxes ORDER BY id"),
        )

    def live(self) -> dict[str, int]:
        return _row_counts(self._path, "nameplates", "mailboxes", "messages")

    @property
    def _path(self) -> Path:
        return self.folder / "data" / "restante.sqlite"


class Reference(Server):
    """magic-wormhole-mailbox-server, to show that the harness is right about a server everybody uses."""

    clean_exit = -signal.SIGTERM  # Twisted stops its reactor, then dies of the same signal

    @property
    def command(self) -> list[str]:
        return [
            *(str(Path(sys.executable).parent / "twist"), "wormhole-mailbox"),
            *("--port", f"tcp:{self.port}:interface=127.0.0.1"),
            *("--channel-db=relay.sqlite", "--usage-db=usage.sqlite"),
        ]

    def usage(self) -> Usage:
        path = self.folder / "usage.sqlite"
        return Usage(
            _column(path, "SELECT result FROM nameplates ORDER BY rowid"),
            _column(path, "SELECT result FROM mailboxes ORDER BY rowid"),
        )

    def live(self) -> dict[str, int]:
        tables = ("nameplates", "nameplate_sides", "mailboxes", "mailbox_sides", "messages")
        return _row_counts(self.folder / "relay.sqlite", *tables)


def _column(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute(query)]


def _row_counts(path: Path, *tables: str) -> dict[str, int]:
    counts = {table: _column(path, f"SELECT COUNT(*) FROM {table}")[0] for table in tables}
    return {table: count for table, count in counts.items() if count}
