"""Two people, and a server that nobody disturbs, under each mode of permission (README, "Which clients pass")."""

import random

import pytest

from support.mailbox.proxy import to_client, to_server
from support.mailbox.scene import RECEIVER, SENDER, Scene, assert_text_arrives
from support.mailbox.servers import Usage

FILE = random.Random(5).randbytes(300_000)

on_both_servers = pytest.mark.parametrize(
    "scene", [(), pytest.param("reference", marks=pytest.mark.thorough)], ids=["restante", "reference"], indirect=True
)
"""What holds for the reference server too shows that the harness is right."""


@pytest.mark.parametrize(
    "scene",
    [
        # what the server must not mind of clients behind a proxy that names them
        ("--trust-proxy", "127.0.0.0/8", "--permission", "adaptive"),
        pytest.param((), marks=pytest.mark.thorough),
        pytest.param("reference", marks=pytest.mark.thorough),
    ],
    ids=["adaptive", "none", "reference"],
    indirect=True,
)
async def test_a_text_arrives(scene: Scene) -> None:
    text = "post held until called for " * 4000
    sender = await scene.send_text(text)
    await assert_text_arrives(sender, await scene.receive(await sender.code()), text)
    scene.assert_one_happy_session()


@pytest.mark.thorough
async def test_a_file_arrives_byte_for_byte(scene: Scene) -> None:
    sender = await scene.send_file("parcel.bin", FILE)
    receiver = await scene.receive(await sender.code(), "--accept-file")
    assert [(await client.leaves()).exit_code for client in (receiver, sender)] == [0, 0]
    assert scene.received("parcel.bin") == FILE
    scene.assert_one_happy_session()


@on_both_servers
async def test_a_wrong_code_ends_both_clients_with_scary(scene: Scene) -> None:
    sender = await scene.send_text("not for you")
    nameplate = (await sender.code()).partition("-")[0]
    receiver = await scene.receive(f"{nameplate}-wrong-words")
    for client in (sender, receiver):
        outcome = await client.leaves()
        assert outcome.exit_code == 1, outcome
        # mailbox reference client errors.py, the words of WrongPasswordError; cli.py breaks them into lines
        assert "ERROR: Key confirmation failed." in " ".join(outcome.stderr.split()), outcome
        assert "not for you" not in outcome.stdout
    # The nameplate did what it is for; the mailbox is what went wrong (mailbox server.py, _summarize_mailbox).
    assert scene.server.usage() == Usage(nameplates=["happy"], mailboxes=["scary"])
    assert scene.server.live() == {}


@on_both_servers
async def test_a_regular_restart_of_the_server_does_not_disturb_a_transfer(scene: Scene) -> None:
    sender = await scene.send_text("held over a restart")
    code = await sender.code()
    await scene.server.stop()
    await scene.server.start()
    await assert_text_arrives(sender, await scene.receive(code), "held over a restart")
    assert scene.proxy.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


@pytest.mark.parametrize("scene", [("--permission", "hashcash")], ids=["hashcash"], indirect=True)
async def test_a_client_that_cannot_show_the_demanded_work_gives_up_at_once(scene: Scene) -> None:
    # A receiver that is refused before it has used its code fails of that: it expects no error so early.
    refused = scene.proxy.hold(to_client(RECEIVER, "error"))
    sender = await scene.send_text("let me in")
    await scene.proxy.passed(to_client(SENDER, "error"))
    receiver = await scene.receive("4-purple-sausages")
    await scene.proxy.passed(to_server(RECEIVER, "claim"))
    refused.let_go()
    for client in (sender, receiver):
        outcome = await client.leaves()
        assert outcome.exit_code == 1, outcome
        assert "permission denied" in outcome.stderr, outcome
    assert scene.server.live() == {}
