"""Two people with real `wormhole` clients, and a server that is killed, that others visit, or neither."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from support.mailbox.scene import (
    AFTER,
    BEFORE,
    RECEIVER,
    SENDER,
    Moment,
    Scene,
    assert_text_arrives,
    to_client,
    to_server,
)
from support.mailbox.servers import Replaced, Restante
from support.mailbox.wormhole import Client
from support.sqlite import LOCK, beside

TEXT: Final = "held over a crash"
FILE: Final = random.Random(8).randbytes(300_000)
LARGE_FILE: Final = bytes(64 << 20)
ANSWER: Final = to_client(SENDER, "message", phase="0", author=RECEIVER)

thorough = pytest.mark.thorough


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with Scene(tmp_path, Restante(tmp_path / "server", *getattr(request, "param", ()))) as scene:
        yield scene


def flags(*arguments: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", [arguments], ids=arguments[-1:], indirect=True)


async def assert_refused(*clients: Client, error: str) -> None:
    for client in clients:
        outcome = await client.leaves()
        assert (outcome.exit_code, TEXT in outcome.stdout) == (1, False), outcome
        assert error in " ".join(outcome.stderr.split()), outcome  # the client breaks lines


# What the server must not mind of clients behind a proxy that names them.
@flags("--trust-proxy", "127.0.0.0/8", "--permission", "adaptive")
async def test_a_long_text_arrives(scene: Scene) -> None:
    text = "post held until called for " * 4000
    sender = await scene.send_text(text)
    await assert_text_arrives(sender, await scene.receive(await sender.code()), text)
    scene.assert_one_happy_session()


async def test_a_wrong_code_ends_both_clients_with_scary(scene: Scene) -> None:
    sender = await scene.send_text(TEXT)
    nameplate = (await sender.code()).partition("-")[0]
    receiver = await scene.receive(f"{nameplate}-wrong-words")
    # mailbox reference client errors.py, the words of WrongPasswordError
    await assert_refused(sender, receiver, error="ERROR: Key confirmation failed.")
    # The nameplate did what it is for; the mailbox is what went wrong (mailbox server.py, _summarize_mailbox).
    assert scene.server.usage() == (["happy"], ["scary"])
    assert scene.server.live() == {}


async def test_a_regular_restart_of_the_server_does_not_disturb_a_transfer(scene: Scene) -> None:
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    await scene.server.stop()
    await scene.server.start()
    await assert_text_arrives(sender, await scene.receive(code), TEXT)
    assert scene.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


RESTARTS: Final = [
    to_client(SENDER, "claimed"),
    to_server(SENDER, "add", phase="pake"),
    to_client(RECEIVER, "claimed"),
    to_client(RECEIVER, "message", phase="pake", author=SENDER),
    to_server(RECEIVER, "add", phase="version"),
    to_client(SENDER, "message", phase="0", author=RECEIVER),
    to_server(SENDER, "close"),
    to_client(RECEIVER, "closed"),
]
QUICK_RESTARTS: Final = {RESTARTS[2], RESTARTS[4]}


@pytest.mark.parametrize(
    "moment", [pytest.param(at, marks=() if at in QUICK_RESTARTS else thorough, id=str(at)) for at in RESTARTS]
)
async def test_no_client_notices_that_the_server_replaces_itself(tmp_path: Path, moment: Moment) -> None:
    """While one waits for its code to be used, and when a message has left one side that the other has not got."""
    server = Replaced(tmp_path / "server")
    async with Scene(tmp_path, server) as scene:
        held = scene.hold(moment)
        sender = await scene.send_text(TEXT)
        code = asyncio.ensure_future(sender.code())
        receiving = asyncio.ensure_future(received_with(scene, code))
        await held.reached()
        server.replace()
        await server.logged('"event": "restarting"')
        held.let_go()
        await server.logged('"event": "restarted"')
        await assert_text_arrives(sender, await receiving, TEXT)
        assert (scene.connections_of(SENDER), scene.connections_of(RECEIVER)) == (1, 1)
        scene.assert_one_happy_session()


@thorough
async def test_no_client_notices_that_the_server_replaces_itself_at_each_step_of_a_transfer(tmp_path: Path) -> None:
    """When a code is known, claimed and used, when both have the key, and while a file goes."""
    server = Replaced(tmp_path / "server")
    async with Scene(tmp_path, server) as scene:
        stops = [
            scene.hold(to_client(SENDER, "claimed")),
            scene.hold(to_client(RECEIVER, "claimed")),
            scene.hold(to_client(RECEIVER, "message", phase="pake", author=SENDER)),
            scene.hold(to_server(RECEIVER, "add", phase="version")),
            scene.hold(to_server(RECEIVER, "add", phase="1")),
            scene.stop_at(to_client(SENDER, "message", phase="1", author=RECEIVER), AFTER, None),
        ]
        sender = await scene.send_file("parcel.bin", LARGE_FILE)
        code = asyncio.ensure_future(sender.code())
        receiving = asyncio.ensure_future(received_with(scene, code, "--accept-file"))
        for stop in stops:
            await stop.reached()
            await server.replaced()
            stop.let_go()
        receiver = await receiving
        assert [(await client.leaves()).exit_code for client in (receiver, sender)] == [0, 0]
        assert scene.received("parcel.bin") == LARGE_FILE
        assert (scene.connections_of(SENDER), scene.connections_of(RECEIVER)) == (1, 1)
        scene.assert_one_happy_session()


async def received_with(scene: Scene, code: asyncio.Future[str], *options: str) -> Client:
    return await scene.receive(await code, *options)


@flags("--permission", "hashcash")
async def test_a_client_that_cannot_show_the_demanded_work_gives_up_at_once(scene: Scene) -> None:
    # A receiver that is refused before it has used its code fails of that: it expects no error so early.
    refused = scene.hold(to_client(RECEIVER, "error"))
    sender = await scene.send_text(TEXT)
    await scene.passed(to_client(SENDER, "error"))
    receiver = await scene.receive("4-purple-sausages")
    await scene.passed(to_server(RECEIVER, "claim"))
    refused.let_go()
    await assert_refused(sender, receiver, error="permission denied")
    assert scene.server.live() == {}


@thorough
@pytest.mark.parametrize(
    "moment", [to_server(RECEIVER, "add", phase="pake"), to_server(SENDER, "add", phase="0")], ids=str
)
async def test_a_disk_without_room_ends_both_clients(tmp_path: Path, moment: Moment) -> None:
    server = Restante(tmp_path / "server", "--config", "serve.toml")
    settings = server.folder / "serve.toml"
    settings.write_text("")
    async with Scene(tmp_path, server) as scene:
        refused = scene.hold(moment)
        sender = await scene.send_text(TEXT)
        receiver = await scene.receive(await sender.code())
        await refused.reached()
        settings.write_text("[serve.limits]\nfree_disk = 1000000000000000000\n")
        server.reload()
        await server.logged("the disk is nearly full")
        refused.let_go()
        await assert_refused(sender, receiver, error="the server is full")
        assert server.live() == {}


@thorough
async def test_clients_send_again_what_a_locked_database_refused(scene: Scene) -> None:
    refused = scene.hold(to_server(RECEIVER, "add", phase="pake"))
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await refused.reached()
    with beside(scene.server.folder / Restante.live_file, LOCK):
        refused.let_go()
        await scene.server.logged("a batch was not stored")
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.connections_of(RECEIVER) > 1
    scene.assert_one_happy_session()


# Each test kills once, at a message: `before` loses it and all behind it, `after` lets it through and nothing else.
# Clients come back by themselves (_rendezvous.py: ClientService) and say again what they have no answer to. But the
# receiver of a text, which answers and closes in one go, says only `close` again (_mailbox.py: S3A.upon(connected)
# sends no pending `add`). So where an answer is on its way, these tests kill only once the server has it.


def kills(*where: tuple[str, Moment], quick: int = 1) -> pytest.MarkDecorator:
    """Name where to kill. The first is quick, or so many of them."""
    params = [
        pytest.param(order, moment, id=f"{order}-{moment}", marks=[thorough] * (number >= quick))
        for number, (order, moment) in enumerate(where)
    ]
    return pytest.mark.parametrize(("order", "moment"), params)


@kills(
    # The sender asks for a nameplate once more and must be given the same one: the usage shows one.
    (BEFORE, to_client(SENDER, "allocated")),
    (BEFORE, to_client(SENDER, "claimed")),
    (BEFORE, to_client(SENDER, "message", phase="pake", author=SENDER)),
    (AFTER, to_client(SENDER, "message", phase="pake", author=SENDER)),
)
async def test_a_printed_code_stays_valid(scene: Scene, order: str, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    await killed.reached()
    await scene.server.restart()
    # The receiver comes only now: a client whose very first connection fails gives up (_rendezvous.py:106).
    await assert_text_arrives(sender, await scene.receive(await sender.code()), TEXT)
    assert scene.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


@kills(
    # the second pake is stored, but only one side knows
    (BEFORE, to_client(SENDER, "message", phase="pake", author=RECEIVER)),
    (BEFORE, to_client(RECEIVER, "released")),
    (BEFORE, to_client(RECEIVER, "claimed")),
    (BEFORE, to_server(RECEIVER, "add", phase="pake")),
    (AFTER, to_client(SENDER, "message", phase="pake", author=RECEIVER)),
    (BEFORE, to_client(SENDER, "message", phase="version", author=RECEIVER)),
    (BEFORE, to_server(SENDER, "add", phase="0")),
    (BEFORE, to_client(RECEIVER, "message", phase="0", author=SENDER)),
    (BEFORE, ANSWER),
    (AFTER, ANSWER),
    quick=2,
)
async def test_a_text_arrives(scene: Scene, order: str, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await killed.reached()
    await scene.server.restart()
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.connections_of(SENDER) == 2
    if moment is not ANSWER:  # then the receiver may have heard `closed` and left before
        assert scene.connections_of(RECEIVER) == 2
    scene.assert_one_happy_session()


@kills(
    (BEFORE, to_client(RECEIVER, "closed")),  # it has ended the membership, and the client does not know
    (BEFORE, to_client(SENDER, "closed")),
    (BEFORE, to_server(RECEIVER, "close")),
    (AFTER, to_client(RECEIVER, "closed")),
    (BEFORE, to_server(SENDER, "close")),
    (AFTER, to_client(SENDER, "closed")),
    quick=2,
)
async def test_each_close_counts_once(scene: Scene, order: str, moment: Moment) -> None:
    senders_close = scene.hold(to_server(SENDER, "close"))
    receivers_close = scene.hold(to_server(RECEIVER, "close"))
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await senders_close.reached()
    await receivers_close.reached()
    receivers_close.let_go()
    if moment.client == SENDER:
        assert (await receiver.leaves()).exit_code == 0  # it was told `closed`
        senders_close.let_go()
    await killed.reached()
    await scene.server.restart()
    await assert_text_arrives(sender, receiver, TEXT)
    assert moment.client == SENDER or scene.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


@kills(
    # the bytes go from client to client while there is no server
    (AFTER, to_client(SENDER, "message", phase="1", author=RECEIVER)),
    (BEFORE, to_client(SENDER, "closed")),
    # Phase 1 is the offer and its answer. The receiver of a file does not close before the file has come, so here an
    # answer that was lost on its way to the server is said again, too.
    (BEFORE, to_server(RECEIVER, "add", phase="1")),
    (BEFORE, to_client(SENDER, "message", phase="1", author=RECEIVER)),
)
async def test_a_file_arrives(scene: Scene, order: str, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_file("parcel.bin", FILE)
    receiver = await scene.receive(await sender.code(), "--accept-file")
    await killed.reached()
    await scene.server.restart()
    assert [(await client.leaves()).exit_code for client in (receiver, sender)] == [0, 0]
    assert scene.received("parcel.bin") == FILE
    scene.assert_one_happy_session()


# A receiver stopped by Ctrl-C says nothing to the server; whoever comes next is a third side, which the reference
# server answers with `crowded` (mailbox server issues 19, 20 and 80). Ours: docs/decisions/silent-sides.md.


@pytest.mark.parametrize(
    "moment",
    [
        # it has opened, like one stopped while its user typed words
        to_server(RECEIVER, "add", phase="pake"),
        # it has claimed and nothing more
        pytest.param(to_client(RECEIVER, "claimed"), marks=thorough),
    ],
    ids=str,
)
async def test_a_side_that_left_before_a_guess_gives_up_its_place(scene: Scene, moment: Moment) -> None:
    waiting = scene.hold(moment)
    sender = await scene.send_text(TEXT)
    code = await sender.code()
    stopped = await scene.receive(code, name="stopped")
    await waiting.reached()
    stopped.send(signal.SIGINT)  # it then stops its reactor without a word to the server
    outcome = await stopped.leaves()
    assert (outcome.exit_code, outcome.stdout) == (0, ""), outcome
    await scene.cut_off(RECEIVER)
    await assert_text_arrives(sender, await scene.receive(code), TEXT)
    scene.assert_one_happy_session()
