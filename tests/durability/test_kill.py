"""kill -9 under load: whatever was answered is there after the restart, once. So the commit came before the answer.

What a killed process has written stays with the kernel; that a commit reaches the disk is for test_disk.py.
"""

import asyncio
import random
import signal
from pathlib import Path
from typing import Final

from durability.promises import Kept, broken_promises
from durability.talks import Side, Talk
from support.bounds import bounded
from support.effort import rounds
from support.mailbox.clients import Client, Clients, LostError
from support.processes import RESTANTE, Serving, altered, evidence, serving

KILLS: Final = rounds(3, 8)
TALKS: Final = 16
"""New ones in each round, of two clients each: they get well over 500 answers."""
EARLIEST, LATEST = 50, 500
"""When the kill comes, in answers."""

Attendance = tuple[Talk, Side, Client]


class Load:
    """Rounds of talks on one data directory."""

    def __init__(self, seed: int, data: Path) -> None:
        self.data = data
        self.talks: list[Talk] = []
        self.interrupted = 0
        """Commands that were under way at a kill."""
        self._dice = random.Random(seed)
        self._kept: dict[Talk, Kept] = {}

    async def until_killed(self, program: tuple[str, ...] = RESTANTE) -> None:
        """Continue open sessions, start more, and kill the server in the middle of it."""
        async with Clients() as clients, serving(self.data, program) as server:
            back = await self._come_back(clients, server)
            killed = _kill_at_answer(self._dice.randrange(EARLIEST, LATEST), clients, server)
            doings = [asyncio.create_task(talk.proceed(side, client, stay=False)) for talk, side, client in back]
            for talk in self._new_talks():
                stays = talk.dice.random() < 0.3
                doings += [
                    asyncio.create_task(_attend(talk, side, clients, server, stay=stays)) for side in talk.sides
                ]
            async with bounded("the kill"):
                await killed.wait()
            assert await server.ended() == -signal.SIGKILL, server.log
            for client in clients.all:
                await client.ends()
            for doing in doings:
                doing.cancel()  # some wait for another side
            for outcome in await asyncio.gather(*doings, return_exceptions=True):
                if not isinstance(outcome, LostError | asyncio.CancelledError | None):
                    raise outcome
            self.interrupted += sum(not command.answered for client in clients.all for command in client.said)

    async def to_the_end(self) -> None:
        """Continue open sessions and finish them."""
        async with Clients() as clients, serving(self.data) as server:
            async with asyncio.TaskGroup() as doings:
                for talk, side, client in await self._come_back(clients, server):
                    doings.create_task(talk.proceed(side, client, stay=False))
            await server.stop()

    def losses(self) -> list[str]:
        """Look at what is on disk while no server runs."""
        with evidence(self.data) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            self._kept = {talk: Kept(db, talk.app) for talk in self.talks}
        return [problem for talk, kept in self._kept.items() for problem in broken_promises(talk, kept)]

    def _new_talks(self) -> list[Talk]:
        new = [Talk(len(self.talks) + i, random.Random(self._dice.random())) for i in range(TALKS)]
        self.talks += new
        return new

    async def _come_back(self, clients: Clients, server: Serving) -> list[Attendance]:
        """Bring every side back to where it was. It must hear every message that is on disk once, in order."""
        async with asyncio.TaskGroup() as doings:
            entering = [
                (talk, side, doings.create_task(talk.enter(side, clients, server.url)))
                for talk in self.talks
                for side in talk.unfinished()
            ]
        back = [(talk, side, entered.result()) for talk, side, entered in entering if not side.has_said("close")]
        for talk, side, client in back:
            heard = [(frame["side"], frame["body"]) for frame in client.heard]
            assert heard == self._kept[talk].messages, f"{talk.app}: replayed to {side.name}"
        return back


async def _attend(talk: Talk, side: Side, clients: Clients, server: Serving, *, stay: bool) -> None:
    client = await talk.enter(side, clients, server.url)
    await talk.proceed(side, client, stay=stay)
    if not stay and talk.dice.random() < 0.5:
        await client.leave()


def _kill_at_answer(number: int, clients: Clients, server: Serving) -> asyncio.Event:
    """Kill the server when the clients have had so many answers, all told: a moment of the load, not of a clock."""
    killed = asyncio.Event()
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            server.process.kill()
            killed.set()

    clients.on_answer = count
    return killed


async def test_every_answered_command_survives_every_kill(tmp_path: Path) -> None:
    load = Load(20260117, tmp_path / "data")
    for _ in range(KILLS):
        await load.until_killed()
        assert load.losses() == []
    assert load.interrupted, "no kill hit a command under way"
    await load.to_the_end()
    assert load.losses() == []
    with evidence(load.data) as db:
        for table in ("mailboxes", "nameplates", "messages"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        assert db.execute("SELECT count(*) FROM usage_mailboxes").fetchone() == (len(load.talks),)


async def test_the_test_notices_a_server_that_answers_before_it_commits(tmp_path: Path) -> None:
    load = Load(8, tmp_path / "data")
    await load.until_killed(altered("commits-late"))
    assert load.losses()
