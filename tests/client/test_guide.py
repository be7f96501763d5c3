"""The guide: its commands and programs are run as they stand there."""

from __future__ import annotations

import asyncio
import re
import shlex
import stat
from contextlib import AbstractAsyncContextManager

import pytest

from client.commands import Command, Desk, command, end
from support.documents import Document
from support.processes import Child

pytestmark = pytest.mark.asyncio(loop_scope="module")

GUIDE = Document("docs/client/guide.md")
README = Document("README.md")
USUAL = "ws://127.0.0.1:4000/v1"


class Person:
    def __init__(self, desk: Desk, name: str) -> None:
        assert GUIDE.lines("serve") == ["restante serve"]
        self._url = desk.url
        self.folder = desk.folder / name
        self.folder.mkdir()

    def command(self, line: str, **others: str) -> AbstractAsyncContextManager[Command]:
        arguments = [others.get(word, word) for word in shlex.split(line.replace(USUAL, self._url))]
        assert arguments[0] == "restante"
        return command(self.folder, *arguments[1:])

    def program(self, text: str, *arguments: str, typed: bytes | None = None) -> AbstractAsyncContextManager[Command]:
        (self.folder / "program.py").write_text(text.replace(USUAL, self._url))
        return command(self.folder, *arguments, program="program.py", typed=typed)

    async def ends(self, text: str, *arguments: str) -> str:
        async with self.program(text, *arguments) as child:
            assert await child.ended() == 0, child.said
        return child.said["stdout"]


@pytest.fixture
def alice(desk: Desk) -> Person:
    return Person(desk, "alice")


@pytest.fixture
def bob(desk: Desk) -> Person:
    return Person(desk, "bob")


@pytest.fixture
def parcels(alice: Person) -> None:
    (alice.folder / "letter.txt").write_text("held until called for")
    (alice.folder / "photos").mkdir()
    (alice.folder / "photos" / "1.jpg").write_bytes(b"a photo")


async def code_of(child: Child) -> str:
    return (await child.says(r"code(?: is)?: (\d+-[a-z-]+)\n")).group(1)


async def test_a_text_is_sent_and_received(desk: Desk, alice: Person, bob: Person) -> None:
    async with (
        alice.command(GUIDE.blocks["send"]) as sender,
        bob.command(GUIDE.blocks["receive"], **{"7-your-code": await code_of(sender)}) as receiver,
    ):
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
        code = await code_of(sender)
    assert receiver.said == {
        "stdout": "held until called for\n",
        "stderr": "Waiting for the other side …\nThe other side is there.\n",
    }
    assert sender.said == {
        "stdout": "",
        "stderr": "Sending a text of 21 characters\n"
        f"Only this computer can reach the server {desk.url}.\nOn the other computer, run one of these:\n\n"
        f"restante receive --server {desk.url} {code}\nwormhole --relay-url {desk.url} receive {code}\n\n"
        f"Wormhole code is: {code}\nWaiting for the other side …\nThe other side is there.\nThe text has arrived.\n",
    }


async def test_files_are_sent_and_received(parcels: None, alice: Person, bob: Person) -> None:
    (bob.folder / "Downloads").mkdir()
    async with (
        alice.command(GUIDE.blocks["send files"]) as sender,
        bob.command(GUIDE.blocks["receive files"], **{"7-your-code": await code_of(sender)}) as receiver,
    ):
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    said = r"^Sending directory 'files' \(2 files, 28 bytes\)\n(.+\n)?Only this computer can reach the relay tcp:127"
    assert re.search(said, sender.said["stderr"])
    assert sender.said["stderr"].endswith("The directory has arrived.\n")
    received = bob.folder / "Downloads" / "files"
    assert (received / "letter.txt").read_text() == "held until called for"
    assert (received / "photos" / "1.jpg").read_bytes() == b"a photo"


@pytest.mark.parametrize("sent", ["letter.txt", "photos"])
async def test_a_program_sends_and_stores_files(parcels: None, alice: Person, bob: Person, sent: str) -> None:
    async with (
        alice.program(GUIDE.blocks["files"], "send", sent) as sender,
        bob.program(GUIDE.blocks["files"], "receive", await code_of(sender)) as receiver,
    ):
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    *_, done, stored = receiver.said["stdout"].splitlines()
    assert stored == f"stored {sent}"
    assert done in sender.said["stdout"].splitlines()
    assert done.endswith(" bytes")
    received = {"letter.txt": b"held until called for", "photos/1.jpg": b"a photo"}
    for path in (bob.folder / sent).rglob("*") if (bob.folder / sent).is_dir() else [bob.folder / sent]:
        assert path.read_bytes() == received[str(path.relative_to(bob.folder))]


async def test_two_people_chat(alice: Person, bob: Person) -> None:
    async with (
        alice.program(GUIDE.blocks["chat"]) as one,
        bob.program(GUIDE.blocks["chat"], await code_of(one), typed=b"hello\nbye\n") as other,
    ):
        assert await end(other, one) == (0, 0), (one.said, other.said)
    assert one.said["stdout"].splitlines()[2:] == ["< hello", "< bye"]
    assert one.said["stdout"].splitlines()[1] == other.said["stdout"].splitlines()[0]
    assert (one.said["stderr"], other.said["stderr"]) == ("", "")


@pytest.mark.parametrize(
    ("program", "texts"),
    [(README.blocks["library"], ["b'hello'\n"] * 2), (GUIDE.blocks["note"], ["held until called for\n", ""])],
)
async def test_the_first_programs_exchange_messages(
    alice: Person, bob: Person, program: str, texts: list[str]
) -> None:
    async with alice.program(program) as one, bob.program(program, await code_of(one)) as other:
        assert await end(other, one) == (0, 0), (one.said, other.said)
    assert [side.said["stdout"].partition("\n")[2] for side in (one, other)] == texts
    assert one.said["stderr"] + other.said["stderr"] == ""


async def test_events_are_shown(alice: Person) -> None:
    shown = await alice.ends(GUIDE.blocks["events"])
    assert shown == "connected \nwaiting for the other side\nnobody came\n"


async def test_a_contact_is_met_again_without_a_code(alice: Person, bob: Person) -> None:
    async with (
        alice.program(GUIDE.blocks["contact"]) as one,
        bob.program(GUIDE.blocks["contact"], await code_of(one)) as other,
    ):
        assert await end(one, other) == (0, 0), (one.said, other.said)
    for person in (alice, bob):
        assert stat.S_IMODE((person.folder / "contact.seed").stat().st_mode) == 0o600
    for _ in range(2):
        shown = tuple(await asyncio.gather(alice.ends(GUIDE.blocks["contact"]), bob.ends(GUIDE.blocks["contact"])))
        assert shown == ("< hello\n", "< hello\n")


async def test_two_programs_that_never_run_at_the_same_time_share_notes(alice: Person, bob: Person) -> None:
    notes = GUIDE.blocks["journal"]
    code = (await alice.ends(notes, "new")).splitlines()[0].removeprefix("code: ")
    assert await bob.ends(notes, "join", code) == "notes: \nnot acknowledged: 0\n"
    assert await alice.ends(notes, "add", "milk") == "notes: milk\nnot acknowledged: 1\n"
    assert await bob.ends(notes, "sync") == "notes: milk\nnot acknowledged: 0\n"
    assert await bob.ends(notes, "add", "bread") == "notes: bread, milk\nnot acknowledged: 1\n"
    assert await alice.ends(notes, "sync") == "notes: bread, milk\nnot acknowledged: 0\n"
    assert await bob.ends(notes, "sync") == "notes: bread, milk\nnot acknowledged: 0\n"
