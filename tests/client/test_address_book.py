"""The example of Journal Mode: two address books, killed at every moment, over days, restarts and expiry."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from restante.client import Journal
from support.documents import ROOT
from support.effort import rounds
from support.forks import Forked
from support.mailbox.days import DAY, HOUR, ServerOfDays, server_of_days
from support.processes import Child, environment

PROGRAM: Final = ROOT / "examples" / "address-book" / "address_book.py"

CODE: Final = "CODE"
"""Stands for the code that `invite` has printed."""

RESTART: Final = -1.0
"""Instead of seconds: the server is restarted."""

Script = Sequence[tuple[str, ...] | float]

DAYS: Final[Script] = (
    ("alice", "add", "Carol", "carol@example.com"),
    ("alice", "invite"),
    6 * HOUR,
    ("bob", "accept", CODE),
    RESTART,
    ("bob", "add", "Dave", "dave@example.com"),
    ("alice", "add", "Erin", "erin@example.com"),
    1 * DAY,
    ("alice", "exchange"),
    2 * DAY,
    ("bob", "exchange"),
    RESTART,
    ("alice", "add", "Frank", "frank@example.com"),
    ("alice", "exchange"),
    8 * DAY,  # the server prunes the mailbox, and with it Dave and Frank
    ("bob", "add", "Grace", "grace@example.com"),
    ("bob", "exchange"),
    8 * DAY,
    RESTART,
    ("alice", "exchange"),
    1 * DAY,
    ("bob", "exchange"),
    1 * HOUR,
    ("alice", "exchange"),
    ("bob", "exchange"),
)
"""What two people do within three weeks. The server keeps idle mailboxes for seven days."""

ALICE: Final = ["Carol", "Erin", "Frank"]
BOB: Final = ["Dave", "Grace"]


class Failed(Exception):  # noqa: N818 - what has happened to a program
    """The program has ended with an error. The text is what it said."""


class Life:
    """Two people, their address books, and a server."""

    def __init__(self, folder: Path, server: ServerOfDays) -> None:
        self.folder, self.server = folder, server
        self.codes: set[str] = set()
        self.killed = 0
        self.moments = 0
        """How many moments the programs had that were not killed."""

    async def run(self, last: int, who: str, *words: str) -> bool:
        """Run a program that is killed at a moment. Return whether it ended before."""
        words = tuple(max(self.codes) if each == CODE else each for each in words)
        command = (str(last), str(PROGRAM), "--server", self.server.url, who, *words)
        process = await Forked.start(
            "client.killed_at:main", "killed_at", *command, cwd=self.folder, variables=environment()
        )
        child = Child(process, "stdout", "stderr")
        code = await child.ended()
        if words[0] == "invite":
            self.codes |= set(re.findall(r"^(\d+-\w+-\w+)\n", child.said["stdout"]))
        if code == -signal.SIGKILL:
            self.killed += 1
            return False
        if code != 0:
            raise Failed(child.said["stderr"])
        found = re.search(r"moments: (\d+)", child.said["stderr"])
        assert found is not None
        self.moments += int(found[1])
        return True

    async def live(self, script: Script, *, kills: Iterator[int]) -> None:
        """Do what the script says. A program that was killed is started again, to be killed at the next moment."""
        for step in script:
            if isinstance(step, tuple):
                while not await self.run(next(kills, 0), *step):
                    pass
            elif step == RESTART:
                await self.server.restart()
            else:
                await self.server.wait(step)

    def book(self, who: str) -> dict[str, Any]:
        journal = Journal[dict[str, Any]](self.folder / who, {})
        journal.close()
        return journal.state

    def check(self) -> None:
        """Each has its own entries and those of the other, in order and each once."""
        assert len(self.codes) == 1
        for who, mine, friends in (("alice", ALICE, BOB), ("bob", BOB, ALICE)):
            book = self.book(who)
            assert [each["name"] for each in book["mine"]] == mine
            assert [each["name"] for each in book["friends"]] == friends
            assert book["sent"] == len(mine)


@asynccontextmanager
async def life(folder: Path) -> AsyncIterator[Life]:
    folder.mkdir()  # noqa: ASYNC240 - it takes no time
    async with server_of_days(folder / "data") as server:
        yield Life(folder, server)


def at_moment(number: int, moments: list[int]) -> Iterator[int]:
    """Yield the kills of a run in which one program is killed once: at this moment of all."""
    for each in moments:
        yield number if 0 < number <= each else 0
        number -= each


_MOMENTS: Final[list[int]] = []


async def moments_of_programs(folder: Path) -> list[int]:
    """Return how many moments each program of the script has. It is run for that, by the first who asks."""
    if not _MOMENTS:
        async with life(folder) as ours:
            for step in DAYS:
                before = ours.moments
                await ours.live([step], kills=iter(()))
                if isinstance(step, tuple):
                    _MOMENTS.append(ours.moments - before)
            ours.check()
    return _MOMENTS


async def test_nothing_is_lost_within_three_weeks_and_nothing_comes_twice(tmp_path: Path) -> None:
    moments = await moments_of_programs(tmp_path / "life")
    assert len(moments) == sum(isinstance(step, tuple) for step in DAYS)
    assert min(moments) >= 5  # a program that only writes its journal has these


PARTS: Final = rounds(1, 4)
"""Tests among which the moments are divided, so that several workers share them."""


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.xdist_group(f"address book {part}")) for part in range(PARTS)]
)
async def test_a_program_that_is_killed_at_any_moment_and_started_again_changes_nothing(
    tmp_path: Path, part: int
) -> None:
    moments = await moments_of_programs(tmp_path / "life")
    killed, numbers = 0, range(1 + part, sum(moments) + 1, rounds(sum(moments) // 4, 4 * PARTS))
    for number in numbers:
        async with life(tmp_path / f"killed at {number}") as ours:
            await ours.live(DAYS, kills=at_moment(number, moments))
            ours.check()
            killed += ours.killed
    assert killed > len(numbers) // 2  # a program may have a moment less than in the run in which they were counted


@pytest.mark.parametrize("seed", range(rounds(1, 10)))
async def test_programs_that_are_killed_again_and_again_come_to_the_same_end(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with life(tmp_path / "life") as ours:
        await ours.live(DAYS, kills=iter(lambda: dice.choice([0, dice.randrange(1, 40)]), None))
        ours.check()


@pytest.mark.thorough
async def test_programs_that_are_killed_one_moment_later_each_time_come_to_the_same_end(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        for step in DAYS:
            await ours.live([step], kills=iter(range(1, 1000)))
        ours.check()


async def test_a_code_that_was_not_used_in_time_is_replaced_by_another_invitation(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        nobody = iter(())
        await ours.live([("alice", "add", "Carol", "carol@example.com"), ("alice", "invite"), 8 * DAY], kills=nobody)
        await ours.live([("bob", "accept", CODE)], kills=nobody)  # too late: nobody is there
        for _ in range(2):
            with pytest.raises(Failed, match=r"address_book: the code expired|there is no friend yet"):
                await ours.live([("alice", "exchange")], kills=nobody)
        ours.codes.clear()
        again: Script = [("alice", "invite"), ("bob", "accept", CODE), ("alice", "exchange"), ("bob", "exchange")]
        await ours.live(again, kills=nobody)
        assert [each["name"] for each in ours.book("bob")["friends"]] == ["Carol"]


async def test_an_exchange_with_nobody_is_refused(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        with pytest.raises(
            Failed, match=r"^address_book: there is no friend yet: invite one, or accept an invitation\n"
        ):
            await ours.run(0, "alice", "exchange")


async def test_a_server_that_is_away_is_an_error_and_the_entries_are_sent_later(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        nobody = iter(())
        await ours.live([("alice", "invite"), ("bob", "accept", CODE), ("alice", "exchange")], kills=nobody)
        await ours.server.stop()
        await ours.live([("alice", "add", "Carol", "carol@example.com")], kills=nobody)
        with pytest.raises(Failed, match=r"^address_book: cannot connect"):
            await ours.run(0, "alice", "exchange")
        await ours.server.start()
        await ours.live([("alice", "exchange"), ("bob", "exchange")], kills=nobody)
        assert [each["name"] for each in ours.book("bob")["friends"]] == ["Carol"]
