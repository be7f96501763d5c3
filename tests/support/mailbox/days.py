"""A mailbox server on a real port in the test's own loop, whose clock a test sets forward by days."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from restante.common.listening import listen_address
from restante.mailbox.core.limits import UNLIMITED
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import GRACE_SECONDS, CommitLoop, Retention
from restante.mailbox.server.server import Server
from restante.mailbox.server.welcome import WelcomeOptions
from restante.mailbox.store.sqlite import Store
from support.bounds import bounded
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.ports import held_port

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR


class ServerOfDays:
    """The server. It can be stopped, and started again on the same data and port."""

    def __init__(self, data: Path, port: int, prune_after: float) -> None:
        self.port = port
        self._data = data
        self._retention = Retention(prune_after=prune_after)
        self._clock = FakeClock()
        self._dice = FakeDice()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._store = Store.open(self._data)
        policy = Policy(limits=UNLIMITED)
        self._commit_loop = await CommitLoop.open(self._store, self._clock, self._dice, policy, self._retention)
        self._server = Server(self._commit_loop, self._clock, WelcomeOptions())
        await self._server.listeners.listen(listen_address(f"127.0.0.1:{self.port}", "--listen"))
        self._running = asyncio.create_task(self._commit_loop.run())

    async def stop(self) -> None:
        await self._server.drain(self._running)
        await self._store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def wait(self, seconds: float) -> None:
        """Let the time pass, and prune. A server prunes nothing in its first minutes, which pass before."""
        for each in (GRACE_SECONDS, max(seconds - GRACE_SECONDS, 0.0)):
            self._clock.now += each
            self._commit_loop.start_pruning()
            async with bounded("the end of the pruning"):
                await self._commit_loop.idle.wait()

    @property
    def mailboxes(self) -> int:
        """How many live."""
        return sum(len(app.mailboxes) for app in self._commit_loop.dispatcher.state.apps.values())

    @property
    def messages(self) -> int:
        """How many messages are in them."""
        apps = self._commit_loop.dispatcher.state.apps.values()
        return sum(len(each.messages) for app in apps for each in app.mailboxes.values())


@asynccontextmanager
async def server_of_days(data: Path, prune_after: float = 7 * DAY) -> AsyncIterator[ServerOfDays]:
    """Serve mailboxes, and keep idle ones for `prune_after` seconds."""
    with held_port() as port:
        server = ServerOfDays(data, port, prune_after)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()
