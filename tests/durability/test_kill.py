"""kill -9 under load: whatever was answered is there after the restart, once. Flushes are for test_disk.py."""

import asyncio
import itertools
import json
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from support.bounds import bounded
from support.loops import until
from support.mailbox.clients import Client, Clients, LostError, SaidCommand
from support.processes import called, database, evidence, restante, serving

SESSIONS: Final = 12
"""New ones in each round, of two sides each: they get well over 500 answers."""
ADDS: Final = 9
LENGTHS: Final = (20, 300, 6000, 100_000)
"""Characters of the bodies: also of those that need more than one page of the database, or many."""


class KilledSession:
    """Two sides with a code. Nobody releases or closes before both are there, so there is one mailbox."""

    def __init__(self, number: int) -> None:
        self.app = f"session-{number}"
        self.nameplate = self.mailbox = ""
        self.named, self.both_there = asyncio.Event(), asyncio.Event()
        self.sides = [KilledSide(self, name) for name in "ab"]


class KilledSide:
    """One side, over all its connections. It takes up what was not answered, as shipped clients do."""

    def __init__(self, session: KilledSession, name: str) -> None:
        self.session = session
        self.name = name
        self.bodies = [f"{name} {number} ".ljust(LENGTHS[number % 3], ".") for number in range(ADDS)]
        self.added = self.acked = 0
        self.there = self.releasing = self.released = self.closing = self.closed = False

    async def play(self, clients: Clients, url: str) -> None:
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
        for side in self.session.sides:
            bodies = [body for name, body in heard if name == side.name]
            assert bodies == side.bodies[: len(bodies)], f"{self.session.app}: heard by {self.name}"
            assert side.acked <= len(bodies) <= side.added, f"{self.session.app}: messages of {side.name}"
        self.acked = self.added = sum(name == self.name for name, _ in heard)


async def until_killed(data: Path, sessions: list[KilledSession], answers: int) -> int:
    left, killed = itertools.count(answers - 1, -1), asyncio.Event()
    async with Clients() as clients, serving(data) as server:

        def count() -> None:
            """A number of answers is a moment of the load, not of a clock."""
            if next(left) == 0:
                server.kill()
                killed.set()

        clients.on_answer = count
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
    sessions: list[KilledSession] = []
    interrupted = 0
    for _ in range(kills):
        sessions += [KilledSession(len(sessions) + number) for number in range(SESSIONS)]
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


APP: Final = "drill"
PAIRS: Final = 4


async def add_until_lost(client: Client) -> None:
    with suppress(LostError):
        for number in itertools.count():
            body = f"{number} é ".ljust(LENGTHS[number % 4], ".")
            await client.call("add", phase=str(number), body=body)


def adds(client: Client) -> list[SaidCommand]:
    return [command for command in client.said if command.kind == "add"]


def answered(client: Client) -> int:
    return sum(command.answered for command in adds(client))


async def test_what_was_stored_before_the_backup_is_delivered_after_the_restore(tmp_path: Path) -> None:
    mailboxes = []
    async with serving(tmp_path / "data") as server, Clients() as clients:
        for number in range(PAIRS):
            sender = await clients.bind(server.url, APP, f"sender-{number}")
            nameplate = (await sender.call("allocate"))["nameplate"]
            mailbox = (await sender.call("claim", nameplate=nameplate))["mailbox"]
            await sender.call("open", mailbox=mailbox)
            mailboxes.append((nameplate, mailbox))
        adding = [asyncio.create_task(add_until_lost(sender)) for sender in clients.all]
        for sender in clients.all:
            await sender.until("answers", lambda: answered(sender) >= 5)  # noqa: B023 - called at once
        before = [answered(sender) for sender in clients.all]
        made = await asyncio.to_thread(restante, "backup", tmp_path / "b", "--data", tmp_path / "data")
        assert made.returncode == 0, made.stderr
        after = [len(adds(sender)) for sender in clients.all]
        for sender, most in zip(clients.all, after, strict=True):  # it goes on as if nothing had happened
            await sender.until("answers", lambda: answered(sender) >= most + 5)  # noqa: B023 - called at once
        server.kill()
        assert await server.ended() == -signal.SIGKILL
        await asyncio.gather(*adding)
    senders = clients.all

    restored = restante("restore", tmp_path / "b", "--data", tmp_path / "elsewhere")
    assert restored.returncode == 0, restored.stderr
    async with serving(tmp_path / "elsewhere") as server, Clients() as clients:
        for sender, (nameplate, mailbox), least, most in zip(senders, mailboxes, before, after, strict=True):
            receiver = await clients.bind(server.url, APP, f"receiver-{nameplate}")
            assert (await receiver.call("claim", nameplate=nameplate))["mailbox"] == mailbox
            await receiver.call("open", mailbox=mailbox)
            await receiver.call("ping", ping="that was all")
            bodies = [frame["body"] for frame in receiver.heard]
            assert least <= len(bodies) <= most
            assert bodies == [command.fields["body"] for command in adds(sender)[: len(bodies)]]
            assert answered(sender) > len(bodies)


async def add(client: Client, first: int, last: int) -> None:
    for number in range(first, last):
        await client.call("add", phase=str(number), body="body" * 200)


def states(pid: int) -> set[str]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads}


async def test_a_copy_of_one_moment_has_every_acknowledged_message(tmp_path: Path) -> None:
    """As a snapshot of the file system does it: here the server is stopped while its files are copied."""
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await clients.opened(server.url, "app", "a", "box")
        for number in range(3):
            await add(client, 10 * number, 10 * (number + 1))
            await client.say("add", phase="on its way", body="body" * 20_000)
            server.send(signal.SIGSTOP)
            await until("a process that SIGSTOP has stopped", lambda: states(server.pid) == {"T"})
            shutil.copytree(server.data, tmp_path / f"copy-{number}")
            server.send(signal.SIGCONT)
            await client.call("ping", ping="go on")
            acknowledged = 11 * number + 10
            copied = database(tmp_path / f"copy-{number}")
            restored = called("restore", copied, "--data", tmp_path / f"new-{number}", "--json")
            assert json.loads(restored.stdout)["messages"] in {acknowledged, acknowledged + 1}
        await server.stop()
