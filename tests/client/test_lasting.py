"""A wormhole that a journal keeps outlives what a server does wrong for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from client.world import Side, settle
from restante.client.core.conversation import RECEIPT
from restante.client.core.outputs import Failed, Reconnect
from restante.client.errors import CrowdedError
from support.mailbox.givens import Options
from support.mailbox.worlds import StoreWorld, World


@pytest.fixture
def world() -> Iterator[World]:
    with closing(StoreWorld(Options())) as world:
        yield world


@pytest.fixture
def alice(world: World) -> Side:
    return Side(world, 1, wants_receipts=True, lasting=True)


@pytest.fixture
def bob(world: World) -> Side:
    return Side(world, 2, wants_receipts=True, lasting=True)


def agree(alice: Side, bob: Side) -> None:
    alice.machine.set_code("4-purple-sausages")
    bob.machine.set_code("4-purple-sausages")
    settle(alice, bob)


def failures(side: Side) -> list[type[Exception]]:
    return [type(event.error) for event in side.events if isinstance(event, Failed)]


def test_a_close_after_an_error_of_the_server_leaves_nothing_there(world: World, alice: Side, bob: Side) -> None:
    agree(alice, bob)
    bob.machine.close()
    settle(bob)
    alice.machine.receive('{"type": "error", "error": "the mailbox is full", "orig": {"type": "open"}}')
    alice.take()
    alice.machine.close()
    assert alice.machine.outputs() == [Reconnect("the wormhole is being closed")]
    alice.cut()
    settle(alice)
    assert set(world.counts().values()) == {"0"}


def test_a_code_that_two_others_use_ends_it_for_good(world: World, alice: Side) -> None:
    others = Side(world, 3), Side(world, 4)
    for each in others:
        each.machine.set_code("4-purple-sausages")
        each.connect()
        each.listen()
        while each.speak():
            pass
    alice.machine.set_code("4-purple-sausages")
    settle(alice)
    assert failures(alice) == [CrowdedError]
    assert alice.machine.state.mood == "errory"


# ── receipts ────────────────────────────────────────────────────────────────────────────────────


def process_ten_before_the_server_answers(alice: Side, bob: Side) -> None:
    for number in range(10):
        alice.machine.send(b"%d" % number)
    bob.attentive = False
    settle(alice, bob)
    for _ in range(10):
        bob.process()
    assert not bob.machine.all_stored


def receipts_heard(side: Side) -> list[str]:
    """Return the receipts that the server has sent on this connection."""
    phases = [frame["phase"] for frame in side.frames if frame["type"] == "message"]
    return [phase for phase in phases if phase.startswith(RECEIPT)]


def test_while_a_receipt_is_on_its_way_no_other_follows_and_then_only_the_newest(alice: Side, bob: Side) -> None:
    agree(alice, bob)
    process_ten_before_the_server_answers(alice, bob)
    settle(alice, bob)
    assert receipts_heard(alice) == ["receipt-1", "receipt-10"]
    assert bob.machine.all_stored
    assert alice.machine.state.acknowledged == 10


def test_after_a_receipt_that_was_lost_on_its_way_the_next_connection_sends_the_newest(
    alice: Side, bob: Side
) -> None:
    agree(alice, bob)
    process_ten_before_the_server_answers(alice, bob)
    bob.cut()
    settle(alice, bob)
    assert receipts_heard(alice) == ["receipt-10"]
    assert alice.machine.state.acknowledged == 10
