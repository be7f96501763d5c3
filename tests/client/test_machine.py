"""Two wormholes at a real server core: what they tell their applications, however connections and processes end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.world import Side, settle
from restante.client.core import unstored
from restante.client.core.conversation import RECEIPT
from restante.client.core.outputs import (
    Closed,
    CodeKnown,
    Failed,
    MessageDelivered,
    MessageReceived,
    MessageStored,
    NameplatesListed,
    PeerConfirmed,
    Reconnect,
)
from restante.client.errors import CrowdedError, PeerMessageError, ServerError, WrongPasswordError
from restante.client.protocol.code import nameplate_of
from restante.client.protocol.keys import NONCE_BYTES, MessageKeys, open_sealed, seal
from restante.client.protocol.seeds import SEED_BYTES, seed_code, seed_mailbox
from support import effort
from support.mailbox.givens import Options
from support.mailbox.worlds import StoreWorld, World

T = TypeVar("T")


@pytest.fixture
def world() -> Iterator[World]:
    with closing(StoreWorld(Options())) as world:
        yield world


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


def test_versions_are_said_also_if_the_application_has_none(world: World) -> None:
    """magic-wormhole.rs 0.8.1 ends where they are missing, with "invalid type: null, expected struct AppVersion"."""
    alice, bob = meet(world)
    alice.machine.state.app_versions = {}
    settle(alice, bob)
    assert json.loads(sealed_by(alice, "version"))["app_versions"] == {}


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


@pytest.mark.parametrize("more", [False, True])
def test_messages_are_stored_in_their_order_also_if_the_first_was_lost_on_its_way(world: World, more: bool) -> None:
    """wormhole-william ends with "got unexpected phase while waiting for pake: version" (1.0.8, wormhole.go:596)."""
    alice, bob = Side(world, 1), Side(world, 2)
    alice.machine.set_code("4-purple-sausages")
    alice.connect()
    while not alice.machine.state.own["pake"].sent:
        alice.speak()
        alice.listen()
    alice.cut()  # the server has not received the message
    bob.machine.set_code("4-purple-sausages")
    bob.machine.send(b"early")
    settle(bob)
    if more:
        alice.machine.send(b"one")
    settle(alice, bob)
    phases = [
        each["phase"] for each in bob.frames if each["type"] == "message" and each["side"] != bob.machine.state.side
    ]
    assert phases == ["pake", "version", *(["0"] if more else [])]
    assert told(bob, MessageReceived) == ([MessageReceived(0, b"one")] if more else [])
    assert told(alice, MessageReceived) == [MessageReceived(0, b"early")]


def test_a_message_waits_for_an_earlier_one_that_may_have_been_lost(world: World) -> None:
    alice, bob = meet(world)
    settle(alice, bob)
    alice.machine.send(b"one")
    alice.take()
    alice.cut()  # the server has not received the message
    alice.machine.send(b"two")
    settle(alice, bob)
    assert [each["phase"] for each in bob.frames[-2:]] == ["0", "1"]
    assert told(bob, MessageReceived) == [MessageReceived(0, b"one"), MessageReceived(1, b"two")]


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


@pytest.mark.parametrize("lasting", [False, True])
def test_a_list_that_the_server_refuses_is_not_asked_for_again(world: World, lasting: bool) -> None:
    alice = Side(world, 1, lasting=lasting)
    alice.machine.list_nameplates()
    alice.connect()
    alice.listen()
    alice.take()
    assert alice.machine.awaits_answer
    alice.machine.receive(b'{"type": "error", "error": "no", "orig": {"type": "list"}}')
    alice.take()
    assert isinstance(failure(alice), ServerError)
    assert not alice.machine.awaits_answer
    alice._to_server.clear()
    alice.cut()
    alice.machine.close()
    alice.connect()
    alice.listen()
    alice.take()
    assert [json.loads(each)["type"] for each in alice._to_server] == ["bind"]


def test_a_list_that_was_not_asked_for_is_no_answer(world: World) -> None:
    alice = Side(world, 1)
    alice.machine.list_nameplates()
    settle(alice)
    answers = alice.machine.answers
    alice.machine.receive(b'{"type": "nameplates", "nameplates": [{"id": "4"}]}')
    alice.take()
    assert alice.machine.answers == answers
    assert told(alice, NameplatesListed) == [NameplatesListed([])]


def test_only_numbers_are_listed_as_nameplates(world: World) -> None:
    alice = Side(world, 1)
    alice.connect()
    alice.listen()
    alice.machine.list_nameplates()
    listed = [{"id": each} for each in ("4", "\x1b[31m", "4-purple", "", "12")]
    alice.machine.receive(json.dumps({"type": "nameplates", "nameplates": listed}))
    alice.take()
    assert told(alice, NameplatesListed) == [NameplatesListed(["4", "12"])]


@pytest.mark.parametrize("nameplate", ["", "four", "-1", "9" * 41, "4-purple", "4-\x1b[31m", "4\n", "٤"])
def test_an_allocated_nameplate_that_is_none_ends_the_wormhole(world: World, nameplate: str) -> None:
    alice = Side(world, 1)
    alice.machine.allocate("purple-sausages")
    alice.connect()
    alice.listen()
    alice.machine.receive(json.dumps({"type": "allocated", "nameplate": nameplate}))
    alice.take()
    assert isinstance(failure(alice), ServerError)
    assert told(alice, Closed) == [Closed("errory")]


@pytest.mark.parametrize("closing", [False, True])
def test_what_a_server_could_not_store_is_sent_again_on_the_next_connection(world: World, closing: bool) -> None:
    alice, bob = meet(world)
    settle(alice, bob)
    alice.machine.send(b"hello")
    if closing:
        alice.machine.close()
    alice.take()
    while alice._to_server:
        refused = json.loads(alice._to_server.popleft())
        alice.machine.receive(json.dumps({"type": "error", "error": "not now", "orig": refused, "retry": True}))
    reason = "the server asks to try again later: not now"
    assert alice.machine.outputs() == [Reconnect(reason)]
    alice.cut()
    settle(alice, bob)
    assert told(alice, Failed) == []
    assert told(bob, MessageReceived) == ([] if closing else [MessageReceived(0, b"hello")])
    assert told(alice, Closed) == ([Closed("happy")] if closing else [])


STEPS = ("speak", "listen", "cut", "restart", "connect", "send")


@effort.examples(60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(STEPS)), max_size=80), st.booleans())
def test_however_processes_end_each_message_arrives_once(steps: list[tuple[int, str]], restarts: bool) -> None:
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


SEED = bytes(SEED_BYTES)
JOURNAL_STEPS = (*STEPS, "process", "process", "forget")


@effort.examples(60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(JOURNAL_STEPS)), max_size=80))
def test_with_receipts_each_message_is_processed_once_whatever_is_forgotten(steps: list[tuple[int, str]]) -> None:
    """Once the key is agreed, neither killed processes nor pruned mailboxes lose anything."""
    world = StoreWorld(Options())
    sides = alice, bob = Side(world, 1, wants_receipts=True), Side(world, 2, wants_receipts=True)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    bob.machine.set_code(alice.machine.state.code or "")
    settle(alice, bob)
    for side in sides:
        side.attentive = False
    both_have_all(sides, carried_out(world, sides, steps))
    assert set(world.counts().values()) == {"0"}
    world.close()


def carried_out(world: World, sides: Sequence[Side], steps: list[tuple[int, str]]) -> dict[Side, list[bytes]]:
    """Carry out some steps. Return what each side has sent."""
    sent: dict[Side, list[bytes]] = {side: [] for side in sides}
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
    return sent


def both_have_all(sides: Sequence[Side], sent: dict[Side, list[bytes]]) -> None:
    """Let both go on, check that each has processed all of the other's messages once, and close them."""
    alice, bob = sides
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


