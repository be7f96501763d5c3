"""A server and the clients that people use, of several languages and versions, in a network of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.bounds import BOUND
from support.mailbox.shipped import Running, Shipped, Words, running
from support.processes import RESTANTE, Serving, serving

KEYS_DIFFER: Final = "decrypt message failed"
"""What the Go client says if the peer's key is another (wormhole/wormhole.go:113)."""
TRANSFERS: Final = 3
"""How often `Deployment.pair` tries a transfer at most: that it fails so often is 1 in 16 million."""


@dataclass
class Deployment:
    """A server and its clients, in a network of their own."""

    inside: Words
    """What puts a command into the network."""
    server: Serving
    folder: Path
    ends: AsyncExitStack
    other: Words | None = None
    """What puts a receiver into its network, if that is another."""
    url: str = ""
    """What the clients connect to, if it is not the server itself."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the clients."""

    async def pair(
        self, transfer: Callable[[], Awaitable[tuple[Running, Running]]], within: float = BOUND
    ) -> tuple[Running, Running]:
        """Start a sender and a receiver, and wait until both have ended; again if a Go client's key was another.

        gospake2 leaves out the last byte of the shared point where it is zero (ed25519group/affine.go, Compress: the
        bytes of a big.Int have no leading zero), so in 1 of 256 transfers a Go client and another have other keys.
        """
        folder = self.folder
        for number in range(TRANSFERS):
            self.folder = folder / str(number)
            self.folder.mkdir()
            sender, receiver = await transfer()
            code = await receiver.ended(within)
            try:
                await sender.ended(within)
            except AssertionError as error:
                error.add_note(f"the receiver ended with {code}: {receiver.said}")
                raise
            if not any(KEYS_DIFFER in client.said["stderr"] for client in (sender, receiver)):
                break
        return sender, receiver

    async def carry(self, sender: Shipped, receiver: Shipped, path: Path, within: float = BOUND) -> Path:
        """Transfer what is at this path. Return the folder where it has arrived."""

        async def transfer() -> tuple[Running, Running]:
            sending = await self.send(sender, path)
            return sending, await self.receive(receiver, await sending.code())

        sending, receiving = await self.pair(transfer, within)
        for client in (receiving, sending):
            assert await client.ended() == 0, (receiving.said, sending.said)
        return receiving.folder

    async def send(self, client: Shipped, path: Path) -> Running:
        """Send the file or directory at this path."""
        return await self._start(client, self.folder / "sender", client.language.send_file, file=str(path))

    async def send_text(self, client: Shipped, text: str) -> Running:
        words = client.language.send_text
        assert words is not None
        return await self._start(client, self.folder / "sender", words, text=text)

    async def receive(self, client: Shipped, code: str, name: str = "receiver") -> Running:
        words, inside = client.language.receive, self.other or self.inside
        return await self._start(client, self.folder / name, words, inside, code=code)

    async def kill_and_restart_server(self) -> None:
        """SIGKILL, and a new process on the same data and port."""
        port, data = self.server.port, self.server.data
        self.server.kill()
        await self.server.ended()
        options = ("--listen", f"127.0.0.1:{port}")
        self.server = await self.ends.enter_async_context(serving(data, (*self.inside, *RESTANTE), options))

    async def _start(
        self, client: Shipped, folder: Path, words: Words, inside: Words | None = None, **values: str
    ) -> Running:
        url = self.url or self.server.url
        started = running(client, inside or self.inside, folder, words, self.variables, url=url, **values)
        return await self.ends.enter_async_context(started)
