"""A mailbox server in the test's own loop, with a clock of the test's; and one with a gate before its COMMIT."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

from msgspec.structs import replace

from restante.common.listening import listen_address
from restante.mailbox.core.admission import Admission
from restante.mailbox.core.limits import MIB, UNLIMITED, Limits
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import GRACE_SECONDS, CommitLoop, Retention
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.server import Server
from restante.mailbox.server.welcome import WelcomeOptions
from restante.mailbox.store import sqlite
from restante.mailbox.store.sqlite import Store
from support.bounds import BOUND, bounded
from support.dice import FakeDice
from support.mailbox.clients import Client, Frame
from support.mailbox.givens import FakeClock
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

TURNS: Final = 3


class LiveServer:
    """The server. It can be stopped, and started again on the same data and port."""

    clock_type = FakeClock

    def __init__(
        self,
        data: Path,
        *,
        limits: Limits = UNLIMITED,
        retention: Retention | None = None,
        admission: Admission | None = None,
        **welcome_options: Any,
    ) -> None:
        if limits.message_bytes == UNLIMITED.message_bytes:
            limits = replace(limits, message_bytes=MIB)
        self.clock = self.clock_type()
        self.port = 0
        self.clients: list[RawSocket] = []
        self._data, self._dice = data, FakeDice()
        self._policy, self._retention = Policy(limits=limits), retention or Retention()
        self._admission, self._welcome = admission, WelcomeOptions(**welcome_options)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        with held_port() as self.port:
            await self.start()
            try:
                yield self
            finally:
                await self.stop()

    async def start(self) -> None:
        self.store = Store.open(self._data)
        self.commit_loop = await CommitLoop.open(self.store, self.clock, self._dice, self._policy, self._retention)
        self.server = Server(self.commit_loop, self.clock, self._welcome, self._admission)
        await self.server.listeners.listen(listen_address(f"127.0.0.1:{self.port}", "--listen"))
        self.running = asyncio.create_task(self.commit_loop.run())

    async def stop(self) -> None:
        """Drain. A failed test has left clients, and a drain waits for ever until they read: its clock stands."""
        for client in self.clients:
            client.cut()
        if not self.running.done():
            await self.server.drain(self.running)
        await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def wait(self, seconds: float) -> None:
        """Let the time pass, and prune. A server prunes nothing in its first minutes, which pass before."""
        for part in (GRACE_SECONDS, max(seconds - GRACE_SECONDS, 0.0)):
            self.clock.now += part
            self.commit_loop.start_pruning()
            async with bounded("the end of the pruning"):
                await self.commit_loop.idle.wait()

    # ── its clients ──────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"

    async def connect(self) -> RawSocket:
        """Connect, and say nothing."""
        self.clients.append(await RawSocket.connect(self.port))
        return self.clients[-1]

    async def dial(self, path: str = "/v1", **headers: str) -> RawSocket:
        """Connect and shake hands."""
        self.clients.append(await RawSocket.dial(self.port, path, **headers))
        return self.clients[-1]

    async def enter(self, **headers: str) -> RawSocket:
        """Connect, and take the welcome."""
        socket = await self.dial(**headers)
        assert socket.status == "HTTP/1.1 101 Switching Protocols"
        assert (await socket.hear())["type"] == "welcome"
        return socket

    async def member(self, side: str, mailbox: str = "m") -> RawSocket:
        """Connect, and open a mailbox; the answers to that are not read."""
        socket = await self.enter()
        socket.say(type="bind", appid="x", side=side)
        socket.say(type="open", mailbox=mailbox)
        return socket

    @property
    def latest(self) -> Socket:
        """The server's end of the connection that came last."""
        return max(self.server.sockets(), key=lambda socket: socket.connection.number)

    # ── what lives in it ─────────────────────────────────────────────────────────────────────────

    @property
    def mailboxes(self) -> int:
        return len(list(self.commit_loop.dispatcher.state.mailboxes()))

    @property
    def messages(self) -> int:
        return sum(len(mailbox.messages) for mailbox in self.commit_loop.dispatcher.state.mailboxes())


def open_live(data: Path, **options: Any) -> AbstractAsyncContextManager[LiveServer]:
    return LiveServer(data, **options).serving()


# ── with a gate ──────────────────────────────────────────────────────────────────────────────────


class Gate:
    """Stands before COMMIT, open at first. When it is shut, the thread that comes waits until it is let through."""

    def __init__(self) -> None:
        self.waits_for_the_lock = asyncio.Event()
        """Set when the store waits, in its thread, for another program that is writing."""
        self._shut = False
        self._tickets = threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._reached = asyncio.Event()

    def shut(self) -> None:
        self._shut = True

    def open(self) -> None:
        self._shut = False
        self.let_one_through()

    def let_one_through(self) -> None:
        self._reached.clear()
        self._tickets.release()

    async def reached(self) -> None:
        """Wait until a commit waits here."""
        async with bounded("a commit at the gate"):
            await self._reached.wait()

    def pass_through(self, sql: str) -> None:
        """Called before each statement, in its thread."""
        on_the_loop = threading.get_ident() == self._loop_thread
        if sql == "BEGIN IMMEDIATE" and not on_the_loop:
            self._loop.call_soon_threadsafe(self.waits_for_the_lock.set)
        elif sql == "COMMIT" and self._shut:
            assert not on_the_loop, "a gate on the loop would show nothing"
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._tickets.acquire(timeout=BOUND)


class Gated(sqlite3.Connection):
    gate: Gate | None = None

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if self.gate is not None:
            self.gate.pass_through(sql)
        return super().execute(sql, parameters)


class PassingClock(FakeClock):
    """The machine's time."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Inside(LiveServer):
    """A server with a gate. Every commit is made in the thread, however fast the disk is; time passes by itself."""

    clock_type = PassingClock

    async def start(self) -> None:
        with patch("sqlite3.connect", partial(sqlite3.connect, factory=Gated)):
            await super().start()
        assert isinstance(self.store.database, Gated)
        self.gate = self.store.database.gate = Gate()

    async def stop(self) -> None:
        self.gate.open()
        self.store.database.set_authorizer(None)
        if self.running.done():  # it failed
            if self.store.database.in_transaction:
                self.store.database.execute("ROLLBACK")  # as the end of the process would
            self.running = asyncio.create_task(asyncio.sleep(0))
        await super().stop()


@asynccontextmanager
async def inside(data: Path, retention: Retention | None = None) -> AsyncIterator[Inside]:
    with patch.object(sqlite, "FAST_FLUSH_SECONDS", 0.0):
        async with Inside(data, retention=retention).serving() as here:
            yield here


async def news(*clients: Client) -> list[list[Frame]]:
    """Return what each has been told since it was asked last, when all that was sent has come.

    The loop turns several times for each client: what it was about to send, it has sent.
    """
    for _ in range(TURNS):
        for client in clients:
            await client.fence()
    return [client.new() for client in clients]


def kinds(frames: list[Frame]) -> list[str]:
    return [frame["type"] for frame in frames]
