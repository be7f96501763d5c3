"""The healthy pair: sessions as shipped clients have them, one after the other, and nothing but what is due comes.

And a server under siege, with a clock that the test moves, of which the pair must not notice anything.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from support.bounds import bounded
from support.mailbox.clients import REPLIES, Client
from support.mailbox.live import LiveServer
from support.mailbox.raw_socket import RawSocket

APP: Final = "lothar.com/wormhole/text-or-file-xfer"
"""Everybody's, attackers included: the nameplates of an app are what they share."""

PHASES: Final = ("version", "0", "1", "2")


async def enter(port: int, side: str) -> Client:
    """Connect, and bind."""
    client = await Client.connect(f"ws://127.0.0.1:{port}/v1")
    await client.call("bind", appid=APP, side=side)
    return client


async def leave(client: Client) -> None:
    """Say goodbye. It was told all answers and messages, and nothing else."""
    await client.leave()
    answers = sum(2 if command.kind in REPLIES else 1 for command in client.said)
    assert len(client.frames) == 1 + answers + len(client.heard)
    assert client.close_code == 1000


async def session(port: int, number: int) -> str:
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
    try:
        sides[a] = await enter(port, a)
        nameplate = (await sides[a].call("allocate"))["nameplate"]
        mailbox: str = (await sides[a].call("claim", nameplate=nameplate))["mailbox"]
        await sides[a].call("open", mailbox=mailbox)
        await add(a, "pake")
        sides[b] = await enter(port, b)
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
            await leave(client)
        return mailbox
    finally:
        for client in sides.values():
            client.vanish()


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


EVENTS: Final = {"listening", "draining", "stopped", "refused", "other refusals", "ended mailboxes had visitors"}
"""All that a server logs that serves, whoever comes."""


class Siege:
    """Attackers of a server, and an honest pair beside them."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.pair = Pair(live.port)
        self.secrets: set[str] = set()
        """What attackers said that nobody may read in the log."""

    async def call(self, client: RawSocket, **command: Any) -> dict[str, Any]:
        """Say a command; gives what comes after its ack."""
        client.say(**command)
        assert (await client.hear())["type"] == "ack"
        return await client.hear()

    async def bind(self, side: str, app: str = APP, **headers: str) -> RawSocket:
        """Connect as a side of an app."""
        socket = await self.live.enter(**headers)
        self.secrets.add(side)
        socket.say(type="bind", appid=app, side=side)
        assert (await socket.hear())["type"] == "ack"
        return socket

    async def close(self, client: RawSocket, mailbox: str) -> None:
        client.say(type="close", mailbox=mailbox)
        while (await client.hear())["type"] != "closed":
            pass

    @asynccontextmanager
    async def beside_the_pair(self, attack: str, sessions: int = 2) -> AsyncIterator[None]:
        """The pair plays as long as the block lasts, and so many sessions at least; it may notice nothing."""
        self.pair.start()
        try:
            await self.pair.plays(1)
            yield
            await self.pair.plays(sessions)
        except BaseException as error:
            error.add_note(f"beside {attack}")
            raise
        finally:
            self.everybody_goes()
            await self.pair.stop()

    def everybody_goes(self) -> None:
        while self.live.clients:
            self.live.clients.pop().cut()

    async def fence(self) -> None:
        """Wait for a turn of the server's loop: it has then noticed everything that happened before."""
        socket = await self.live.enter()
        await socket.is_served()
        await socket.leave()
        self.live.clients.remove(socket)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something that nobody tells; between two looks the server's loop turns."""
        async with bounded(what):
            while not holds():
                await self.fence()

    def empty(self) -> bool:
        """Return whether nobody is connected and nothing is held for anybody."""
        server = self.live.server
        return (server.sockets(), server.held, len(server.memory_holders)) == ([], 0, 0)

    def check_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        assert {line["log_level"] for line in lines} <= {"info", "warning"}, lines
        assert {line["event"] for line in lines} <= EVENTS, lines
        logged = "\n".join(str(line) for line in lines if line["event"] != "listening")
        for secret in (APP, "pair-a", "pair-b", "body of", "127.0.0.1", *self.pair.mailboxes, *self.secrets):
            assert secret not in logged
