"""A server under siege: a process of its own, the pair that must not notice, and what is left when all have gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.bounds import bounded
from support.mailbox.pair import APP, Pair
from support.mailbox.raw_socket import RawSocket
from support.proc import descriptors, resident
from support.processes import RESTANTE, Serving, serving

MIB: Final = 1 << 20

SLACK: Final = 8 * MIB
"""How much more a server may hold when all have gone than after its warm-up: a big frame that is kept is 10, and a
crowd of connections 8. What the collector has not looked at yet is some 5 KiB for each that was refused."""

GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""The C library keeps up to 64 MiB of what was freed for the next who asks (man 3 mallopt, M_TRIM_THRESHOLD), which
would hide what the server keeps. So it gives all of it back: that changes when memory returns, not whose it is."""

WARM: Final = 20
"""Sessions before anything is measured: what these took is kept for the next who come."""
CROWD: Final = 200
"""Connections at once before anything is measured; more than the attackers of most files are."""

VISITORS: Final = "ended mailboxes had visitors"
EVENTS: Final = {"listening", "draining", "stopped", "refused", "other refusals", VISITORS}
"""All that a server logs that serves, whoever comes."""


@dataclass(eq=False)
class Siege:
    server: Serving = field(repr=False)
    pair: Pair = field(repr=False)
    resident: int = 0
    descriptors: int = 0
    attackers: list[RawSocket] = field(default_factory=list, repr=False)
    secrets: set[str] = field(default_factory=set, repr=False)
    """What attackers said that nobody may read in the log."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print what `repr` does: hypothesis would print all fields of a dataclass, also those that `repr` omits."""
        printer.text(repr(self))

    @property
    def folder(self) -> Path:
        """Where its data directory is."""
        return self.server.data.parent

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> int:
        return self.server.pid

    # ── attackers ────────────────────────────────────────────────────────────────────────────────

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

    async def enter_all(self, number: int) -> list[RawSocket]:
        """Connect so many; some at a time, since on a busy machine a handshake would take longer than it may."""
        some = [min(100, number - done) for done in range(0, number, 100)]
        return [socket for count in some for socket in await asyncio.gather(*(self.enter() for _ in range(count)))]

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

    # ── the pair ─────────────────────────────────────────────────────────────────────────────────

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

    # ── what is left ─────────────────────────────────────────────────────────────────────────────

    def resident_mib(self) -> float:
        return resident(self.pid) / MIB

    def everybody_goes(self) -> None:
        for attacker in self.attackers:
            attacker.cut()
        self.attackers = []

    def empty(self) -> bool:
        """Return whether it holds no more descriptors than before anybody connected."""
        return descriptors(self.pid) <= self.descriptors

    async def fence(self) -> None:
        """Wait for a turn of the server's loop: it has then noticed everything that happened before."""
        socket = await self.enter()
        socket.say(type="ping", ping="fence")
        assert [(await socket.hear())["type"] for _ in range(2)] == ["ack", "pong"]
        await socket.leave()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something that only shows from outside; between two looks the server's loop turns."""
        async with bounded(what):
            while not holds():
                await self.fence()

    async def warm_up(self, crowd: int) -> None:
        for _ in range(WARM):
            await self.pair.play()
        await self.fence()
        self.descriptors = descriptors(self.pid)
        await self.enter_all(crowd)
        self.everybody_goes()
        await self.until("an empty house", self.empty)
        self.resident = resident(self.pid)

    async def ends_well(self) -> None:
        """Everybody has gone: the server holds what it held before, ends as it promises, and told its log nothing."""
        await self.pair.play()
        await self.until("an empty house", self.empty)
        # What was under way when they went is freed a moment later.
        most = f"at most {(self.resident + SLACK) / MIB:.1f} MiB in use again"
        await self.until(most, lambda: resident(self.pid) - self.resident < SLACK)
        await self.server.stop()
        self.check_log()

    def check_log(self) -> None:
        lines = [json.loads(line) for line in self.server.log]
        assert {line["level"] for line in lines} <= {"info", "warning"}, lines
        assert {line["event"] for line in lines} <= EVENTS, lines
        heard = "\n".join(line for line in self.server.log if '"listening"' not in line)
        for secret in (APP, "pair-a", "pair-b", "body of", "127.0.0.1", *self.pair.mailboxes, *self.secrets):
            assert secret not in heard


@asynccontextmanager
async def besieged(
    data: Path, options: tuple[str, ...] = (), program: tuple[str, ...] = RESTANTE, crowd: int = CROWD
) -> AsyncIterator[Siege]:
    """Start a server and warm it up; at the end it must be as it was."""
    async with serving(data, program, options, **GIVE_BACK) as server:
        siege = Siege(server, Pair(server.port))
        try:
            await siege.warm_up(crowd)
            yield siege
        finally:
            siege.everybody_goes()
        await siege.ends_well()
