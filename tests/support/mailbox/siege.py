"""A server under siege, the pair that must not notice, and what is left when all have gone.

It runs in the test's own loop, with a clock that the test moves; `besieged_process` runs it as a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from structlog.testing import capture_logs

from restante.mailbox.core.admission import Admission
from restante.mailbox.core.limits import Limits
from support.bounds import bounded
from support.mailbox.live import LiveServer, open_live
from support.mailbox.pair import APP, Pair
from support.mailbox.raw_socket import RawSocket
from support.proc import descriptors
from support.processes import RESTANTE, Serving, serving

GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""The C library keeps up to 64 MiB of what was freed for the next who asks (man 3 mallopt, M_TRIM_THRESHOLD), which
would hide what the server keeps. So it gives all of it back: that changes when memory returns, not whose it is."""

EVENTS: Final = {"listening", "draining", "stopped", "refused", "other refusals", "ended mailboxes had visitors"}
"""All that a server logs that serves, whoever comes."""


class Siege:
    """Attackers of a server, and an honest pair beside them."""

    def __init__(self, port: int, empty: Callable[[], bool]) -> None:
        self.port = port
        self.pair = Pair(port)
        self.empty = empty
        """Whether nobody is connected and nothing is held for anybody."""
        self.attackers: list[RawSocket] = []
        self.secrets: set[str] = set()
        """What attackers said that nobody may read in the log."""

    async def connect(self) -> RawSocket:
        """Connect, and say nothing."""
        socket = await RawSocket.connect(self.port)
        self.attackers.append(socket)
        return socket

    async def enter(self, **headers: str) -> RawSocket:
        """Connect, and take the welcome."""
        socket = await RawSocket.dial(self.port, **headers)
        self.attackers.append(socket)
        assert (await socket.hear())["type"] == "welcome"
        return socket

    async def call(self, client: RawSocket, **command: Any) -> dict[str, Any]:
        """Say a command; gives what comes after its ack."""
        client.say(**command)
        assert (await client.hear())["type"] == "ack"
        return await client.hear()

    async def bind(self, side: str, app: str = APP, **headers: str) -> RawSocket:
        """Connect as a side of an app."""
        socket = await self.enter(**headers)
        self.secrets.add(side)
        socket.say(type="bind", appid=app, side=side)
        assert (await socket.hear())["type"] == "ack"
        return socket

    async def close(self, client: RawSocket, mailbox: str) -> None:
        client.say(type="close", mailbox=mailbox)
        while (await client.hear())["type"] != "closed":
            pass

    @asynccontextmanager
    async def beside_the_pair(self, attack: str, sessions: int = 2) -> AsyncIterator[Pair]:
        """The pair plays as long as the block lasts, and so many sessions at least; it may notice nothing."""
        self.pair.start()
        try:
            await self.pair.plays(1)
            yield self.pair
            await self.pair.plays(sessions)
        except BaseException as error:
            error.add_note(f"beside {attack}")
            raise
        finally:
            self.everybody_goes()
            await self.pair.stop()

    def everybody_goes(self) -> None:
        for attacker in self.attackers:
            attacker.cut()
        self.attackers = []

    async def fence(self) -> None:
        """Wait for a turn of the server's loop: it has then noticed everything that happened before."""
        socket = await self.enter()
        socket.say(type="ping", ping="fence")
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.leave()
        self.attackers.remove(socket)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something that nobody tells; between two looks the server's loop turns."""
        async with bounded(what):
            while not holds():
                await self.fence()

    def check_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        assert {line["log_level" if "log_level" in line else "level"] for line in lines} <= {"info", "warning"}, lines
        assert {line["event"] for line in lines} <= EVENTS, lines
        logged = "\n".join(str(line) for line in lines if line["event"] != "listening")
        for secret in (APP, "pair-a", "pair-b", "body of", "127.0.0.1", *self.pair.mailboxes, *self.secrets):
            assert secret not in logged


class LiveSiege(Siege):
    """The server is in this process."""

    def __init__(self, live: LiveServer) -> None:
        super().__init__(live.port, self._nobody)
        self.live = live

    def _nobody(self) -> bool:
        server = self.live.server
        return (server.sockets(), server.held, len(server.memory_holders)) == ([], 0, 0)


@asynccontextmanager
async def besieged(data: Path, limits: Limits, admission: Admission | None = None) -> AsyncIterator[LiveSiege]:
    """Serve in this process; at the end nobody is there, nothing is held, and the log tells nothing of anybody."""
    with capture_logs() as lines:
        async with open_live(data, admission=admission, limits=limits) as live:
            siege = LiveSiege(live)
            yield siege
            siege.everybody_goes()
            await siege.pair.play()
            async with bounded("an empty house"):
                while not siege.empty():
                    live.clock.now += 1.0  # who is over its rate is not read, and so not missed
                    live.server.tick()
                    await asyncio.sleep(0)
            live.server.commit_loop.log_refusals()
    siege.check_log(lines)


@asynccontextmanager
async def besieged_process(data: Path, *options: str) -> AsyncIterator[tuple[Siege, Serving]]:
    """Serve in a process; at the end it holds as many descriptors as before the first attack."""
    async with serving(data, RESTANTE, options, **GIVE_BACK) as server:
        siege = Siege(server.port, lambda: descriptors(server.pid) <= before)
        await siege.pair.play()
        await siege.fence()
        before = descriptors(server.pid)
        yield siege, server
        siege.everybody_goes()
        await siege.pair.play()
        await siege.until("an empty house", siege.empty)
        await server.stop()
        siege.check_log([json.loads(line) for line in server.log])
