"""The example of Journal Mode: two address books, killed at every moment, over days, restarts and expiry."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from restante.client import Journal
from support.documents import ROOT
from support.mailbox.live import DAY, LiveServer
from support.processes import Child

PROGRAM: Final = ROOT / "examples" / "address-book" / "address_book.py"

CODE: Final = "CODE"

MOVES: Final = ("--move-after", "2")

RESTART: Final = -1.0
"""Instead of seconds: the server is restarted."""

ENTRIES: Final = {"alice": ["Carol", "Erin", "Frank"], "bob": ["Dave", "Grace"]}

Script = Sequence[tuple[str, ...] | float]

SCRIPT: Final[Script] = (
    *(("alice", "add", name, "alice's") for name in ENTRIES["alice"]),
    ("alice", "invite"),
    DAY / 4,
    ("bob", "accept", CODE),
    RESTART,
    ("alice", "exchange"),  # two entries are sent, and that she has moved on
    8 * DAY,  # the server prunes both mailboxes
    *((who, "exchange") for who in ("bob", "alice", "bob")),  # he moves on, too
    8 * DAY,
    *(("bob", "add", name, "bob's") for name in ENTRIES["bob"]),
    *((who, "exchange") for who in ("bob", "alice")),
    1 * DAY,
    ("bob", "exchange"),
    RESTART,
    *((who, "exchange") for who in ("alice", "bob", "alice")),
    8 * DAY,
    *((who, "exchange") for who in ("bob", "alice", "bob", "alice")),
)
"""Four weeks of two people, whose programs move on to another mailbox after two entries."""


class Failed(Exception):  # noqa: N818 - what has happened to a program
    """The program has ended with an error. The text is what it said."""


class Life:
    def __init__(self, folder: Path, server: LiveServer) -> None:
        self.folder, self.server = folder, server
        self.options: tuple[str, ...] = ()
        self.codes: set[str] = set()

    async def run(self, last: int, who: str, *arguments: str) -> bool:
        arguments = tuple(max(self.codes) if word == CODE else word for word in arguments)
        command = (str(last), str(PROGRAM), "--server", self.server.url, *self.options, who, *arguments)
        child = await Child.forked("client.killed_at:main", "killed_at", *command, cwd=self.folder)
        code = await child.ended()
        if arguments[0] == "invite":
            self.codes |= set(re.findall(r"^(\d+-\w+-\w+)\n", child.said["stdout"]))
        if code not in {0, -signal.SIGKILL}:
            raise Failed(child.said["stderr"])
        return code == 0

    async def live(self, script: Script, *, kills: Iterator[int] | None = None) -> None:
        for step in script:
            if isinstance(step, tuple):
                while not await self.run(next(kills or iter(()), 0), *step):
                    pass
            elif step == RESTART:
                await self.server.restart()
            else:
                await self.server.wait(step)

    def journal(self, who: str) -> Journal[dict[str, Any]]:
        with closing(Journal[dict[str, Any]](self.folder / who, {})) as journal:
            return journal

    def names(self, who: str, kind: str = "friends") -> list[str]:
        return [entry["name"] for entry in self.journal(who).state[kind]]

    def check(self) -> None:
        assert len(self.codes) == 1
        for who, friend in (("alice", "bob"), ("bob", "alice")):
            journal = self.journal(who)
            assert (self.names(who, "mine"), self.names(who)) == (ENTRIES[who], ENTRIES[friend])
            assert journal.state["sent"] == len(ENTRIES[who])
            assert journal.names == [f"meeting {journal.state['meeting']}"]
        assert self.server.mailboxes == 1


@pytest.fixture
def life(tmp_path: Path, server: LiveServer) -> Life:
    return Life(tmp_path, server)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 8))])
async def test_programs_that_are_killed_again_and_again_end_alike(life: Life, seed: int) -> None:
    throw = random.Random(seed)
    life.options = MOVES
    await life.live(SCRIPT, kills=iter(lambda: throw.choice([0, throw.randrange(1, 40)]), None))
    life.check()


@pytest.mark.thorough
async def test_programs_that_are_killed_one_moment_later_each_time_end_alike(life: Life) -> None:
    life.options = MOVES
    for step in SCRIPT:
        await life.live([step], kills=iter(range(1, 1000)))
    life.check()


MEETING: Final[Script] = (("alice", "invite"), ("bob", "accept", CODE), ("alice", "exchange"))


async def test_a_code_that_leads_to_nobody_is_replaced_by_the_next_one(life: Life) -> None:
    await life.live([("bob", "add", "Dave", "dave@example.com"), ("bob", "accept", "4-wrong-number")])
    await life.live([("bob", "accept", "5-wrong-too")])
    assert life.server.mailboxes == 1  # the first one is left before a friend answers
    await life.live([*MEETING, ("bob", "exchange"), ("alice", "exchange")])
    assert life.names("alice") == ["Dave"]
    assert life.server.mailboxes == 1
    assert life.journal("bob").names == ["meeting 3"]
    for command in (("accept", "5-another-code"), ("invite",)):
        with pytest.raises(Failed, match=r"^address_book: this book has a friend already: use another file "):
            await life.run(0, "alice", *command)


async def test_a_code_that_was_not_used_in_time_is_replaced_by_another_invitation(life: Life) -> None:
    with pytest.raises(Failed, match=r"^address_book: there is no friend yet: invite one, or accept an invitation\n"):
        await life.run(0, "alice", "exchange")
    await life.live([("alice", "add", "Carol", "carol@example.com"), ("alice", "invite"), 8 * DAY])
    await life.live([("bob", "accept", CODE)])  # too late: nobody is there
    for _ in range(2):
        with pytest.raises(Failed, match=r"address_book: the code expired|there is no friend yet"):
            await life.live([("alice", "exchange")])
    life.codes.clear()
    await life.live([*MEETING, ("bob", "exchange")])
    assert life.names("bob") == ["Carol"]


ENTRY: Final = "an entry is a line of text with at most 1000 characters"


@pytest.mark.parametrize(
    ("options", "command", "sentence"),
    [
        *(((), ("add", "Carol", line), ENTRY) for line in ("\udcff", "one\ntwo", 1001 * "x")),
        ((), ("accept", "purple"), "a code begins with a number and a hyphen, like 7-purple-sausages"),
        (("--server", "ws://a..b/v1"), ("invite",), "address_book: a server's URL has a valid host, not "),
        (("--move-after", "0"), ("list",), "invalid positive value: '0'"),
        ((), ("list",), " is not a journal"),
    ],
)
async def test_bad_input_is_an_error_of_one_sentence(
    life: Life, options: tuple[str, ...], command: tuple[str, ...], sentence: str
) -> None:
    life.options = options
    if command == ("list",):
        (life.folder / "book").write_bytes(b"{}")
    with pytest.raises(Failed) as failed:
        await life.run(0, "book", *command)
    assert sentence in str(failed.value).splitlines()[-1]
    assert "Traceback" not in str(failed.value)
