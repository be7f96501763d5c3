"""The server in this process, with a gate before its COMMIT."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from restante.common.dice import SystemDice
from restante.common.listening import listen_address
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.server.server import Server
from restante.mailbox.server.system import SystemClock
from restante.mailbox.server.welcome import WelcomeOptions
from restante.mailbox.store import sqlite
from restante.mailbox.store.sqlite import Store
from support.bounds import BOUND, bounded
from support.mailbox.clients import Client, Frame

TURNS: Final = 3


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


class Inside:
    """A server that listens."""

    def __init__(self, store: Store, commit_loop: CommitLoop, server: Server, url: str) -> None:
        assert isinstance(store.database, Gated)
        self.gate = store.database.gate = Gate()
        self.store = store
        self.commit_loop = commit_loop
        self.server = server
        self.url = url
        self.running = asyncio.create_task(commit_loop.run())


@asynccontextmanager
async def inside(
    data: Path, loop_type: type[CommitLoop] = CommitLoop, retention: Retention | None = None
) -> AsyncIterator[Inside]:
    """Serve from this process, on a free port; every commit is made in the thread, however fast the disk is."""
    clock = SystemClock()
    with patch.object(sqlite, "FAST_FLUSH_SECONDS", 0.0):
        with patch("sqlite3.connect", partial(sqlite3.connect, factory=Gated)):
            store = Store.open(data)
        commit_loop = await loop_type.open(store, clock, SystemDice(), Policy(), retention or Retention())
        server = Server(commit_loop, clock, WelcomeOptions())
        [at] = await server.listeners.listen(listen_address("127.0.0.1:0", "--listen"))
        here = Inside(store, commit_loop, server, f"ws://{at}/v1")
        try:
            yield here
        finally:
            here.gate.open()
            store.database.set_authorizer(None)
            failed = here.running.done()
            if failed and store.database.in_transaction:
                store.database.execute("ROLLBACK")  # as the end of the process would
            await server.drain(asyncio.create_task(asyncio.sleep(0)) if failed else here.running)
            await store.close()


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
