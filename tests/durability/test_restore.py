"""The restore drill: a backup of a server with clients under way, a server that is killed, and one that goes on.

And copies of the files of a running server: which are whole, and which are not.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from support.bounds import bounded
from support.mailbox.clients import Client, Clients, LostError
from support.proc import stopped
from support.processes import Serving, called, database, evidence, restante, serving, wal

APP: Final = "drill"
PAIRS: Final = 4
LENGTHS: Final = (20, 300, 6000, 100_000)
"""Characters of the bodies: also of those that need more than one page of the database, or many."""


class Sender:
    """Adds messages, one after the answer to the other, until its server ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nameplate = self.mailbox = ""
        self.bodies: list[str] = []
        self.acked = 0

    async def begin(self, clients: Clients, url: str) -> Client:
        client = await clients.bind(url, APP, f"sender-{self.number}")
        self.nameplate = (await client.call("allocate"))["nameplate"]
        self.mailbox = (await client.call("claim", nameplate=self.nameplate))["mailbox"]
        await client.call("open", mailbox=self.mailbox)
        return client

    async def add(self, client: Client) -> None:
        with suppress(LostError):
            for number in itertools.count():
                self.bodies.append(f"{number} é ".ljust(LENGTHS[number % len(LENGTHS)], "."))
                await client.call("add", phase=str(number), body=self.bodies[-1])
                self.acked += 1


async def until(clients: Clients, senders: list[Sender], count: int) -> None:
    """Wait until each sender has had so many more answers."""
    enough, goal = asyncio.Event(), [sender.acked + count for sender in senders]

    def look() -> None:
        if all(sender.acked >= least for sender, least in zip(senders, goal, strict=True)):
            enough.set()

    clients.on_answer = look
    async with bounded("answers"):
        await enough.wait()


async def test_what_was_stored_before_the_backup_is_delivered_after_the_restore(tmp_path: Path) -> None:
    senders = [Sender(number) for number in range(PAIRS)]
    async with serving(tmp_path / "data") as server, Clients() as clients:
        adding = [asyncio.create_task(sender.add(await sender.begin(clients, server.url))) for sender in senders]
        await until(clients, senders, 5)
        before = [sender.acked for sender in senders]
        made = await asyncio.to_thread(restante, "backup", tmp_path / "b", "--data", tmp_path / "data", "--json")
        assert made.returncode == 0, made.stderr
        after = [len(sender.bodies) for sender in senders]
        await until(clients, senders, 5)  # it goes on as if nothing had happened
        server.kill()
        assert await server.ended() == -signal.SIGKILL
        await asyncio.gather(*adding)

    restored = restante("restore", tmp_path / "b", "--data", tmp_path / "elsewhere", "--json")
    assert restored.returncode == 0, restored.stderr
    counts = json.loads(restored.stdout)
    assert (counts["nameplates"], counts["mailboxes"]) == (PAIRS, PAIRS)
    assert {**json.loads(made.stdout), "file": ""} == {**counts, "file": ""}
    with evidence(tmp_path / "elsewhere") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    async with serving(tmp_path / "elsewhere") as server, Clients() as clients:
        for sender, least, most in zip(senders, before, after, strict=True):
            receiver = await clients.bind(server.url, APP, f"receiver-{sender.number}")
            assert (await receiver.call("claim", nameplate=sender.nameplate))["mailbox"] == sender.mailbox
            await receiver.call("open", mailbox=sender.mailbox)
            await receiver.call("ping", ping="that was all")
            bodies = [frame["body"] for frame in receiver.heard]
            assert least <= len(bodies) <= most
            assert bodies == sender.bodies[: len(bodies)]
            assert sender.acked > len(bodies)


# ── copies of the files ──────────────────────────────────────────────────────────────────────────


async def add(client: Client, first: int, last: int) -> None:
    for number in range(first, last):
        await client.call("add", phase=str(number), body="body" * 200)


def restored_from(copy: Path, new: Path) -> int | None:
    """Return how many messages a copy of the files has, or None if it is damaged."""
    done = called("restore", copy / "restante.sqlite", "--data", new, "--json")
    if done.returncode == 0:
        messages: int = json.loads(done.stdout)["messages"]
        return messages
    assert done.returncode == 1, done.stderr
    assert "nothing was restored, because" in done.stderr or "is not a database of this" in done.stderr
    return None


async def test_a_copy_of_one_moment_has_every_acknowledged_message(tmp_path: Path) -> None:
    """As a snapshot of the file system does it: here the server is stopped while its files are copied."""
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await clients.opened(server.url, "app", "a", "box")
        for number in range(3):
            await add(client, 10 * number, 10 * (number + 1))
            await client.say("add", phase="on its way", body="body" * 20_000)
            server.send(signal.SIGSTOP)
            await stopped(server.pid)
            shutil.copytree(server.data, tmp_path / f"copy-{number}")
            server.send(signal.SIGCONT)
            await client.call("ping", ping="go on")
            there = restored_from(tmp_path / f"copy-{number}", tmp_path / f"new-{number}")
            acknowledged = 11 * number + 10
            assert there in {acknowledged, acknowledged + 1}
        await server.stop()


def checkpoint(server: Serving) -> None:
    """Move what is in the log into the database; the next commit begins the log anew."""
    with closing(sqlite3.connect(database(server.data))) as another:
        assert another.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0


async def test_a_copy_without_the_log_lacks_messages_and_one_with_a_later_log_is_damaged(tmp_path: Path) -> None:
    """As `cp -r` may do it: between the two files the server moves its log into the database, and begins it anew."""
    copy = tmp_path / "copy"
    copy.mkdir()
    async with serving(tmp_path / "data") as server, Clients() as clients:
        client = await clients.opened(server.url, "app", "a", "box")
        await add(client, 0, 10)
        checkpoint(server)
        await add(client, 10, 300)
        shutil.copy(database(server.data), copy)
        assert restored_from(copy, tmp_path / "without") == 10
        checkpoint(server)
        await add(client, 300, 310)
        shutil.copy(wal(server.data), copy)
        assert restored_from(copy, tmp_path / "with") is None
        await server.stop()
