"""A transfer that was begun on the reference server ends on ours: real clients, and one port that changes hands.

As in interop/: the clients come back by themselves, and say again what they have no answer to.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.mailbox.scene import AFTER, BEFORE, RECEIVER, SENDER, Scene, assert_text_arrives, to_client, to_server
from support.mailbox.servers import Reference, Restante
from support.processes import RESTANTE, child

TEXT = "begun there, ended here"
FILE = random.Random(3).randbytes(300_000)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """The reference server, with real clients."""
    async with Scene(tmp_path, Reference(tmp_path / "reference")) as scene:
        yield scene


@asynccontextmanager
async def taken_over(scene: Scene) -> AsyncIterator[None]:
    """The reference server is gone: import what it left, and start ours in its place."""
    folder = scene.server.folder
    ours = Restante(folder.with_name("restante"))
    ours.port = scene.server.port
    files = ("--channel", str(folder / "relay.sqlite"), "--usage", str(folder / "usage.sqlite"))
    async with child(*RESTANTE, "import", "--data", str(ours.folder / "data"), *files) as importing:
        assert await importing.ended() == 0, importing.said
    scene.server = ours
    try:
        await ours.start()
        yield
    except BaseException:
        await ours.end()
        raise


@pytest.mark.thorough
async def test_a_code_of_the_reference_works_after_the_import(scene: Scene) -> None:
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    await scene.passed(to_client(SENDER, "message", phase="pake", author=SENDER))
    await scene.server.stop()
    async with taken_over(scene):
        receiver = await scene.receive(code)
        await assert_text_arrives(sender, receiver, TEXT)
        assert scene.connections_of(SENDER) >= 2
        assert scene.connections_of(RECEIVER) == 1
        scene.assert_one_happy_session()


MOMENTS = {
    "the code is printed": (AFTER, to_client(SENDER, "allocated")),
    "both have said pake, and one knows": (BEFORE, to_client(SENDER, "message", phase="pake", author=RECEIVER)),
    "the nameplate is released": (BEFORE, to_client(RECEIVER, "released")),
    "the text is on its way": (BEFORE, to_client(RECEIVER, "message", phase="0", author=SENDER)),
}


QUICK = "both have said pake, and one knows"


@pytest.mark.parametrize(
    "moment", [QUICK, *(pytest.param(name, marks=pytest.mark.thorough) for name in MOMENTS if name != QUICK)]
)
async def test_the_reference_server_may_be_killed_in_mid_transfer(scene: Scene, moment: str) -> None:
    order, where = MOMENTS[moment]
    killed = scene.kill_at(where, order)
    if where.type == "released":
        # The reference commits the usage record of a nameplate before it deletes the nameplate (server.py,
        # release_nameplate). If it is killed between the two, the nameplate is recorded again later.
        last_release = scene.hold(to_server(SENDER, "release"))
    sender = await scene.send_text(TEXT)
    # A client whose very first connection fails gives up: it comes when there is a server.
    late = where.client == SENDER and where.type == "allocated"
    receiver = None if late else await scene.receive(await sender.code())
    await killed.reached()
    if where.type == "released":
        last_release.let_go()
    await scene.server.end()
    async with taken_over(scene):
        await assert_text_arrives(sender, receiver or await scene.receive(await sender.code()), TEXT)
        scene.assert_one_happy_session()


@pytest.mark.thorough
async def test_a_file_offered_at_the_reference_is_received_here(scene: Scene) -> None:
    killed = scene.kill_at(to_client(SENDER, "message", phase="version", author=RECEIVER), BEFORE)
    sender = await scene.send_file("parcel.bin", FILE)
    receiver = await scene.receive(await sender.code(), "--accept-file")
    await killed.reached()
    await scene.server.end()
    async with taken_over(scene):
        for client in (receiver, sender):
            outcome = await client.leaves()
            assert outcome.exit_code == 0, outcome
        assert scene.received("parcel.bin") == FILE
        scene.assert_one_happy_session()


async def test_going_back_to_the_reference_server(scene: Scene) -> None:
    """As the guide says: the reference server starts on its own files, with the usage records of both servers."""

    async def transfer() -> None:
        sender = await scene.send_text(TEXT)
        await assert_text_arrives(sender, await scene.receive(await sender.code()), TEXT)

    theirs = scene.server
    await transfer()
    await theirs.stop()
    async with taken_over(scene):
        ours = scene.server
        await transfer()
        await ours.stop()
    usage = theirs.folder / "usage.sqlite"
    usage.unlink()
    async with child(*RESTANTE, "export", str(usage), "--data", str(ours.folder / "data")) as exporting:
        assert await exporting.ended() == 0, exporting.said
    scene.server = theirs
    await theirs.start()
    await transfer()
    assert theirs.usage() == (["happy"] * 3, ["happy"] * 3)
    assert theirs.live() == {}
