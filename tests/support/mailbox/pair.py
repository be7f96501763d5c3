"""The healthy pair: sessions as shipped clients have them, one after the other, and nothing but what is due comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from support.mailbox.clients import REPLIES, Client

Frame = dict[str, Any]

APP: Final = "lothar.com/wormhole/text-or-file-xfer"
"""Everybody's, attackers included: the nameplates of an app are what they share."""

PHASES: Final = ("version", "0", "1", "2")


class Side:
    """One side of a session. It has one command under way at a time."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.claimed = False
        self.opened = False
        self.client: Client | None = None
        self._url = f"ws://127.0.0.1:{port}/v1"

    async def enter(self) -> None:
        """Connect, and bind."""
        self.claimed = self.opened = False
        self.client = await Client.connect(self._url)
        await self.call("bind", appid=APP, side=self.name)

    async def call(self, kind: str, **fields: object) -> Frame:
        assert self.client is not None
        return await self.client.call(kind, **fields)

    async def hears(self, messages: list[tuple[str, str, str]]) -> None:
        """Wait until it has heard these on this connection, and no others."""
        client = self.client
        assert client is not None
        await client.until("all messages", lambda: len(client.heard) >= len(messages))
        assert [(frame["side"], frame["phase"], frame["body"]) for frame in client.heard] == messages

    async def leave(self) -> None:
        """Say goodbye. It was told all answers and messages, and nothing else."""
        assert self.client is not None
        await self.client.leave()
        answers = sum(2 if command.kind in REPLIES else 1 for command in self.client.said)
        assert len(self.client.frames) == 1 + answers + len(self.client.heard)
        assert self.client.close_code == 1000
        self.client = None

    def vanish(self) -> None:
        """Leave without a word."""
        if self.client is not None:
            self.client.vanish()
            self.client = None


class Session:
    """A session of two sides with a code, from the allocation to the last close."""

    def __init__(self, port: int, number: int) -> None:
        self.port = port
        self.nameplate = ""
        self.mailbox = ""
        self.a = Side(port, f"pair-a-{number}")
        self.b = Side(port, f"pair-b-{number}")
        self._added: list[tuple[str, str, str]] = []

    async def whole(self) -> None:
        async for _ in self.steps():
            pass

    async def steps(self) -> AsyncGenerator[str]:
        """Go through it; gives what was done, after each step. Nobody stays when it is over, or given up."""
        a, b = self.a, self.b
        try:
            await a.enter()
            self.nameplate = (await a.call("allocate"))["nameplate"]
            yield "a allocated"
            self.mailbox = await self._claim(a)
            yield "a claimed"
            await self._open(a)
            yield "a opened"
            await self._add(a, b, "pake")
            yield "a spoke"
            await b.enter()
            assert {"id": self.nameplate} in (await b.call("list"))["nameplates"]
            assert await self._claim(b) == self.mailbox
            yield "b claimed"
            await self._open(b)
            yield "b opened"
            await self._add(b, a, "pake")
            yield "b spoke"
            for side in (a, b):
                await self._release(side)
                yield f"{side.name} released"
            for phase, (side, other) in itertools.product(PHASES, ((a, b), (b, a))):
                await self._add(side, other, phase)
            yield "both spoke"
            for side in (a, b):
                await self._close(side)
                yield f"{side.name} closed"
            await a.leave()
            await b.leave()
        finally:
            a.vanish()
            b.vanish()

    @asynccontextmanager
    async def away(self, side: Side) -> AsyncIterator[None]:
        """Leave and come back, as when the network changed: all is as it was, and all that was said is there."""
        if side.client is None:
            yield
            return
        claimed, opened = side.claimed, side.opened
        await side.leave()
        yield
        await side.enter()
        if not self.mailbox:
            assert (await side.call("allocate"))["nameplate"] == self.nameplate
        if claimed:
            assert await self._claim(side) == self.mailbox
        if opened:
            await self._open(side)

    async def _claim(self, side: Side) -> str:
        side.claimed = True
        mailbox: str = (await side.call("claim", nameplate=self.nameplate))["mailbox"]
        return mailbox

    async def _open(self, side: Side) -> None:
        side.opened = True
        await side.call("open", mailbox=self.mailbox)
        await side.hears(self._added)

    async def _release(self, side: Side) -> None:
        side.claimed = False
        await side.call("release", nameplate=self.nameplate)

    async def _close(self, side: Side) -> None:
        side.opened = False
        await side.call("close", mailbox=self.mailbox, mood="happy")

    async def _add(self, side: Side, other: Side, phase: str) -> None:
        """Say something, and see that both hear it, after all that went before."""
        body = f"body of {side.name} in {phase}"
        self._added.append((side.name, phase, body))
        await side.call("add", phase=phase, body=body)
        for listener in (side, other):
            if listener.opened:
                await listener.hears(self._added)


class Pair:
    """Has sessions. Whether it plays alone or beside an attack, each is the same."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.played = 0
        """Whole sessions, each checked frame by frame."""
        self.mailboxes: list[str] = []
        self.nameplates: list[str] = []
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self._enough = False
        self._playing: asyncio.Task[None] | None = None

    def session(self) -> Session:
        return Session(self.port, next(self._numbers))

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
        session = self.session()
        await session.whole()
        self.played += 1
        self.nameplates.append(session.nameplate)
        self.mailboxes.append(session.mailbox)
        self._news.set()
