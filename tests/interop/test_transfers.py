"""Two people and a server that nobody disturbs."""

import random

from support.mailbox.scene import SENDER, Scene, assert_text_arrives
from support.mailbox.servers import Usage

FILE = random.Random(5).randbytes(300_000)


async def test_a_text_arrives(any_scene: Scene) -> None:
    sender = await any_scene.send_text("post held until called for")
    receiver = await any_scene.receive(await sender.code())
    await assert_text_arrives(sender, receiver, "post held until called for")
    any_scene.assert_one_happy_session()


async def test_a_file_arrives_byte_for_byte(scene: Scene) -> None:
    sender = await scene.send_file("parcel.bin", FILE)
    receiver = await scene.receive(await sender.code(), "--accept-file")
    assert (await receiver.leaves()).exit_code == 0
    assert (await sender.leaves()).exit_code == 0
    assert scene.received("parcel.bin") == FILE
    scene.assert_one_happy_session()


async def test_a_wrong_code_ends_both_clients_with_scary(any_scene: Scene) -> None:
    sender = await any_scene.send_text("not for you")
    nameplate = (await sender.code()).partition("-")[0]
    receiver = await any_scene.receive(f"{nameplate}-wrong-words")
    for client in (sender, receiver):
        outcome = await client.leaves()
        assert outcome.exit_code == 1, outcome
        # mailbox reference client errors.py, the words of WrongPasswordError; cli.py breaks them into lines
        assert "ERROR: Key confirmation failed." in " ".join(outcome.stderr.split()), outcome
        assert "not for you" not in outcome.stdout
    # The nameplate did what it is for; the mailbox is what went wrong (mailbox server.py, _summarize_mailbox).
    assert any_scene.server.usage() == Usage(nameplates=["happy"], mailboxes=["scary"])
    assert any_scene.server.live() == {}


async def test_a_regular_restart_of_the_server_does_not_disturb_a_transfer(any_scene: Scene) -> None:
    sender = await any_scene.send_text("held over a restart")
    code = await sender.code()
    await any_scene.server.stop()
    await any_scene.server.start()
    receiver = await any_scene.receive(code)
    await assert_text_arrives(sender, receiver, "held over a restart")
    assert any_scene.proxy.connections_of(SENDER) == 2
    any_scene.assert_one_happy_session()