@effort.examples(60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(JOURNAL_STEPS)), max_size=80))
def test_two_sides_meet_in_the_mailbox_of_a_seed_whenever_the_server_forgets(steps: list[tuple[int, str]]) -> None:
    """No nameplate leads there, so that it may be forgotten before the key is agreed, too."""
    world = StoreWorld(Options())
    sides = [Side(world, each, wants_receipts=True, lasting=True) for each in (1, 2)]
    for each in sides:
        each.attentive = False
        each.machine.set_code(seed_code(SEED), seed_mailbox(SEED))
    both_have_all(sides, carried_out(world, sides, steps))
    assert set(world.counts().values()) == {"0"}
    world.close()


def test_a_stranger_who_knows_the_nameplate_of_a_seed_learns_nothing(world: World) -> None:
    code = seed_code(SEED)
    alice, mallory = Side(world, 1), Side(world, 2)
    alice.machine.set_code(code)
    mallory.machine.set_code(f"{nameplate_of(code)}-guess")
    alice.machine.send(b"private")
    settle(alice, mallory)
    assert isinstance(failure(mallory), WrongPasswordError)
    assert told(mallory, MessageReceived) == []


# ── a peer that lies about receipts ──────────────────────────────────────────────────────────────


def own_message(side: Side, phase: str, plaintext: bytes) -> str:
    """Return a message that the server sends to a side as one of its peer."""
    key = MessageKeys(bytes.fromhex(side.machine.state.key or "")).of(side.machine.state.side, phase)
    body = seal(key, plaintext, bytes(NONCE_BYTES)).hex()
    return json.dumps({"type": "message", "side": side.machine.state.side, "phase": phase, "body": body})


