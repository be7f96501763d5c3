"""Two wormholes at a real server core: what they tell their applications, however connections and processes end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.world import Side, settle
from restante.client.core.outputs import (
    Closed,
    CodeKnown,
    Failed,
    KeyAgreed,
    MessageDelivered,
    MessageReceived,
    MessageStored,
    NameplatesListed,
    PeerConfirmed,
    Welcomed,
)
from restante.client.errors import (
    CodeExpiredError,
    CrowdedError,
    PeerMessageError,
    ServerError,
    WelcomeError,
    WrongPasswordError,
)
from restante.client.protocol.keys import NONCE_BYTES, MessageKeys, seal
from support import effort
from support.mailbox.givens import Options
from support.mailbox.worlds import StoreWorld, World

T = TypeVar("T")


@pytest.fixture
def world() -> Iterator[World]:
    with_store = StoreWorld(Options())
    yield with_store
    with_store.close()


def told(side: Side, kind: type[T]) -> list[T]:
    return [each for each in side.events if isinstance(each, kind)]


def failure(side: Side) -> Exception:
    (failed,) = told(side, Failed)
    return failed.error


def meet(world: World) -> tuple[Side, Side]:
    """Return two sides of which one has a code from the server and the other has been told it."""
    alice, bob = Side(world, 1), Side(world, 2)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    (code,) = told(alice, CodeKnown)
    bob.machine.set_code(code.code)
    return alice, bob


def test_two_sides_agree_exchange_messages_and_leave_nothing(world: World) -> None:
    alice, bob = meet(world)
    assert [alice.machine.send(b"one"), alice.machine.send(b"two")] == [0, 1]
    settle(alice, bob)
    bob.machine.send(b"three")
    settle(alice, bob)
    for side, other in ((alice, bob), (bob, alice)):
        assert len(told(side, Welcomed)) == len(told(side, KeyAgreed)) == 1
        (confirmed,) = told(side, PeerConfirmed)
        assert confirmed.versions == other.machine.state.app_versions
        assert confirmed.verifier == told(other, PeerConfirmed)[0].verifier
    assert told(bob, MessageReceived) == [MessageReceived(0, b"one"), MessageReceived(1, b"two")]
    assert told(alice, MessageStored) == [MessageStored(0), MessageStored(1)]
    assert told(alice, MessageReceived) == [MessageReceived(0, b"three")]
    alice.machine.close()
    bob.machine.close()
    settle(alice, bob)
    assert told(alice, Closed) == told(bob, Closed) == [Closed("happy")]
    assert set(world.counts().values()) == {"0"}


def test_the_nameplate_is_free_when_both_sides_are_there(world: World) -> None:
    alice, bob = meet(world)
    settle(alice, bob)
    alice.machine.list_nameplates()
    settle(alice, bob)
    assert told(alice, NameplatesListed) == [NameplatesListed([])]


def test_another_code_ends_both_sides_and_says_so(world: World) -> None:
    alice, bob = meet(world)
    mallory = Side(world, 3)
    mallory.machine.set_code(f"{alice.machine.state.nameplate}-other-words")
    settle(alice, mallory)
    assert isinstance(failure(alice), WrongPasswordError)
    assert isinstance(failure(mallory), WrongPasswordError)
    assert told(alice, Closed) == [Closed("scary")]
    assert told(alice, MessageReceived) == []
    assert bob.events == []


def test_a_third_side_is_told_that_the_code_is_in_use(world: World) -> None:
    alice, bob = meet(world)
    alice.machine.send(b"private")
    carol = Side(world, 3)
    carol.machine.set_code(alice.machine.state.code or "")
    bob.connect()
    while bob.machine.state.mailbox is None:  # bob's claim comes first
        settle(bob)
    settle(carol)
    assert isinstance(failure(carol), CrowdedError)
    assert len(told(carol, Closed)) == 1
    settle(alice, bob, carol)
    assert told(bob, MessageReceived) == [MessageReceived(0, b"private")]


def test_a_lonely_side_leaves_nothing(world: World) -> None:
    alice, _ = meet(world)
    alice.machine.close()
    settle(alice)
    assert told(alice, Closed) == [Closed("lonely")]
    assert set(world.counts().values()) == {"0"}


def test_a_side_that_never_connected_closes_at_once(world: World) -> None:
    alice = Side(world, 1)
    alice.machine.allocate("purple-sausages")
    alice.machine.close()
    alice.take()
    assert told(alice, Closed) == [Closed("lonely")]


@pytest.mark.parametrize("frames", range(4))
def test_a_claim_whose_answer_was_lost_is_cleaned_up_after_a_close(world: World, frames: int) -> None:
    alice = Side(world, 1)
    alice.machine.allocate("purple-sausages")
    alice.connect()
    for _ in range(frames):
        alice.listen()
    while alice.speak():
        pass
    alice.cut()
    alice.machine.close()
    settle(alice)
    assert told(alice, Closed) == [Closed("lonely")]
    assert set(world.counts().values()) == {"0"}


def test_an_expired_code_is_noticed_at_the_next_connection(world: World) -> None:
    alice, _ = meet(world)
    alice.cut()
    world.advance(3600)
    world.prune()
    settle(alice)
    assert isinstance(failure(alice), CodeExpiredError)
    assert set(world.counts().values()) == {"0"}


def test_a_server_that_does_not_want_to_be_used_is_left() -> None:
    refusing = StoreWorld(Options(error="closed for the holidays"))
    alice = Side(refusing, 1)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    assert isinstance(failure(alice), WelcomeError)
    assert str(failure(alice)) == "closed for the holidays"
    assert told(alice, Closed) == [Closed("unwelcome")]
    refusing.close()


LIES = [
    b"",
    b"[]",
    b"\xff",
    b'{"type": 5}',
    b'{"type": "claimed"}',
    b'{"type": "claimed", "mailbox": 5}',
    b'{"type": "claimed", "mailbox": "' + b"x" * 1000 + b'"}',
    b'{"type": "message", "side": "x", "phase": "pake"}',
    b'{"type": "nameplates", "nameplates": [1]}',
    b'{"type": "welcome", "welcome": []}',
    b"[" * 10_000,
]


@pytest.mark.parametrize("frame", LIES, ids=range(len(LIES)))
def test_a_frame_that_the_protocol_does_not_allow_ends_the_wormhole(world: World, frame: bytes) -> None:
    alice, _ = meet(world)
    alice.machine.receive(frame)
    alice.take()
    assert isinstance(failure(alice), ServerError)
    settle(alice)
    assert told(alice, Closed) == [Closed("errory")]


PAKE = b'{"type": "message", "side": "x", "phase": "pake", "body": "7b7d"}'


@pytest.mark.parametrize("frames", range(3))
def test_a_message_of_a_mailbox_that_is_not_open_ends_the_wormhole(world: World, frames: int) -> None:
    """Before the code is known there is nothing to answer a peer with."""
    alice = Side(world, 1)
    alice.machine.allocate("purple-sausages")
    alice.connect()
    for _ in range(frames):
        alice.listen()
    alice.machine.receive(PAKE)
    alice.take()
    assert isinstance(failure(alice), ServerError)
    settle(alice)
    assert told(alice, Closed) == [Closed("errory")]
    assert set(world.counts().values()) == {"0"}


@pytest.mark.parametrize("nameplate", ["", "four", "-1", "9" * 41])
def test_an_allocated_nameplate_that_is_none_ends_the_wormhole(world: World, nameplate: str) -> None:
    alice = Side(world, 1)
    alice.machine.allocate("purple-sausages")
    alice.connect()
    alice.listen()
    alice.machine.receive(json.dumps({"type": "allocated", "nameplate": nameplate}))
    alice.take()
    assert isinstance(failure(alice), ServerError)
    assert told(alice, Closed) == [Closed("errory")]


STEPS = ("speak", "listen", "cut", "restart", "connect", "send")


@effort.examples(60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(STEPS)), max_size=80), st.booleans())
def test_however_connections_and_processes_end_each_message_arrives_once(
    steps: list[tuple[int, str]], restarts: bool
) -> None:
    """Both sides end with the same key and each message once, in order, and leave nothing at the server."""
    world = StoreWorld(Options())
    sides = alice, bob = Side(world, 1), Side(world, 2)
    sent: dict[Side, list[bytes]] = {alice: [], bob: []}
    alice.machine.allocate("purple-sausages")
    settle(alice)
    bob.machine.set_code(alice.machine.state.code or "")
    for who, step in steps:
        side = sides[who]
        if step == "send":
            sent[side].append(b"%d" % len(sent[side]))
            side.machine.send(sent[side][-1])
            side.take()
        elif step == "connect":
            if not side.connected:
                side.connect()
        elif step == "restart" and restarts:
            for each in sides:
                each.restart()
            world.restart()
        else:
            getattr(side, step)()
    settle(alice, bob)
    for side, other in ((alice, bob), (bob, alice)):
        assert told(side, Failed) == []
        assert [each.plaintext for each in told(other, MessageReceived)] == sent[side]
        assert [each.number for each in told(side, MessageStored)] == list(range(len(sent[side])))
        assert len(told(side, PeerConfirmed)) == 1
    assert told(alice, PeerConfirmed)[0].verifier == told(bob, PeerConfirmed)[0].verifier
    alice.machine.close()
    bob.machine.close()
    settle(alice, bob)
    assert told(alice, Closed) == told(bob, Closed) == [Closed("happy")]
    assert set(world.counts().values()) == {"0"}
    world.close()


JOURNAL_STEPS = (*STEPS, "process", "process", "forget")


@effort.examples(60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(JOURNAL_STEPS)), max_size=80))
def test_with_receipts_each_message_is_processed_once_even_if_the_server_forgets(
    steps: list[tuple[int, str]],
) -> None:
    """Once the key is agreed, neither killed processes nor pruned mailboxes lose anything."""
    world = StoreWorld(Options())
    sides = alice, bob = Side(world, 1, wants_receipts=True), Side(world, 2, wants_receipts=True)
    sent: dict[Side, list[bytes]] = {alice: [], bob: []}
    alice.machine.allocate("purple-sausages")
    settle(alice)
    bob.machine.set_code(alice.machine.state.code or "")
    settle(alice, bob)
    for side in sides:
        side.attentive = False
    for who, step in steps:
        side = sides[who]
        if step == "send":
            sent[side].append(b"%d" % len(sent[side]))
            side.machine.send(sent[side][-1])
            side.take()
        elif step == "connect":
            if not side.connected:
                side.connect()
        elif step == "forget":
            for each in sides:
                each.cut()
            world.advance(3600)
            world.prune()
            assert set(world.counts().values()) == {"0"}
        else:
            getattr(side, step)()
    for side in sides:
        side.restart()
        side.attentive = True
    settle(alice, bob)
    for side, other in ((alice, bob), (bob, alice)):
        assert told(side, Failed) == []
        assert other.processed == sent[side]
        assert [each.number for each in told(side, MessageDelivered)] == list(range(len(sent[side])))
        assert [phase for phase in side.machine.state.own if phase.isdigit()] == []
    alice.machine.close()
    bob.machine.close()
    settle(alice, bob)
    assert set(world.counts().values()) == {"0"}
    world.close()


# ── a peer that lies about receipts ──────────────────────────────────────────────────────────────


def own_message(side: Side, phase: str, plaintext: bytes) -> str:
    """Return a message that the server sends to a side as one of its peer."""
    key = MessageKeys(bytes.fromhex(side.machine.state.key or "")).of(side.machine.state.side, phase)
    body = seal(key, plaintext, bytes(NONCE_BYTES)).hex()
    return json.dumps({"type": "message", "side": side.machine.state.side, "phase": phase, "body": body})


def agreed(world: World) -> tuple[Side, Side]:
    alice, bob = Side(world, 1, wants_receipts=True), Side(world, 2, wants_receipts=True)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    bob.machine.set_code(alice.machine.state.code or "")
    settle(alice, bob)
    return alice, bob


def test_a_receipt_for_a_message_that_was_not_sent_ends_the_wormhole(world: World) -> None:
    alice, bob = agreed(world)
    alice.machine.send(b"0")
    alice.machine.receive(own_message(bob, "receipt-2", b""))
    alice.take()
    assert isinstance(failure(alice), PeerMessageError)
    assert told(alice, MessageDelivered) == []


@pytest.mark.parametrize("phase", ["receipt-", "receipt--1", "receipt-x", "receipt-01", "receipt-" + "9" * 19])
def test_a_receipt_without_a_number_confirms_nothing(world: World, phase: str) -> None:
    alice, bob = agreed(world)
    alice.machine.send(b"0")
    alice.machine.receive(own_message(bob, phase, b""))
    alice.take()
    assert told(alice, Failed) == []
    assert told(alice, MessageDelivered) == []


def test_a_receipt_that_the_peer_did_not_seal_ends_the_wormhole(world: World) -> None:
    """A server could only repeat what it has: a body under another phase does not open."""
    alice, bob = agreed(world)
    alice.machine.send(b"0")
    message = json.loads(own_message(bob, "receipt-0", b""))
    alice.machine.receive(json.dumps({**message, "phase": "receipt-1"}))
    alice.take()
    assert isinstance(failure(alice), WrongPasswordError)
    assert told(alice, MessageDelivered) == []


def test_an_old_receipt_takes_nothing_back(world: World) -> None:
    alice, bob = agreed(world)
    for _ in range(3):
        alice.machine.send(b"0")
    for number in (2, 1, 2):
        alice.machine.receive(own_message(bob, f"receipt-{number}", b""))
    alice.take()
    assert [each.number for each in told(alice, MessageDelivered)] == [0, 1]
    assert alice.machine.state.acknowledged == 2
