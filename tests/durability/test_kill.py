"""kill -9 under load: whatever was answered is there after the restart, once. So the commit came before the answer.

What a killed process has written stays with the kernel; that a commit reaches the disk is for test_disk.py.
"""

import asyncio
import random
import signal
from pathlib import Path
from typing import Final

import pytest

from support.bounds import bounded
from support.mailbox.clients import Client, Clients, LostError
from support.processes import evidence, serving

SESSIONS: Final = 12
"""New ones in each round, of two sides each: they get well over 500 answers."""
ADDS: Final = 9
LENGTHS: Final = (20, 300, 6000)
"""Characters of the bodies: also of those that need more than one page of the database."""


class Session:
    """Two sides with a code. Nobody releases or closes before both are there, so there is one mailbox."""

    def __init__(self, number: int) -> None:
        self.app = f"session-{number}"
        self.nameplate = self.mailbox = ""
        self.named, self.both_there = asyncio.Event(), asyncio.Event()
        self.sides = [Side(self, name) for name in "ab"]


class Side:
    """One side, over all its connections. It takes up what was not answered, as shipped clients do."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name
        self.bodies = [f"{name} {number} ".ljust(LENGTHS[number % 3], ".") for number in range(ADDS)]
        self.added = self.acked = 0
        """How many bodies it has added, and how many of these were answered."""
        self.there = self.releasing = self.released = self.closing = self.closed = False

    async def play(self, clients: Clients, url: str) -> None:
        """Come back to where it was and go on to the end."""
        session = self.session
        client = await clients.bind(url, session.app, self.name)
        if not session.nameplate and self.name == "a":
            session.nameplate = (await client.call("allocate"))["nameplate"]
            session.named.set()
        await session.named.wait()
        if not self.releasing:
            mailbox = (await client.call("claim", nameplate=session.nameplate))["mailbox"]
            assert session.mailbox in {"", mailbox}, "the same claim, another mailbox"
            session.mailbox = mailbox
        if not self.closing:
            await self.talk(client)
        self.closing = True
        await client.call("close", mailbox=session.mailbox, mood="happy")
        self.closed = True

    async def talk(self, client: Client) -> None:
        session = self.session
        await client.call("open", mailbox=session.mailbox)
        await client.call("ping", ping="that was all")
        self.check([(frame["side"], frame["body"]) for frame in client.heard])
        self.there = True
        if all(side.there for side in session.sides):
            session.both_there.set()
        while self.acked < ADDS:
            burst = range(self.acked, min(self.acked + 3, ADDS))
            self.added = burst.stop
            commands = [await client.say("add", phase=str(number), body=self.bodies[number]) for number in burst]
            for command in commands:
                await client.answers(command)
                self.acked += 1
        await session.both_there.wait()
        if not self.released:
            self.releasing = True
            await client.call("release", nameplate=session.nameplate)
            self.released = True

    def check(self, heard: list[tuple[str, str]]) -> None:
        """What is stored has all that was answered, and each body of a side once and in order."""
        for side in self.session.sides:
            bodies = [body for name, body in heard if name == side.name]
            assert bodies == side.bodies[: len(bodies)], f"{self.session.app}: heard by {self.name}"
            assert side.acked <= len(bodies) <= side.added, f"{self.session.app}: messages of {side.name}"
        self.acked = self.added = sum(name == self.name for name, _ in heard)


def kill_at_answer(number: int, clients: Clients, process: object) -> asyncio.Event:
    """Kill the server when the clients have had so many answers, all told: a moment of the load, not of a clock."""
    killed = asyncio.Event()
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            process.kill()  # type: ignore[attr-defined]
            killed.set()

    clients.on_answer = count
    return killed


async def until_killed(data: Path, sessions: list[Session], answers: int) -> int:
    """Let all sessions go on, and kill the server in the middle of it; return how many commands were under way."""
    async with Clients() as clients, serving(data) as server:
        killed = kill_at_answer(answers, clients, server)
        sides = [side for session in sessions for side in session.sides if not side.closed]
        playing = [asyncio.create_task(side.play(clients, server.url)) for side in sides]
        async with bounded("the kill"):
            await killed.wait()
        assert await server.ended() == -signal.SIGKILL, server.log
        for client in clients.all:
            await client.ends()
        for task in playing:
            task.cancel()  # some wait for another side
        for outcome in await asyncio.gather(*playing, return_exceptions=True):
            if not isinstance(outcome, LostError | asyncio.CancelledError | None):
                raise outcome
        return sum(not command.answered for client in clients.all for command in client.said)


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.thorough)])
async def test_every_answered_command_survives_every_kill(tmp_path: Path, kills: int) -> None:
    data, dice = tmp_path / "data", random.Random(20260117)
    sessions: list[Session] = []
    interrupted = 0
    for _ in range(kills):
        sessions += [Session(len(sessions) + number) for number in range(SESSIONS)]
        interrupted += await until_killed(data, sessions, dice.randrange(50, 500))
        with evidence(data) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    assert interrupted, "no kill hit a command under way"
    async with Clients() as clients, serving(data) as server, asyncio.TaskGroup() as playing:
        for side in [side for session in sessions for side in session.sides if not side.closed]:
            playing.create_task(side.play(clients, server.url))
    with evidence(data) as database:
        for table in ("mailboxes", "nameplates", "messages"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        for table in ("usage_mailboxes", "usage_nameplates"):
            results = database.execute(f"SELECT result, count(*) FROM {table} GROUP BY result").fetchall()
            assert results == [("happy", len(sessions))], table
