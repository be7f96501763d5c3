"""The healthy pair: sessions as shipped clients have them, one after the other, and nothing but what is due comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from support.mailbox.clients import REPLIES, Client, Clients

APP: Final = "lothar.com/wormhole/text-or-file-xfer"
"""Everybody's, attackers included: the nameplates of an app are what they share."""

PHASES: Final = ("version", "0", "1", "2")


async def session(url: str, number: int) -> str:
    """Have a whole session with a code, from the allocation to the last close. Return its mailbox."""
    added: list[tuple[str, str, str]] = []
    sides: dict[str, Client] = {}

    async def add(side: str, phase: str) -> None:
        """Say something, and see that both hear it, after all that went before, and no more."""
        body = f"body of {side} in {phase}"
        added.append((side, phase, body))
        await sides[side].call("add", phase=phase, body=body)
        for client in sides.values():
            await client.until("all messages", lambda: len(client.heard) >= len(added))  # noqa: B023 - at once
            assert [(frame["side"], frame["phase"], frame["body"]) for frame in client.heard] == added

    a, b = f"pair-a-{number}", f"pair-b-{number}"
    async with Clients() as clients:
        sides[a] = await clients.bind(url, APP, a)
        nameplate = (await sides[a].call("allocate"))["nameplate"]
        mailbox: str = (await sides[a].call("claim", nameplate=nameplate))["mailbox"]
        await sides[a].call("open", mailbox=mailbox)
        await add(a, "pake")
        sides[b] = await clients.bind(url, APP, b)
        assert {"id": nameplate} in (await sides[b].call("list"))["nameplates"]
        assert (await sides[b].call("claim", nameplate=nameplate))["mailbox"] == mailbox
        await sides[b].call("open", mailbox=mailbox)
        await add(b, "pake")
        for client in sides.values():
            await client.call("release", nameplate=nameplate)
        for phase, side in itertools.product(PHASES, sides):
            await add(side, phase)
        for client in sides.values():
            await client.call("close", mailbox=mailbox, mood="happy")
    for client in sides.values():
        answers = sum(2 if command.kind in REPLIES else 1 for command in client.said)
        assert len(client.frames) == 1 + answers + len(client.heard), "the welcome, answers and messages, no more"
        assert client.close_code == 1000
    return mailbox


class Pair:
    def __init__(self, port: int) -> None:
        self.url = f"ws://127.0.0.1:{port}/v1"
        self.mailboxes: list[str] = []
        """Of whole sessions, each checked frame by frame."""
        self._news = asyncio.Event()

    async def play(self) -> None:
        try:
            self.mailboxes.append(await session(self.url, len(self.mailboxes) + 1))
        finally:
            self._news.set()

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Have sessions as long as the block lasts, which can wait for so many more; raises what the pair noticed."""
        over = False

        async def play_on() -> None:
            while not over:
                await self.play()

        async def plays(count: int) -> None:
            goal = len(self.mailboxes) + count + 1  # the one at hand began before
            while len(self.mailboxes) < goal:
                if playing.done():
                    playing.result()
                self._news.clear()
                await self._news.wait()

        playing = asyncio.create_task(play_on())
        try:
            yield plays
        finally:
            over = True
            await playing
