"""A commit means disk: no answer leaves the machine before what it says is flushed.

The server runs under a tracer, which sees every write to the log, every flush and every send in the kernel's order.
"""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from durability.audit import EARLY, UNKEPT, UNNAMED, UNWRITTEN, Report, audit
from support.mailbox.clients import Client, Clients
from support.processes import altered, serving, traced
from support.tracer import read_notes

PAIRS: Final = 5
BURSTS: Final = 4


def tokens() -> Iterator[str]:
    """Return bodies that can be told apart in the pages of a database."""
    return (f"token-{number}-" for number in itertools.count())


async def one_by_one(clients: Clients, url: str, bodies: Iterator[str]) -> None:
    """Run a session in which every command waits for the answer to the previous one: each has its own commit."""
    a = await clients.bind(url, "light", "a")
    b = await clients.bind(url, "light", "b")
    nameplate = (await a.call("allocate"))["nameplate"]
    for client in (a, b):
        claimed = await client.call("claim", nameplate=nameplate)
        await client.call("open", mailbox=claimed["mailbox"])
    for client in (a, b, a, b):
        await client.call("add", phase="pake", body=next(bodies))
    for client in (a, b):
        await client.call("release")
    for client in (a, b):
        await client.call("close", mood="happy")


async def all_at_once(clients: Clients, url: str, bodies: Iterator[str], pairs: int) -> None:
    """Run many sessions whose commands do not wait, with clients that connect in between."""

    async def talk(mailbox: str, side: str) -> None:
        client = await clients.opened(url, "heavy", side, mailbox)
        for _ in range(BURSTS):
            added = [await client.say("add", phase="0", body=next(bodies)) for _ in range(5)]
            newcomer = await clients.connect(url)
            await newcomer.say("ping", ping=1)
            await client.answers(added[-1])
        await client.call("close", mood="happy")

    async with asyncio.TaskGroup() as talks:
        for number in range(pairs):
            for side in ("a", "b"):
                talks.create_task(talk(f"mailbox-{number}", side))


async def audited(folder: Path, program: tuple[str, ...], pairs: int = PAIRS) -> tuple[Report, list[Client]]:
    """Run the load on a traced server; gives what the audit finds, and the clients with all they were told."""
    notes = folder / "notes"
    bodies = tokens()
    async with serving(folder / "data", traced(notes, program)) as server, Clients() as clients:
        await one_by_one(clients, server.url, bodies)
        await all_at_once(clients, server.url, bodies, pairs)
        for client in clients.all:
            await client.fence()
        await server.stop()
        told = clients.all
    return audit(read_notes(notes)), told


@pytest.mark.parametrize("disk", ["slow-disk", "fast-disk"])
async def test_no_answer_leaves_before_its_commit_is_on_disk(tmp_path: Path, disk: str) -> None:
    report, told = await audited(tmp_path, altered(disk))
    assert report.broken == []
    # The audit has looked at all there was: each client's frames left on one of the sockets it followed.
    assert sorted(client.texts for client in told) == sorted(report.conversations)
    assert sum(map(len, report.conversations)) > 100 * PAIRS


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "rules"),
    [("never-flushes", {EARLY, UNKEPT, UNWRITTEN, UNNAMED}), ("speaks-first", {UNKEPT, UNWRITTEN})],
)
async def test_the_test_notices_a_server_that_answers_before_the_flush(
    tmp_path: Path, how: str, rules: set[str]
) -> None:
    report, _ = await audited(tmp_path, altered(how), pairs=2)
    assert report.rules >= rules
