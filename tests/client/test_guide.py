"""The guide: its commands and programs are run as they stand there."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from restante.cli import client
from support.documents import Document
from support.processes import RESTANTE, Child, Serving, serving, spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

GUIDE = Document("docs/client/guide.md")
USUAL = "127.0.0.1:4000"
NO_RELAY = {"RESTANTE_CLIENT_TRANSIT_RELAY": "tcp:127.0.0.1:1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    (command,) = GUIDE.lines("serve")
    assert command == "restante serve"
    async with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


class Program:
    """A program or command of the guide, at the server of the test."""

    def __init__(self, server: Serving, folder: Path) -> None:
        self._here = f"127.0.0.1:{server.port}"
        self.folder = folder
        folder.mkdir()

    @asynccontextmanager
    async def command(self, line: str, **others: str) -> AsyncIterator[Child]:
        words = [others.get(word, word) for word in shlex.split(line.replace(USUAL, self._here))]
        assert words[0] == "restante"
        async with self._running(*RESTANTE, *words[1:]) as child:
            yield child

    @asynccontextmanager
    async def program(self, text: str, *words: str, typed: str | None = None) -> AsyncIterator[Child]:
        path = self.folder / "program.py"
        path.write_text(text.replace(USUAL, self._here))
        async with self._running(sys.executable, str(path), *words, typed=typed) as child:
            yield child

    async def ends(self, text: str, *words: str) -> str:
        async with self.program(text, *words) as child:
            assert await child.ended() == 0, child.said
        return child.said["stdout"]

    @asynccontextmanager
    async def _running(self, *words: str, typed: str | None = None) -> AsyncIterator[Child]:
        """Run a program. What is typed is followed by Ctrl-D; without it, nothing is typed."""
        reading, writing = os.pipe()
        if typed is not None:
            os.write(writing, typed.encode())
            os.close(writing)
        child = Child(await spawn(*words, cwd=self.folder, stdin=reading, variables=NO_RELAY), "stdout", "stderr")
        os.close(reading)
        try:
            yield child
        finally:
            await child.end()
            if typed is None:
                os.close(writing)


@pytest.fixture
def alice(server: Serving, tmp_path: Path) -> Program:
    return Program(server, tmp_path / "alice")


@pytest.fixture
def bob(server: Serving, tmp_path: Path) -> Program:
    return Program(server, tmp_path / "bob")


async def code_of(child: Child) -> str:
    return (await child.says(r"code(?: is)?: (\d+-[a-z-]+)\n")).group(1)


async def test_a_text_is_sent_and_received(alice: Program, bob: Program) -> None:
    async with (
        alice.command(GUIDE.blocks["send"]) as sender,
        bob.command(GUIDE.blocks["receive"], **{"7-your-code": await code_of(sender)}) as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stdout"] == "held until called for\n"


async def test_files_are_sent_and_received(alice: Program, bob: Program) -> None:
    (alice.folder / "letter.txt").write_text("held until called for")
    (alice.folder / "photos").mkdir()
    (alice.folder / "photos" / "1.jpg").write_bytes(b"a photo")
    (bob.folder / "Downloads").mkdir()
    async with (
        alice.command(GUIDE.blocks["send files"]) as sender,
        bob.command(GUIDE.blocks["receive files"], **{"7-your-code": await code_of(sender)}) as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    received = bob.folder / "Downloads" / "files"
    assert (received / "letter.txt").read_text() == "held until called for"
    assert (received / "photos" / "1.jpg").read_bytes() == b"a photo"


@pytest.mark.parametrize("sent", ["letter.txt", "photos"])
async def test_a_program_sends_and_stores_files(alice: Program, bob: Program, sent: str) -> None:
    (alice.folder / "letter.txt").write_text("held until called for")
    (alice.folder / "photos").mkdir()
    (alice.folder / "photos" / "1.jpg").write_bytes(b"a photo")
    async with (
        alice.program(GUIDE.blocks["files"], "send", sent) as sender,
        bob.program(GUIDE.blocks["files"], "receive", await code_of(sender)) as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    *_, done, stored = receiver.said["stdout"].splitlines()
    assert stored == f"stored {sent}"
    assert done in sender.said["stdout"].splitlines()
    assert done.endswith(" bytes")
    received = {"letter.txt": b"held until called for", "photos/1.jpg": b"a photo"}
    for path in (bob.folder / sent).rglob("*") if (bob.folder / sent).is_dir() else [bob.folder / sent]:
        assert path.read_bytes() == received[str(path.relative_to(bob.folder))]


async def test_two_people_chat(alice: Program, bob: Program) -> None:
    async with (
        alice.program(GUIDE.blocks["chat"]) as one,
        bob.program(GUIDE.blocks["chat"], await code_of(one), typed="hello\nbye\n") as other,
    ):
        assert (await other.ended(), await one.ended()) == (0, 0), (one.said, other.said)
    assert one.said["stdout"].splitlines()[2:] == ["< hello", "< bye"]
    assert one.said["stdout"].splitlines()[1] == other.said["stdout"].splitlines()[0]
    assert (one.said["stderr"], other.said["stderr"]) == ("", "")


async def test_events_and_errors_are_shown(alice: Program) -> None:
    shown = await alice.ends(GUIDE.blocks["events"])
    assert shown.splitlines() == [
        "connected ",
        "waiting for the other side",
        "nobody came",
        "the wormhole was closed before a peer came",
    ]


async def test_a_contact_is_met_again_without_a_code(alice: Program, bob: Program) -> None:
    async with (
        alice.program(GUIDE.blocks["contact"]) as one,
        bob.program(GUIDE.blocks["contact"], await code_of(one)) as other,
    ):
        assert (await one.ended(), await other.ended()) == (0, 0), (one.said, other.said)
    for each in (alice, bob):
        assert stat.S_IMODE((each.folder / "contact.seed").stat().st_mode) == 0o600
    for _ in range(2):
        shown = tuple(await asyncio.gather(alice.ends(GUIDE.blocks["contact"]), bob.ends(GUIDE.blocks["contact"])))
        assert shown == ("< hello\n", "< hello\n")


async def test_two_programs_that_never_run_at_the_same_time_share_notes(alice: Program, bob: Program) -> None:
    notes = GUIDE.blocks["journal"]
    code = (await alice.ends(notes, "new")).splitlines()[0].removeprefix("code: ")
    assert await bob.ends(notes, "join", code) == "notes: \nnot acknowledged: 0\n"
    assert await alice.ends(notes, "add", "milk") == "notes: milk\nnot acknowledged: 1\n"
    assert await bob.ends(notes, "sync") == "notes: milk\nnot acknowledged: 0\n"
    assert await bob.ends(notes, "add", "bread") == "notes: bread, milk\nnot acknowledged: 1\n"
    assert await alice.ends(notes, "sync") == "notes: bread, milk\nnot acknowledged: 0\n"
    assert await bob.ends(notes, "sync") == "notes: bread, milk\nnot acknowledged: 0\n"


async def test_the_guide_names_each_option_of_the_commands() -> None:
    for command in client.app.registered_commands:
        assert command.callback is not None
        for name in command.callback.__annotations__:
            option = f"--{name.replace('_', '-')}"
            assert name in {"return", "code", "paths"} or f"`{option}" in GUIDE.text, option