def sealed_by(side: Side, phase: str) -> bytes:
    """Return what a side has sealed in a message of its own."""
    state = side.machine.state
    key = MessageKeys(bytes.fromhex(state.key or "")).of(state.side, phase)
    return open_sealed(key, bytes.fromhex(state.own[phase].body))


def agreed(world: World, *, lasting: bool = False) -> tuple[Side, Side]:
    alice, bob = (Side(world, seed, wants_receipts=True, lasting=lasting) for seed in (1, 2))
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


def test_messages_are_counted_and_measured_until_they_are_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "MAX_UNSTORED_MESSAGES", 3)
    monkeypatch.setattr(unstored, "MAX_UNSTORED_BYTES", 100)
    alice, bob = meet(world)
    for size in (60, 39, 1):
        assert not alice.machine.full
        alice.machine.send(bytes(size))
    assert alice.machine.full
    alice.restart()
    assert alice.machine.full
    settle(alice, bob)
    assert not alice.machine.full
    alice.machine.send(bytes(100))
    assert alice.machine.full
    alice.restart()
    assert alice.machine.full
    settle(alice, bob)
    for _ in range(3):
        assert not alice.machine.full
        alice.machine.send(b"")
    assert alice.machine.full


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


# ── wormholes of a journal ───────────────────────────────────────────────────────────────────────


def test_a_close_after_an_error_of_the_server_leaves_nothing_there(world: World) -> None:
    alice, bob = agreed(world, lasting=True)
    bob.machine.close()
    settle(bob)
    alice.machine.receive('{"type": "error", "error": "the mailbox is full", "orig": {"type": "open"}}')
    alice.take()
    alice.machine.close()
    assert alice.machine.outputs() == [Reconnect("the wormhole is being closed")]
    alice.cut()
    settle(alice)
    assert set(world.counts().values()) == {"0"}


def test_a_code_that_two_others_use_ends_it_for_good(world: World) -> None:
    alice, *others = (Side(world, seed, lasting=True) for seed in (1, 3, 4))
    for each in others:
        each.machine.set_code("4-purple-sausages")
        each.connect()
        each.listen()
        while each.speak():
            pass
    alice.machine.set_code("4-purple-sausages")
    settle(alice)
    assert isinstance(failure(alice), CrowdedError)
    assert alice.machine.state.mood == "errory"


@pytest.mark.parametrize("lost", [False, True])
def test_while_a_receipt_is_on_its_way_no_other_follows_and_then_only_the_newest(world: World, lost: bool) -> None:
    """Also if it was lost on its way, and another connection is made."""
    alice, bob = agreed(world, lasting=True)
    for number in range(10):
        alice.machine.send(b"%d" % number)
    bob.attentive = False
    settle(alice, bob)
    for _ in range(10):
        bob.process()
    assert not bob.machine.all_stored
    if lost:
        bob.cut()
    settle(alice, bob)
    phases = [frame["phase"] for frame in alice.frames if frame["type"] == "message"]
    receipts = [phase for phase in phases if phase.startswith(RECEIPT)]
    assert receipts == (["receipt-10"] if lost else ["receipt-1", "receipt-10"])
    assert bob.machine.all_stored
    assert alice.machine.state.acknowledged == 10
