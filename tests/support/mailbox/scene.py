"""A server, a wire to it, and the people who use it: what every test of this folder stands on."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from support.mailbox.proxy import Moment, Order, Proxy, Stop
from support.mailbox.servers import Server
from support.mailbox.wormhole import Client
from support.ports import held_port

# Clients are numbered as they come; tests start the sender first, since the receiver needs its code.
SENDER, RECEIVER = 1, 2


class Scene:
    """Everything runs from `async with` on, and nothing of it after that."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.proxy = Proxy()
        self._folder = folder
        self._clients: list[Client] = []
        self._ends = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.server.port = self.proxy.server_port = self._ends.enter_context(held_port())
        self._ends.push_async_callback(self.server.end)
        await self._ends.enter_async_context(self.proxy)
        self._starting = asyncio.create_task(self._start_server())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._starting is not None
        said = (client.said for client in self._clients)
        print(*self.proxy.transcript, self.server.log(), *said, sep="\n")  # noqa: T201 (pytest shows it with a failure)
        async with self._ends:
            await self._starting
            for client in self._clients:
                await client.end()
            await self.server.stop()

    async def _start_server(self) -> None:
        # While the sender starts too, which takes as long; it must not be refused, since a client whose first
        # connection fails gives up (_rendezvous.py:106). If the server does not start, it is better to be sent away.
        try:
            await self.server.start()
        finally:
            self.proxy.open()

    # people

    async def send_text(self, text: str) -> Client:
        return await self._start("sender", "send", "--text", text)

    async def send_file(self, name: str, content: bytes) -> Client:
        (self._home("sender") / name).write_bytes(content)
        return await self._start("sender", "send", name)

    async def receive(self, code: str, *options: str, name: str = "receiver") -> Client:
        return await self._start(name, "receive", *options, code)

    def received(self, name: str) -> bytes:
        return (self._home("receiver") / name).read_bytes()

    def _home(self, name: str) -> Path:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        return home

    async def _start(self, name: str, *command: str) -> Client:
        client = await Client.start(self._home(name), self.proxy.url, *command)
        self._clients.append(client)
        self._ends.push_async_callback(client.end)
        return client

    # accidents

    def kill(self) -> None:
        """SIGKILL the server; not even what it had already written passes any more."""
        self.server.kill()
        self.proxy.cut()

    def kill_at(self, moment: Moment, order: Order) -> Stop:
        return self.proxy.act(moment, order, self.kill)

    # what must be so at the end

    def assert_one_happy_session(self) -> None:
        """Both sides used one nameplate and one mailbox, each recorded once, and nothing is left of them."""
        assert self.server.usage() == (["happy"], ["happy"])
        assert self.server.live() == {}


async def assert_text_arrives(sender: Client, receiver: Client, text: str) -> None:
    outcome = await receiver.leaves()
    assert (outcome.exit_code, outcome.stdout) == (0, f"{text}\n"), outcome
    outcome = await sender.leaves()
    assert outcome.exit_code == 0, outcome
    assert outcome.stderr.endswith("text message sent\n"), outcome
