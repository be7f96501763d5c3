"""The example of Journal Mode: two address books, killed at every moment, over days, restarts and expiry."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from restante.client import Journal
from support.documents import ROOT
from support.effort import dice, is_thorough, rounds
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
"""The entries of Alice after each of the scripts."""
BOB: Final = ["Dave", "Grace"]

MOVES: Final[Script] = (
    *(("alice", "add", each, "alice's") for each in ("Carol", "Erin", "Frank")),
    ("alice", "invite"),
    ("bob", "accept", CODE),
    ("alice", "exchange"),  # two entries are sent, and that she has moved on
    8 * DAY,  # the server prunes both mailboxes
    ("bob", "exchange"),
    ("alice", "exchange"),
    ("bob", "exchange"),  # he moves on, too
    8 * DAY,
    *(("bob", "add", each, "bob's") for each in ("Dave", "Grace")),
    ("bob", "exchange"),
    ("alice", "exchange"),
    ("bob", "exchange"),
    RESTART,
    ("alice", "exchange"),
    ("bob", "exchange"),
    ("alice", "exchange"),
    8 * DAY,
    ("bob", "exchange"),
    ("alice", "exchange"),
    ("bob", "exchange"),
    ("alice", "exchange"),
)
"""What two people do whose programs move on to another mailbox after two entries."""

SCRIPTS: Final[dict[str, tuple[Script, tuple[str, ...]]]] = {
    "days": (DAYS, ()),
    "moves": (MOVES, ("--move-after", "2")),
}
"""Scripts, and the options of their programs."""


class Failed(Exception):  # noqa: N818 - what has happened to a program
    """The program has ended with an error. The text is what it said."""


class Life:
    """Two people, their address books, and a server."""

    def __init__(self, folder: Path, server: ServerOfDays, options: tuple[str, ...]) -> None:
        self.folder, self.server, self.options = folder, server, options
        self.codes: set[str] = set()
        self.killed = 0
        self.moments = 0
        """How many moments the programs had that were not killed."""

    async def run(self, last: int, who: str, *words: str) -> bool:
        """Run a program that is killed at a moment. Return whether it ended before."""
        words = tuple(max(self.codes) if each == CODE else each for each in words)
        command = (str(last), str(PROGRAM), "--server", self.server.url, *self.options, who, *words)
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
            journal = Journal[dict[str, Any]](self.folder / who, {})
            journal.close()
            assert journal.names == [f"meeting {book['meeting']}"]
        assert self.server.mailboxes == 1


@asynccontextmanager
async def life(folder: Path, options: tuple[str, ...] = ()) -> AsyncIterator[Life]:
    folder.mkdir()  # noqa: ASYNC240 - it takes no time
    async with server_of_days(folder / "data") as server:
        yield Life(folder, server, options)


def at_moment(number: int, moments: list[int]) -> Iterator[int]:
    """Yield the kills of a run in which one program is killed once: at this moment of all."""
    for each in moments:
        yield number if 0 < number <= each else 0
        number -= each


_MOMENTS: Final[dict[str, list[int]]] = {}


async def moments_of_programs(folder: Path, name: str) -> list[int]:
    """Return how many moments each program of a script has. It is run for that, by the first who asks."""
    if name not in _MOMENTS:
        script, options = SCRIPTS[name]
        found = []
        async with life(folder, options) as ours:
            for step in script:
                before = ours.moments
                await ours.live([step], kills=iter(()))
                if isinstance(step, tuple):
                    found.append(ours.moments - before)
            ours.check()
        _MOMENTS[name] = found
    return _MOMENTS[name]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_nothing_is_lost_within_three_weeks_and_nothing_comes_twice(tmp_path: Path, name: str) -> None:
    moments = await moments_of_programs(tmp_path / "life", name)
    assert len(moments) == sum(isinstance(step, tuple) for step in SCRIPTS[name][0])
    assert min(moments) >= 5  # a program that only writes its journal has these


PARTS: Final = rounds(1, 2)
"""Tests among which the moments are divided, so that several workers share them."""

STEP: Final = 12
"""A thorough run kills at every twelfth moment, from one that its seed chooses: each costs the lives of 25 programs,
some seconds. So runs add up. And in each run the test below kills every program at all its moments, in turn."""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=pytest.mark.xdist_group(f"address book {name} {part}"))
        for name in SCRIPTS
        for part in range(PARTS)
    ],
)
async def test_a_program_that_is_killed_at_any_moment_and_started_again_changes_nothing(
    tmp_path: Path, name: str, part: int
) -> None:
    script, options = SCRIPTS[name]
    moments = await moments_of_programs(tmp_path / "life", name)
    begin = dice(name).randrange(STEP) if is_thorough() else 0
    killed, numbers = 0, range(1 + begin + STEP * part, sum(moments) + 1, rounds(sum(moments) // 4, STEP * PARTS))
    for number in numbers:
        async with life(tmp_path / f"killed at {number}", options) as ours:
            await ours.live(script, kills=at_moment(number, moments))
            ours.check()
            killed += ours.killed
    assert killed > len(numbers) // 2  # a program may have a moment less than in the run in which they were counted


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("number", range(rounds(1, 3)))
async def test_programs_that_are_killed_again_and_again_come_to_the_same_end(
    tmp_path: Path, name: str, number: int
) -> None:
    throw = dice(name, number)
    script, options = SCRIPTS[name]
    async with life(tmp_path / "life", options) as ours:
        await ours.live(script, kills=iter(lambda: throw.choice([0, throw.randrange(1, 40)]), None))
        ours.check()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCRIPTS)
async def test_programs_that_are_killed_one_moment_later_each_time_come_to_the_same_end(
    tmp_path: Path, name: str
) -> None:
    script, options = SCRIPTS[name]
    async with life(tmp_path / "life", options) as ours:
        for step in script:
            await ours.live([step], kills=iter(range(1, 1000)))
        ours.check()


# ── codes, and bad input ────────────────────────────────────────────────────────────────────────


NOBODY: Final[Iterator[int]] = iter(())


async def test_a_code_that_leads_to_nobody_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        await ours.live(
            [("bob", "add", "Dave", "dave@example.com"), ("bob", "accept", "4-wrong-number")], kills=NOBODY
        )
        await ours.live([("alice", "invite"), ("bob", "accept", CODE)], kills=NOBODY)
        exchange: Script = [(each, "exchange") for each in ("alice", "bob", "alice")]
        await ours.live(exchange, kills=NOBODY)
        assert [each["name"] for each in ours.book("alice")["friends"]] == ["Dave"]
        assert ours.server.mailboxes == 1
        with closing(Journal[dict[str, Any]](ours.folder / "bob", {})) as journal:
            assert journal.names == ["meeting 2"]


async def test_a_code_that_led_to_nobody_is_left_before_the_next_friend_answers(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        await ours.live([("bob", "accept", "4-wrong-number"), ("bob", "accept", "5-right-number")], kills=NOBODY)
        assert ours.server.mailboxes == 1
        with closing(Journal[dict[str, Any]](ours.folder / "bob", {})) as journal:
            assert journal.names == ["meeting 2"]


async def test_a_book_with_a_friend_refuses_another_code(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        script: Script = [
            ("alice", "invite"),
            ("bob", "accept", CODE),
            ("alice", "exchange"),
            ("bob", "accept", CODE),
        ]
        await ours.live(script, kills=NOBODY)
        for words in (("accept", "5-another-code"), ("invite",)):
            with pytest.raises(Failed, match=r"^address_book: this book has a friend already: use another file "):
                await ours.run(0, "alice", *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["add", "Carol\udcff", "x"], "an entry is a line of text with at most 1000 characters"),
        (["add", "Carol", "one\ntwo"], "an entry is a line of text with at most 1000 characters"),
        (["add", "Carol", 1001 * "x"], "an entry is a line of text with at most 1000 characters"),
        (["accept", "4-purple-\udcff"], "a code is a text in UTF-8, and this one is not"),
        (["accept", "purple"], "a code begins with a number, like 7-purple-sausages"),
        (["--server", "\udcff", "invite"], "a server's URL begins with ws:// or wss:// and names a host"),
        (["--server", "http://example.com", "invite"], "a server's URL begins with ws:// or wss:// and names a host"),
        (["--move-after", "0", "list"], "invalid positive value: '0'"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    options, command = (words[:2], words[2:]) if words[0].startswith("--") else ([], words)
    book = [*options, str(tmp_path / "book"), *command]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *book], capture_output=True, text=True, env=environment(), check=False
    )
    assert ended.returncode in {1, 2}
    assert sentence in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}"])
def test_a_book_that_is_none_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "book").write_bytes(content)
    command = [sys.executable, str(PROGRAM), str(tmp_path / "book"), "list"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == 1
    assert re.fullmatch(r"address_book: .* is not a journal.*\n", ended.stderr)


async def test_a_code_that_was_not_used_in_time_is_replaced_by_another_invitation(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        await ours.live([("alice", "add", "Carol", "carol@example.com"), ("alice", "invite"), 8 * DAY], kills=NOBODY)
        await ours.live([("bob", "accept", CODE)], kills=NOBODY)  # too late: nobody is there
        for _ in range(2):
            with pytest.raises(Failed, match=r"address_book: the code expired|there is no friend yet"):
                await ours.live([("alice", "exchange")], kills=NOBODY)
        ours.codes.clear()
        again: Script = [("alice", "invite"), ("bob", "accept", CODE), ("alice", "exchange"), ("bob", "exchange")]
        await ours.live(again, kills=NOBODY)
        assert [each["name"] for each in ours.book("bob")["friends"]] == ["Carol"]


async def test_an_exchange_with_nobody_is_refused(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        with pytest.raises(
            Failed, match=r"^address_book: there is no friend yet: invite one, or accept an invitation\n"
        ):
            await ours.run(0, "alice", "exchange")


async def test_a_server_that_is_away_is_an_error_and_the_entries_are_sent_later(tmp_path: Path) -> None:
    async with life(tmp_path / "life") as ours:
        await ours.live([("alice", "invite"), ("bob", "accept", CODE), ("alice", "exchange")], kills=NOBODY)
        await ours.server.stop()
        await ours.live([("alice", "add", "Carol", "carol@example.com")], kills=NOBODY)
        with pytest.raises(Failed, match=r"^address_book: cannot connect"):
            await ours.run(0, "alice", "exchange")
        await ours.server.start()
        await ours.live([("alice", "exchange"), ("bob", "exchange")], kills=NOBODY)
        assert [each["name"] for each in ours.book("bob")["friends"]] == ["Carol"]
