"""A receiver stopped by Ctrl-C says nothing to the server; whoever comes next is a third side, like a stranger.

The reference server answers a third side with `crowded`, and from then on the first two as well, whenever they
claim, open or close again (mailbox server issues 19, 20 and 80). Ours: docs/decisions/silent-sides.md. The rules are
in the scripts of tests/scripts; these are real clients.
"""

import pytest

from support.mailbox.proxy import AFTER, Hold, Moment, to_client, to_server
from support.mailbox.scene import RECEIVER, SENDER, Scene, assert_text_arrives
from support.mailbox.servers import Usage
from support.mailbox.wormhole import Client

TEXT = "for the next one"


async def stop_receiver(scene: Scene, receiver: Client, held: Hold) -> None:
    """Press Ctrl-C at the message HELD, which then never arrives; the server has noticed when this returns."""
    await held.reached()
    receiver.press_ctrl_c()
    outcome = await receiver.leaves()
    assert (outcome.exit_code, outcome.stdout) == (0, ""), outcome
    held.drop()
    await scene.proxy.gone(RECEIVER)


async def assert_refused(client: Client) -> None:
    outcome = await client.leaves()
    assert outcome.exit_code == 1, outcome
    assert outcome.stdout == ""
    assert "ERROR: crowded" in outcome.stderr, outcome


@pytest.mark.parametrize(
    "moment",
    [
        # it has opened, like one stopped while its user typed words
        to_server(RECEIVER, "add", phase="pake"),
        # it has claimed and nothing more
        pytest.param(to_client(RECEIVER, "claimed"), marks=pytest.mark.thorough),
    ],
    ids=str,
)
async def test_a_side_that_left_before_a_guess_gives_up_its_place(scene: Scene, moment: Moment) -> None:
    held = scene.proxy.hold(moment)
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    await stop_receiver(scene, await scene.receive(code, name="stopped"), held)
    await assert_text_arrives(sender, await scene.receive(code), TEXT)
    scene.assert_one_happy_session()


async def test_a_side_that_left_after_a_guess_keeps_its_place(scene: Scene) -> None:
    """Else a guesser could try code after code, each time as the second side.

    What then happens: the sender has computed a key with the one who left, and waits for that one's `version`, which
    will never come; no server can know that. Nobody tells the sender `crowded`: its user waits, or presses Ctrl-C.
    """
    held = scene.proxy.hold(to_server(RECEIVER, "release"))
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    stopped = await scene.receive(code, name="stopped")
    await scene.proxy.passed(to_client(RECEIVER, "message", phase="pake", author=RECEIVER))
    await stop_receiver(scene, stopped, held)
    await assert_refused(await scene.receive(code))
    await sender.says("Key established, waiting for confirmation...")
    scene.kill()  # the reference server would refuse the sender when it comes back
    reopened = scene.proxy.watch(to_client(SENDER, "message", phase="version", author=SENDER))
    await scene.server.restart()
    await reopened.reached()
    assert scene.proxy.heard(SENDER, "error") == []
    assert sender.running
    assert scene.server.usage() == Usage(nameplates=[], mailboxes=[])


@pytest.mark.thorough
async def test_a_side_that_reconnects_after_a_crash_keeps_its_place(scene: Scene) -> None:
    """Here the server left, not the receiver: a stranger who is quicker must not have its place."""
    killed = scene.kill_at(to_client(RECEIVER, "claimed"), AFTER)
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    receiver = await scene.receive(code)
    await killed.reached()
    back = scene.proxy.hold(to_server(RECEIVER, "bind"))
    await scene.server.restart()
    await assert_refused(await scene.receive(code, name="stranger"))
    await back.reached()
    back.let_go()
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.server.usage() == Usage(nameplates=["crowded"], mailboxes=["crowded"])
    assert scene.server.live() == {}


@pytest.mark.thorough
@pytest.mark.parametrize("restart", [False, True], ids=["server-stays", "server-killed"])
async def test_a_refused_stranger_harms_nobody(scene: Scene, restart: bool) -> None:
    held = scene.proxy.hold(to_server(RECEIVER, "release"))  # and the `version` behind it
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    receiver = await scene.receive(code)
    await held.reached()
    await assert_refused(await scene.receive(code, name="stranger"))
    if restart:
        scene.kill()
        await scene.server.restart()
    held.let_go()
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.proxy.heard(SENDER, "error") == scene.proxy.heard(RECEIVER, "error") == []
    # Somebody else knew the nameplate: that is what the operator should see of it.
    assert scene.server.usage() == Usage(nameplates=["crowded"], mailboxes=["crowded"])
    assert scene.server.live() == {}
