"""The healthy pair: sessions as shipped clients have them, one after the other, and nothing but what is due comes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from support.mailbox.clients import REPLIES, Client

APP: Final = "lothar.com/wormhole/text-or-file-xfer"
"""Everybody's, attackers included: the nameplates of an app are what they share."""

PHASES: Final = ("version", "0", "1", "2")


class Side:
    """One side of a session. It has one command under way at a time."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client

    @classmethod
    async def enter(cls, port: int, name: str) -> Side:
        """Connect, and bind."""
        side = cls(name, await Client.connect(f"ws://127.0.0.1:{port}/v1"))
        await side.client.call("bind", appid=APP, side=name)
        return side

    async def hears(self, messages: list[tuple[str, str, str]]) -> None:
        """Wait until it has heard these, and no others."""
        client = self.client
        await client.until("all messages", lambda: len(client.heard) >= len(messages))
        assert [(frame["side"], frame["phase"], frame["body"]) for frame in client.heard] == messages

    async def leave(self) -> None:
        """Say goodbye. It was told all answers and messages, and nothing else."""
        client = self.client
        await client.leave()
        answers = sum(2 if command.kind in REPLIES else 1 for command in client.said)
        assert len(client.frames) == 1 + answers + len(client.heard)
        assert client.close_code == 1000


async def session(port: int, number: int) -> str:
    """Have a whole session with a code, from the allocation to the last close. Return its mailbox."""
    added: list[tuple[str, str, str]] = []
    sides: list[Side] = []

    async def enter(name: str) -> Side:
        sides.append(await Side.enter(port, f"{name}-{number}"))
        return sides[-1]

    async def add(side: Side, phase: str) -> None:
        """Say something, and see that both hear it, after all that went before."""
        body = f"body of {side.name} in {phase}"
        added.append((side.name, phase, body))
        await side.client.call("add", phase=phase, body=body)
        for listener in sides:
            await listener.hears(added)

    try:
        a = await enter("pair-a")
        nameplate = (await a.client.call("allocate"))["nameplate"]
        mailbox: str = (await a.client.call("claim", nameplate=nameplate))["mailbox"]
        await a.client.call("open", mailbox=mailbox)
        await add(a, "pake")
        b = await enter("pair-b")
        assert {"id": nameplate} in (await b.client.call("list"))["nameplates"]
        assert (await b.client.call("claim", nameplate=nameplate))["mailbox"] == mailbox
        await b.client.call("open", mailbox=mailbox)
        await add(b, "pake")
        for side in (a, b):
            await side.client.call("release", nameplate=nameplate)
        for phase, side in itertools.product(PHASES, (a, b)):
            await add(side, phase)
        for side in (a, b):
            await side.client.call("close", mailbox=mailbox, mood="happy")
        for side in (a, b):
            await side.leave()
        return mailbox
    finally:
        for side in sides:
            side.client.vanish()


class Pair:
    """Has sessions. Whether it plays alone or beside an attack, each is the same."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.played = 0
        """Whole sessions, each checked frame by frame."""
        self.mailboxes: list[str] = []
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self._enough = False
        self._playing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run sessions without end."""
        self._enough = False
        self._playing = asyncio.create_task(self._play())

    async def stop(self) -> None:
        """Finish the session at hand. Raises what the pair noticed, if it noticed anything."""
        assert self._playing is not None
        self._enough = True
        await self._playing

    async def plays(self, count: int) -> None:
        """Wait for so many more sessions, begun and finished from now on. Each of their waits is bounded."""
        assert self._playing is not None
        goal = self.played + count + 1  # the one at hand began before
        while self.played < goal:
            if self._playing.done():
                self._playing.result()
            self._news.clear()
            await self._news.wait()

    async def _play(self) -> None:
        try:
            while not self._enough:
                await self.play()
        finally:
            self._news.set()

    async def play(self) -> None:
        """Run one session."""
        self.mailboxes.append(await session(self.port, next(self._numbers)))
        self.played += 1
        self._news.set()
