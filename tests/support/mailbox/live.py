"""A mailbox server in the test's own loop, with a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from restante.common.listening import listen_address
from restante.mailbox.core.admission import Admission
from restante.mailbox.core.limits import MIB, UNLIMITED, Limits
from restante.mailbox.core.model import Policy
from restante.mailbox.server.commit_loop import CommitLoop, Retention
from restante.mailbox.server.connection import Socket
from restante.mailbox.server.server import Server
from restante.mailbox.server.welcome import WelcomeOptions
from restante.mailbox.store.sqlite import Store
from support.dice import FakeDice
from support.mailbox.givens import FakeClock
from support.mailbox.raw_socket import RawSocket


class LiveServer:
    def __init__(self, server: Server, clock: FakeClock, port: int, running: asyncio.Task[None]) -> None:
        self.server = server
        self.clock = clock
        self.port = port
        self.running = running
        self.clients: list[RawSocket] = []

    async def connect(self) -> RawSocket:
        """Connect, and say nothing."""
        self.clients.append(await RawSocket.connect(self.port))
        return self.clients[-1]

    async def dial(self, path: str = "/v1", **headers: str) -> RawSocket:
        """Connect and shake hands."""
        self.clients.append(await RawSocket.dial(self.port, path, **headers))
        return self.clients[-1]

    async def enter(self) -> RawSocket:
        """Connect, and take the welcome."""
        socket = await self.dial()
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

    def cut_clients(self) -> None:
        """Cut what a failed test has left open. A drain would wait for ever until they read: its clock stands."""
        for each in self.clients:
            each.cut()


@asynccontextmanager
async def open_live(
    data: Path, *, admission: Admission | None = None, limits: Limits = UNLIMITED, **welcome_options: Any
) -> AsyncIterator[LiveServer]:
    store = Store.open(data)
    clock = FakeClock()
    if limits.message_bytes == UNLIMITED.message_bytes:
        limits = replace(limits, message_bytes=MIB)
    policy = Policy(limits=limits)
    commit_loop = await CommitLoop.open(store, clock, FakeDice(), policy, Retention())
    server = Server(commit_loop, clock, WelcomeOptions(**welcome_options), admission)
    [at] = await server.listeners.listen(listen_address("127.0.0.1:0", "--listen"))
    running = asyncio.create_task(commit_loop.run())
    live = LiveServer(server, clock, int(at.rpartition(":")[2]), running)
    try:
        yield live
    finally:
        live.cut_clients()
        if not running.done():
            await server.drain(running)
        await store.close()
