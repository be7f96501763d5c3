"""A mailbox server in a process of its own, to be killed and started again: ours, and the reference server."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from support.forks import Forked
from support.processes import Child, environment


class Usage(NamedTuple):
    """The results of all usage records, oldest first."""

    nameplates: list[str]
    mailboxes: list[str]


class Server:
    """One data folder and one port; the process in between comes and goes."""

    main: str
    """What it runs, as MODULE:FUNCTION."""
    clean_exit = 0
    """What the process must return after a SIGTERM."""
    flags: tuple[str, ...] = ()
    """What the operator wants beyond that."""
    usage_tables = "", ""
    live_tables: tuple[str, ...] = ()

    def __init__(self, folder: Path, *flags: str) -> None:
        """Make the folder."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.flags = flags or self.flags
        self.port = 0
        """Held by the scene, also while no process listens."""
        self._processes: list[Child] = []

    @property
    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def ready(self) -> str:
        """What it says as soon as it accepts connections, as a regular expression."""
        return f" starting on {self.port}\n"

    @property
    def databases(self) -> tuple[Path, Path]:
        """Where usage and what is live are stored."""
        raise NotImplementedError

    def usage(self) -> Usage:
        """Return what is recorded. Commit, then speak (docs/design.md): what a client was told is in the file."""
        nameplates, mailboxes = self.usage_tables
        path, _ = self.databases
        return Usage(
            *(_column(path, f"SELECT result FROM {table} ORDER BY rowid") for table in (nameplates, mailboxes))
        )

    def live(self) -> dict[str, int]:
        """How many rows are left, of each table that has any."""
        _, path = self.databases
        counts = {table: _column(path, f"SELECT COUNT(*) FROM {table}")[0] for table in self.live_tables}
        return {table: count for table, count in counts.items() if count}

    async def start(self) -> None:
        """Start it and wait until it accepts connections."""
        process = await Forked.start(self.main, *self.command, cwd=self.folder, variables=environment())
        self._processes.append(Child(process, "stdout", "stderr"))
        await self._process.says(self.ready)

    def kill(self) -> None:
        """SIGKILL, at once."""
        self._process.kill()

    async def restart(self) -> None:
        """Start it again on the same data and port, after `kill`."""
        assert await self._process.ended() == -signal.SIGKILL, self.log()
        await self.start()

    async def stop(self) -> None:
        """SIGTERM, and it must end as it promises."""
        if self._process.running:  # else it died: the exit code below says of what
            self._process.send(signal.SIGTERM)
        assert await self._process.ended() == self.clean_exit, self.log()
        assert "Traceback" not in self.log(), self.log()

    async def end(self) -> None:
        """Whatever state it is in: no process stays behind."""
        for process in self._processes:
            await process.end()

    def log(self) -> str:
        return "".join(said for process in self._processes for said in process.said.values())

    @property
    def _process(self) -> Child:
        return self._processes[-1]


class Restante(Server):
    """Ours."""

    main = "restante.cli.main:main"
    usage_tables = "usage_nameplates", "usage_mailboxes"
    live_tables = "nameplates", "mailboxes", "messages"

    @property
    def command(self) -> list[str]:
        listen = f"127.0.0.1:{self.port}"
        return ["restante", "serve", "--data", "data", "--listen", listen, "--admin", "off", *self.flags]

    @property
    def ready(self) -> str:
        return '"event": "listening"'

    @property
    def databases(self) -> tuple[Path, Path]:
        path = self.folder / "data" / "restante.sqlite"
        return path, path


class Reference(Server):
    """magic-wormhole-mailbox-server, to show that the harness is right about a server everybody uses."""

    main = "twisted.application.twist._twist:Twist.main"
    clean_exit = -signal.SIGTERM  # Twisted stops its reactor, then dies of the same signal
    usage_tables = "nameplates", "mailboxes"
    live_tables = "nameplates", "nameplate_sides", "mailboxes", "mailbox_sides", "messages"

    @property
    def command(self) -> list[str]:
        return [
            *("twist", "--log-format=text", "wormhole-mailbox"),
            *("--port", f"tcp:{self.port}:interface=127.0.0.1"),
            *("--channel-db=relay.sqlite", "--usage-db=usage.sqlite"),
        ]

    @property
    def databases(self) -> tuple[Path, Path]:
        return self.folder / "usage.sqlite", self.folder / "relay.sqlite"


class TransitRelay(Server):
    """magic-wormhole-transit-relay, which connects the two sides of a transfer that cannot reach each other."""

    main = Reference.main
    clean_exit = Reference.clean_exit

    @property
    def command(self) -> list[str]:
        port = f"--port=tcp:{self.port}:interface=127.0.0.1"
        return ["twist", "--log-format=text", "transitrelay", "--log-fd=1", port]

    async def carried(self) -> int:
        """Wait until a transfer is over; return how many bytes it had."""
        record = await self._process.says(r'"total_bytes": (\d+), "mood": "(\w+)"')
        assert record[2] == "happy", self.log()
        return int(record[1])


def _column(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute(query)]
