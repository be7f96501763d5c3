"""The restore drill: a backup of a server with clients under way, a server that is killed, and one that goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Final

from support.bounds import bounded
from support.effort import rounds
from support.mailbox.clients import Client, Clients, LostError
from support.processes import evidence, restante, serving

APP: Final = "drill"
PAIRS: Final = rounds(6, 12)
LENGTHS: Final = (20, 300, 6000, 100_000)
"""Characters of the bodies: also of those that need more than one page of the database, or many."""


class Pair:
    """A sender that adds messages, one after the answer to the other, until its server ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nameplate = self.mailbox = ""
        self.said: list[str] = []
        self.acked = 0

    async def begin(self, clients: Clients, url: str) -> Client:
        client = await clients.bind(url, APP, f"sender-{self.number}")
        self.nameplate = (await client.call("allocate"))["nameplate"]
        self.mailbox = (await client.call("claim", nameplate=self.nameplate))["mailbox"]
        await client.call("open", mailbox=self.mailbox)
        return client

    async def go_on(self, client: Client) -> None:
        try:
            while True:
                number = len(self.said)
                self.said.append(f"{number} é ".ljust(LENGTHS[number % len(LENGTHS)], "."))
                await client.call("add", phase=str(number), body=self.said[-1])
                self.acked += 1
        except LostError:
            pass

    async def heard_by_the_other(self, clients: Clients, url: str) -> list[str]:
        """Return what the other side receives: it claims the nameplate, opens the mailbox, and reads all of it."""
        client = await clients.bind(url, APP, f"receiver-{self.number}")
        assert (await client.call("claim", nameplate=self.nameplate))["mailbox"] == self.mailbox
        await client.call("open", mailbox=self.mailbox)
        await client.call("ping", ping="that was all")
        return [frame["body"] for frame in client.heard]


async def test_what_was_stored_before_the_backup_is_delivered_after_the_restore(tmp_path: Path) -> None:
    pairs = [Pair(number) for number in range(PAIRS)]
    async with serving(tmp_path / "data") as server, Clients() as clients:
        senders = [await pair.begin(clients, server.url) for pair in pairs]
        going_on = [asyncio.create_task(p.go_on(c)) for p, c in zip(pairs, senders, strict=True)]
        await answers(clients, 5 * PAIRS)
        before = [pair.acked for pair in pairs]
        made = await asyncio.to_thread(restante, "backup", tmp_path / "b", "--data", tmp_path / "data", "--json")
        assert made.returncode == 0, made.stderr
        after = [len(pair.said) for pair in pairs]
        await answers(clients, 5 * PAIRS)  # it goes on as if nothing had happened
        server.kill()
        assert await server.ended() == -signal.SIGKILL
        await asyncio.gather(*going_on)

    found = restante("restore", tmp_path / "b", "--data", tmp_path / "elsewhere", "--json")
    assert found.returncode == 0, found.stderr
    counts = json.loads(found.stdout)
    assert (counts["nameplates"], counts["mailboxes"]) == (PAIRS, PAIRS)
    assert {**json.loads(made.stdout), "file": ""} == {**counts, "file": ""}
    with evidence(tmp_path / "elsewhere") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    async with serving(tmp_path / "elsewhere") as server, Clients() as clients:
        heard = [await pair.heard_by_the_other(clients, server.url) for pair in pairs]
        await server.stop()
    assert sum(map(len, heard)) == counts["messages"]
    for pair, bodies, least, most in zip(pairs, heard, before, after, strict=True):
        assert least <= len(bodies) <= most, f"pair {pair.number}"
        assert bodies == pair.said[: len(bodies)], f"pair {pair.number}"
    assert any(pair.acked > len(bodies) for pair, bodies in zip(pairs, heard, strict=True))


async def answers(clients: Clients, count: int) -> None:
    """Wait until the clients have had so many more answers."""
    enough, left = asyncio.Event(), count

    def one_less() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            enough.set()

    clients.on_answer = one_less
    async with bounded("answers"):
        await enough.wait()
