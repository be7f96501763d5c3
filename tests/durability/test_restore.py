"""The restore drill: a backup of a server with clients under way, a server that is killed, and one that goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from pathlib import Path
from typing import Final

from support.bounds import bounded
from support.mailbox.clients import Client, Clients, LostError
from support.processes import evidence, restante, serving

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
        try:
            for number in itertools.count():
                self.bodies.append(f"{number} é ".ljust(LENGTHS[number % len(LENGTHS)], "."))
                await client.call("add", phase=str(number), body=self.bodies[-1])
                self.acked += 1
        except LostError:
            pass


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
    with evidence(tmp_path / "elsewhere") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
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
