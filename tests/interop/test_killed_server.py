"""The server is killed (SIGKILL) and started again on its data; whatever was said last, the transfer succeeds.

Each test kills once, at a message, not at a time: `before` loses the message and all behind it, `after` lets exactly
this message through. Clients come back by themselves (mailbox reference client _rendezvous.py: ClientService) and say
again what they have no answer to.

One moment is missing on purpose. The receiver of a text answers and closes in one go; when it comes back it says only
`close` again (_mailbox.py: S3A.upon(connected) sends no pending `add`). An answer that never reached a server is lost
by the client, and the sender waits for ever, whatever the server does. So where an answer is on its way, these tests
kill only once the server has it.
"""

import random

import pytest

from support.mailbox.proxy import AFTER, BEFORE, Moment, Order, to_client, to_server
from support.mailbox.scene import RECEIVER, SENDER, Scene, assert_text_arrives

TEXT = "held over a crash"
FILE = random.Random(8).randbytes(300_000)
ANSWER = to_client(SENDER, "message", phase="0", author=RECEIVER)


def kills(quick: list[tuple[Order, Moment]], thorough: list[tuple[Order, Moment]]) -> pytest.MarkDecorator:
    """Name where to kill."""
    marked = [*((*kill, ()) for kill in quick), *((*kill, (pytest.mark.thorough,)) for kill in thorough)]
    params = [
        pytest.param(order, moment, id=f"{order.value}-{moment}", marks=marks) for order, moment, marks in marked
    ]
    return pytest.mark.parametrize(("order", "moment"), params)


@kills(
    # The sender asks for a nameplate once more and must be given the same one: the usage shows one.
    [(BEFORE, to_client(SENDER, "allocated"))],
    [
        (BEFORE, to_client(SENDER, "claimed")),
        (BEFORE, to_client(SENDER, "message", phase="pake", author=SENDER)),
        (AFTER, to_client(SENDER, "allocated")),
        (AFTER, to_client(SENDER, "claimed")),
        (AFTER, to_client(SENDER, "message", phase="pake", author=SENDER)),
    ],
)
async def test_a_printed_code_stays_valid(scene: Scene, order: Order, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    await killed.reached()
    await scene.server.restart()
    # The receiver comes only now: a client whose very first connection fails gives up (_rendezvous.py:106).
    await assert_text_arrives(sender, await scene.receive(await sender.code()), TEXT)
    assert scene.proxy.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


@kills(
    [
        # the second pake is stored, but only one side knows
        (BEFORE, to_client(SENDER, "message", phase="pake", author=RECEIVER)),
        # the nameplate is released
        (BEFORE, to_client(RECEIVER, "released")),
    ],
    [
        (BEFORE, to_client(RECEIVER, "claimed")),
        (AFTER, to_client(RECEIVER, "claimed")),
        (BEFORE, to_server(RECEIVER, "add", phase="pake")),
        (AFTER, to_client(SENDER, "message", phase="pake", author=RECEIVER)),
        (BEFORE, to_client(SENDER, "message", phase="version", author=RECEIVER)),
        (AFTER, to_client(SENDER, "message", phase="version", author=RECEIVER)),
        (BEFORE, to_server(SENDER, "add", phase="0")),
        (BEFORE, to_client(RECEIVER, "message", phase="0", author=SENDER)),
        (BEFORE, ANSWER),
        (AFTER, ANSWER),
    ],
)
async def test_a_text_arrives(scene: Scene, order: Order, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await killed.reached()
    await scene.server.restart()
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.proxy.connections_of(SENDER) == 2
    if moment is not ANSWER:  # then the receiver may have heard `closed` and left before
        assert scene.proxy.connections_of(RECEIVER) == 2
    scene.assert_one_happy_session()


@kills(
    [(BEFORE, to_client(RECEIVER, "closed"))],  # it has ended the membership, and the client does not know
    [
        (BEFORE, to_server(RECEIVER, "close")),
        (AFTER, to_server(RECEIVER, "close")),
        (AFTER, to_client(RECEIVER, "closed")),
    ],
)
async def test_the_first_close_counts_once(scene: Scene, order: Order, moment: Moment) -> None:
    senders_close = scene.proxy.hold(to_server(SENDER, "close"))
    receivers_close = scene.proxy.hold(to_server(RECEIVER, "close"))
    killed = scene.kill_at(moment, order)
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await senders_close.reached()
    await receivers_close.reached()
    receivers_close.let_go()
    await killed.reached()
    await scene.server.restart()
    await assert_text_arrives(sender, receiver, TEXT)
    assert scene.proxy.connections_of(SENDER) == 2
    scene.assert_one_happy_session()


@kills(
    [(BEFORE, to_client(SENDER, "closed"))],
    [
        (BEFORE, to_server(SENDER, "close")),
        (AFTER, to_server(SENDER, "close")),
        (AFTER, to_client(SENDER, "closed")),
    ],
)
async def test_the_last_close_counts_once(scene: Scene, order: Order, moment: Moment) -> None:
    senders_close = scene.proxy.hold(to_server(SENDER, "close"))
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    assert (await receiver.leaves()).exit_code == 0  # it was told `closed`
    killed = scene.kill_at(moment, order)
    senders_close.let_go()
    await killed.reached()
    await scene.server.restart()
    await assert_text_arrives(sender, receiver, TEXT)
    scene.assert_one_happy_session()


@kills(
    # the bytes go from client to client while there is no server
    [(AFTER, to_client(SENDER, "message", phase="1", author=RECEIVER))],
    [
        (BEFORE, to_client(SENDER, "closed")),
        # Phase 1 is the offer and its answer. The receiver of a file does not close before the file has come, so here
        # even an answer that was lost on its way to the server is said again.
        (BEFORE, to_server(RECEIVER, "add", phase="1")),
        (BEFORE, to_client(SENDER, "message", phase="1", author=RECEIVER)),
    ],
)
async def test_a_file_arrives(scene: Scene, order: Order, moment: Moment) -> None:
    killed = scene.kill_at(moment, order)
    sender = await scene.send_file("parcel.bin", FILE)
    receiver = await scene.receive(await sender.code(), "--accept-file")
    await killed.reached()
    await scene.server.restart()
    for client in (receiver, sender):
        outcome = await client.leaves()
        assert outcome.exit_code == 0, outcome
    assert scene.received("parcel.bin") == FILE
    scene.assert_one_happy_session()
