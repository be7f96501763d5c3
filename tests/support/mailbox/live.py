"""A mailbox server in the test's own loop, with a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

from msgspec.structs import replace

from restante.common.listening import parse_listen_address
from restante.common.system import system_secret
from restante.mailbox.core.admission import Admission
from restante.mailbox.core.limits import MIB, UNLIMITED, Limits
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import GRACE_SECONDS, CommitLoop, Retention
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.running_settings import admission_terms
from restante.mailbox.server.server import Server, WelcomeOptions
from restante.mailbox.settings import Serve
from restante.mailbox.store.sqlite import SqliteStore
from support.bounds import bounded
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.mailbox.hand_over import hand_over
from support.mailbox.raw_socket import RawSocket
from support.ports import held_port

DAY: Final = 86_400.0

DESCRIPTORS: Final = 1 << 20
"""Files that a server of a test may have open: more than any test needs."""


class LiveServer:
    """The server. It can be stopped, and started again on the same data and port."""

    def __init__(
        self,
        data: Path,
        *,
        limits: Limits = UNLIMITED,
        retention: Retention | None = None,
        trusted: Sequence[str] = (),
        binary: bool = False,
        **welcome_options: Any,
    ) -> None:
        if limits.message_bytes == UNLIMITED.message_bytes:
            limits = replace(limits, message_bytes=MIB)
        self.clock = FakeClock()
        self.port = 0
        self.clients: list[RawSocket] = []
        self._data, self._dice = data, FakeDice()
        self._policy, self._retention = Policy(limits=limits), retention or Retention(prune_after=660.0)
        self._settings, self._binary = Serve(trust_proxy=tuple(trusted)), binary
        self._welcome = WelcomeOptions(**welcome_options)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        with held_port() as self.port:
            await self.start()
            try:
                yield self
            finally:
                await self.stop()

    async def start(self) -> None:
        self.store = SqliteStore.open(self._data)
        self.commit_loop = await CommitLoop.open(self.store, self.clock, self._dice, self._policy, self._retention)
        settings = self._welcome, Admission(admission_terms(self._settings), system_secret)
        self.server = Server(self.commit_loop, self.clock, *settings, descriptors=DESCRIPTORS, binary=self._binary)
        await self.server.listeners.listen(parse_listen_address(f"127.0.0.1:{self.port}", "--listen"))
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

    async def hand_over(self) -> None:
        """Let another process go on, as far as it can be had in this one."""
        self.server = await hand_over(self.server, self._open_again)
        self.running = asyncio.create_task(self.commit_loop.run())

    async def _open_again(self, service: float) -> CommitLoop:
        self.running.cancel()
        self.store.service = service
        self.commit_loop = await CommitLoop.open(self.store, self.clock, self._dice, self._policy, self._retention)
        return self.commit_loop

    async def wait(self, seconds: float) -> None:
        """Let the time pass, and prune. A server prunes nothing in its first minutes, which pass before."""
        for part in (GRACE_SECONDS, max(seconds - GRACE_SECONDS, 0.0)):
            self.clock.now += part
            self.commit_loop.start_pruning()
            async with bounded("the end of the pruning"):
                await self.commit_loop.idle.wait()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1"

    async def connect(self) -> RawSocket:
        self.clients.append(await RawSocket.connect(self.port))
        return self.clients[-1]

    async def dial(self, path: str = "/v1", **headers: str) -> RawSocket:
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

    @property
    def mailboxes(self) -> int:
        return len(list(self.commit_loop.dispatcher.state.mailboxes()))

    @property
    def messages(self) -> int:
        return sum(len(mailbox.messages) for mailbox in self.commit_loop.dispatcher.state.mailboxes())


def open_live(data: Path, **options: Any) -> AbstractAsyncContextManager[LiveServer]:
    return LiveServer(data, **options).serving()
