"""Servers that share a database, which lose connections, processes and hosts: no client sees more than one server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest

from support.bounds import bounded
from support.loops import on_uvloop
from support.mailbox.clients import Client, LostError, SaidCommand
from support.mailbox.history import (
    Add,
    Claim,
    Lifetime,
    MailboxHistory,
    Read,
    contradictions_of_claims,
    contradictions_of_nameplates,
)
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port
from support.postgres import Pair, pair
from support.processes import RESTANTE, Serving, spawn

T = TypeVar("T")

pytestmark = pytest.mark.xdist_group("postgres")

SERVERS: Final = 3
ROOMS: Final = 12
CALLS_OF_A_SIDE: Final = 60
CALLS: Final = 6000
"""Answered calls of a run; `--effort 17` makes 10⁵."""

WELCOME_SECONDS: Final = 3.0
NO_LIMITS: Final = [
    word
    for name in ("commands", "bytes", "address_connections", "address_connects", "address_nameplates")
    + ("address_claims", "address_bytes", "address_records")
    for word in ("--limit", f"{name}=0")
]


class Host:
    """One of the servers: its port, and the process that serves it, or stands by."""

    def __init__(self, url: str, port: int) -> None:
        self.port = port
        self._url = url
        self.process: Serving

    async def start(self, servers: Pair) -> None:
        options = ("--listen", f"127.0.0.1:{self.port}", "--admin", "off", "--log-format", "json", *NO_LIMITS)
        words = (*RESTANTE, "serve", "--database", self._url, *options)
        self.process = Serving(await spawn(*words, cwd=servers.primary.folder), servers.primary.folder)


@dataclass
class Room:
    """Three sides that want one nameplate and its mailbox, of which two can."""

    name: str
    mailbox: MailboxHistory = field(default_factory=MailboxHistory)
    claims: list[Claim] = field(default_factory=list)
    unknown: bool = False
    """Whether a call that was not answered may still be carried out."""


class World:
    """The hosts, their clients, and what these saw."""

    def __init__(self, hosts: list[Host], dice: random.Random) -> None:
        self.hosts = hosts
        self.dice = dice
        self.engine = hosts[0]
        """The host that last welcomed a client."""
        self.answered = 0
        self.contradictions: list[str] = []
        self.lifetimes: list[Lifetime] = []
        self.lists: list[tuple[float, float, set[str]]] = []

    @asynccontextmanager
    async def bound(self, side: str, messages: list[tuple[float, str, str]] | None = None) -> AsyncIterator[Link]:
        """Yield a client of whoever serves. `messages` becomes what it receives."""
        link = Link(self, [] if messages is None else messages)
        while not await self._connect(link, self.dice.choice(self.hosts)):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
        try:
            await link.call("bind", appid="x", side=side)
            yield link
        finally:
            link.socket.cut()
            await link.client.ends()

    async def _connect(self, link: Link, host: Host) -> bool:
        """A host that stands by does not listen, and one that was stopped does not welcome."""
        socket = None
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                socket = await RawSocket.dial(host.port)
                link.socket, link.client = socket, Client(socket, link.note)
                await link.client.until("the welcome", lambda: bool(link.client.frames))
        except (OSError, asyncio.IncompleteReadError, LostError):
            if socket is not None:
                socket.cut()
                await link.client.ends()
            return False
        self.engine = host
        return True


class Link:
    """A connection whose calls are answered soon, or it is given up: TimeoutError, LostError."""

    client: Client
    socket: RawSocket

    def __init__(self, world: World, messages: list[tuple[float, str, str]]) -> None:
        self._world = world
        self._messages = messages
        self._patience = world.dice.choice((1.0, 20.0, 20.0))

    def note(self) -> None:
        for message in self.client.heard[len(self._messages) :]:
            self._messages.append((time.monotonic(), message["side"], message["body"]))

    async def call(self, kind: str, **fields: object) -> SaidCommand:
        async with asyncio.timeout(self._patience):
            command = await self.client.say(kind, **fields)
            await self.client.answers(command)
        self._world.answered += 1
        return command


LOST: Final = (LostError, TimeoutError)


async def retried(work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    while True:
        with contextlib.suppress(*LOST):
            return await work(*arguments)


async def visit(world: World, calls: int) -> None:
    """Let rooms come and go until so many calls are answered."""
    while world.answered < calls:
        await one_room(world)


async def one_room(world: World) -> None:
    sides = [f"{world.dice.getrandbits(64):x}" for _ in range(3)]
    began = time.monotonic()
    name = await retried(allocate, world, sides[0])
    room = Room(name)
    number = len(world.lifetimes)
    world.lifetimes.append(Lifetime(name, began, time.monotonic()))
    await asyncio.gather(*(member(world, room, side) for side in sides))
    for side in sides:
        await retried(look, world, room, side)
    world.lifetimes[number] = world.lifetimes[number]._replace(released=time.monotonic())
    world.contradictions += room.mailbox.contradictions()
    world.contradictions += contradictions_of_claims(room.claims)
    for side in sides:
        await retried(end, world, room, side)
    await retried(assert_ended, world, room, sides[0])


async def allocate(world: World, side: str) -> str:
    async with world.bound(side) as link:
        command = await link.call("allocate")
        assert command.reply is not None
        return str(command.reply["nameplate"])


async def enter(world: World, room: Room, side: str, link: Link) -> bool:
    """Claim the nameplate and open its mailbox. Return whether the side may."""
    began = time.monotonic()
    room.unknown, before = True, room.unknown
    claim = await link.call("claim", nameplate=room.name)
    mailbox_id = None if claim.reply is None else claim.reply["mailbox"]
    room.claims.append(Claim(side, began, time.monotonic(), mailbox_id))
    if mailbox_id is None:
        if any(add.side == side and add.ended < began for add in room.mailbox.adds.values()):
            world.contradictions.append(f"member {side} was refused")
        room.unknown = before
        return False
    began = time.monotonic()
    opened = await link.client.say("open", mailbox=mailbox_id)
    await link.call("ping", ping=1)
    room.unknown = before
    number = None if opened.error is not None else len(link.client.heard)
    room.mailbox.reads.append(Read(side, began, number))
    return opened.error is None


async def member(world: World, room: Room, side: str) -> None:
    """Add and read, and connect again now and then, or because the server is another."""
    calls = 0
    while calls < CALLS_OF_A_SIDE:
        messages: list[tuple[float, str, str]] = []
        with contextlib.suppress(*LOST):
            async with world.bound(side, messages) as link:
                room.mailbox.received.append(messages)
                calls += 5
                if not await enter(world, room, side, link):
                    continue
                for _ in range(world.dice.randrange(1, 40)):
                    calls += 1
                    await one_call(world, room, side, link)


async def one_call(world: World, room: Room, side: str, link: Link) -> None:
    if not world.dice.randrange(40):  # so that some call a server that has hung for a while
        await asyncio.sleep(world.dice.random() * 6)
    began = time.monotonic()
    match world.dice.randrange(8):
        case 0 | 1 | 2:
            bodies = [f"{world.dice.getrandbits(64):x}" for _ in range(world.dice.randrange(1, 5))]
            room.mailbox.adds |= dict.fromkeys(bodies, Add(side, began))
            for command in await asyncio.gather(*(link.call("add", phase="1", body=body) for body in bodies)):
                assert command.error is None, command.error
                room.mailbox.adds[command.fields["body"]] = Add(side, began, time.monotonic())
        case 3:
            command = await link.call("list")
            assert command.reply is not None
            names = {nameplate["id"] for nameplate in command.reply["nameplates"]}
            world.lists.append((began, time.monotonic(), names))
        case _:
            await link.call("ping", ping=1)
            room.mailbox.reads.append(Read(side, began, len(link.client.heard)))


async def look(world: World, room: Room, side: str) -> None:
    messages: list[tuple[float, str, str]] = []
    async with world.bound(side, messages) as link:
        room.mailbox.received.append(messages)
        await enter(world, room, side, link)


async def end(world: World, room: Room, side: str) -> None:
    async with world.bound(side) as link:
        await link.call("release", nameplate=room.name)
        for mailbox_id in {claim.mailbox_id for claim in room.claims if claim.mailbox_id is not None}:
            await link.call("close", mailbox=mailbox_id, mood="happy")


async def assert_ended(world: World, room: Room, side: str) -> None:
    """What was released and closed is gone."""
    [mailbox_id] = {claim.mailbox_id for claim in room.claims if claim.mailbox_id is not None}
    async with world.bound(side) as link:
        await link.client.say("open", mailbox=mailbox_id)
        await link.call("ping", ping=1)
        if link.client.heard and not room.unknown:
            world.contradictions.append(f"mailbox {mailbox_id} was closed, and has {link.client.heard}")
        await link.call("close", mailbox=mailbox_id, mood="happy")


# ── faults ───────────────────────────────────────────────────────────────────────────────────────

OURS: Final = "FROM pg_stat_activity WHERE application_name = 'restante serve'"


class Faults:
    """What happens to the servers and to their database, one after the other."""

    def __init__(self, world: World, servers: Pair) -> None:
        self._world = world
        self._servers = servers
        self._dice = world.dice
        self.over = False
        self.number = 0

    async def _progress(self, calls: int) -> None:
        """Wait until some more calls are answered."""
        target = self._world.answered + calls
        async with bounded("a server that serves"):
            while self._world.answered < target and not self.over:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    async def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self._servers.primary.rows, sql)

    async def cut(self) -> None:
        await self._ask(f"SELECT pg_terminate_backend(pid) {OURS} {self._dice.choice(('', 'LIMIT 1'))}")

    async def cancel(self) -> None:
        await self._ask(f"SELECT pg_cancel_backend(pid) {OURS}")

    async def kill(self) -> None:
        await self._replace(signal.SIGKILL)

    async def stop(self) -> None:
        await self._replace(signal.SIGTERM)

    async def _replace(self, number: signal.Signals) -> None:
        host = self._world.engine
        host.process.send(number)
        await host.process.ended()
        await self._progress(100)
        await host.start(self._servers)

    async def hang(self) -> None:
        await self._hang([self._world.engine.process.pid])

    async def hang_backend(self) -> None:
        """Stop the process of the database that works for the engine, in whatever it does."""
        rows = await self._ask(f"SELECT pid {OURS} AND query NOT LIKE '%FROM restante.lease%'")
        await self._hang([pid for (pid,) in rows])

    async def _hang(self, pids: list[int]) -> None:
        """Stop processes until about a take-over, or until another server has served for a while."""
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._dice.choice((3, 3 + 1.5 * self._dice.random(), 10))):
                        await self._progress(400)

    async def restart(self) -> None:
        number = self._dice.choice((signal.SIGINT, signal.SIGQUIT))
        await asyncio.to_thread(self._servers.primary.stop, number)
        await asyncio.to_thread(self._servers.primary.start)

    async def fail_over(self) -> None:
        await asyncio.to_thread(self._servers.fail_over)

    async def fail_over_after_cancelled_waits(self) -> None:
        """Cancel what waits for the standby that is away. Then the standby takes the place of the primary."""
        await asyncio.to_thread(self._servers.standby.stop)
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0.2)
            await self._ask(f"SELECT pg_cancel_backend(pid) {OURS} AND wait_event = 'SyncRep'")
        await asyncio.to_thread(self._servers.standby.start)
        await self.fail_over()

    async def go_on(self) -> None:
        kinds = [self.cut, self.cancel, self.kill, self.stop, self.hang, self.hang_backend, self.restart]
        kinds += [self.fail_over, self.fail_over_after_cancelled_waits]
        while not self.over:
            self._dice.shuffle(kinds)
            for kind in kinds:
                await self._progress(self._dice.randrange(200))
                if self.over:
                    return
                await kind()
                self.number += 1


@pytest.mark.thorough
@on_uvloop
async def test_no_client_sees_that_servers_and_databases_come_and_go(
    pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    dice, calls = random.Random(pytestconfig.option.seed), CALLS * (pytestconfig.option.effort or 1)
    with pair() as servers, contextlib.ExitStack() as ports:
        hosts = [Host(servers.url, ports.enter_context(held_port())) for _ in range(SERVERS)]
        world = World(hosts, dice)
        try:
            for host in hosts:
                await host.start(servers)
            faults = Faults(world, servers)
            happening = asyncio.create_task(faults.go_on())
            rooms = asyncio.gather(*(visit(world, calls) for _ in range(ROOMS)))
            await asyncio.wait((rooms, happening), return_when=asyncio.FIRST_COMPLETED)
            faults.over = True
            await happening
            await rooms
            [(terms,)] = servers.primary.rows("SELECT term FROM restante.lease")
        finally:
            for host in hosts:
                await host.process.end()
    world.contradictions += contradictions_of_nameplates(world.lifetimes, world.lists)
    figure = f"{world.answered} calls of clients were answered in {terms} terms, with {faults.number} faults"
    record_property("figure", figure)
    assert world.contradictions == []
