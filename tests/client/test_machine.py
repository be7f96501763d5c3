"""Two wormholes at a real server core: what they tell their applications, however connections and processes end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.live import APP_ID
from restante.client import events
from restante.client.core import outputs
from restante.client.core.machine import Machine
from restante.client.core.state import NEW_BYTES, WormholeState, new_state
from restante.client.errors import OldCheckpointError, PeerMessageError, WrongPasswordError
from restante.client.protocol.keys import NONCE_BYTES, MessageKeys, open_sealed, seal
from restante.client.protocol.seeds import SEED_BYTES, seed_code, seed_mailbox
from support import effort
from support.mailbox.givens import Inbox, Options
from support.mailbox.worlds import StoreWorld, World


class Side:
    def __init__(self, world: World, seed: int, *, wants_receipts: bool = False, lasting: bool = False) -> None:
        self.world, self._lasting = world, lasting
        self.dice = Random(seed)
        state = new_state(APP_ID, {"seed": seed}, self.dice.randbytes(NEW_BYTES), wants_receipts=wants_receipts)
        self.machine = Machine(state, self.dice.randbytes, lasting=lasting)
        self.events: list[outputs.Output] = []
        self.attentive = True
        self.processed: list[bytes] = []
        """The peer's messages that the application has processed. They are in its checkpoint."""
        self._unprocessed: deque[outputs.MessageReceived] = deque()
        self.inbox: Inbox | None = None
        self._heard = 0
        self.to_server: deque[bytes] = deque()

    def connect(self) -> None:
        self.inbox = self.world.connect()
        self._heard = 0
        self.machine.connected()
        self.take()

    def cut(self) -> None:
        if self.inbox is not None:
            self.world.lose(self.inbox)
            self.world.flush()
            self.inbox = None
        self.to_server.clear()
        self.machine.disconnected()

    def restart(self) -> None:
        self.cut()
        self._unprocessed.clear()
        self.machine = Machine(_copy(self.machine.state), self.dice.randbytes, lasting=self._lasting)

    def restore(self, checkpoint: WormholeState) -> None:
        self.machine.state = checkpoint
        self.restart()
        self.events.clear()

    def take(self) -> None:
        while fresh := self.machine.outputs():
            self.to_server += [output.text for output in fresh if isinstance(output, outputs.SendFrame)]
            self.events += [output for output in fresh if not isinstance(output, outputs.SendFrame)]
            self._unprocessed += [output for output in fresh if isinstance(output, outputs.MessageReceived)]
            while self.attentive and self._unprocessed:
                self.process()

    def process(self) -> None:
        if self._unprocessed:
            message = self._unprocessed.popleft()
            self.processed.append(message.plaintext)
            self.machine.processed(message.number)
            self.take()

    def speak(self) -> bool:
        if self.inbox is None or not self.to_server:
            return False
        self.world.say(self.inbox, self.to_server.popleft().decode())
        self.world.flush()
        return True

    def listen(self) -> bool:
        if self.inbox is None or self._heard == len(self.inbox.frames):
            return False
        self._heard += 1
        self.machine.receive(json.dumps(self.inbox.frames[self._heard - 1]).encode())
        self.take()
        return True


def _copy(state: WormholeState) -> WormholeState:
    return msgspec.json.decode(msgspec.json.encode(state), type=WormholeState)


def settle(*sides: Side) -> None:
    for side in sides:
        if side.inbox is None:
            side.connect()
        side.take()
    while any([*(side.speak() for side in sides), *(side.listen() for side in sides)]):
        pass


@pytest.fixture
def world() -> Iterator[World]:
    with closing(StoreWorld(Options())) as world:
        yield world


def events_of(side: Side, kind: type[Any]) -> list[Any]:
    return [event for event in side.events if isinstance(event, kind)]


def pair(world: World, **options: bool) -> tuple[Side, Side]:
    alice, bob = Side(world, 1, **options), Side(world, 2, **options)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    (known,) = events_of(alice, events.CodeKnown)
    bob.machine.set_code(known.code)
    return alice, bob


def agreed(world: World, **options: bool) -> tuple[Side, Side]:
    sides = pair(world, wants_receipts=True, **options)
    settle(*sides)
    return sides


def hear(side: Side, /, **message: object) -> None:
    side.machine.receive(json.dumps(message))
    side.take()


def test_versions_are_said_also_if_the_application_has_none(world: World) -> None:
    """magic-wormhole.rs 0.8.1 ends where they are missing, with "invalid type: null, expected struct AppVersion"."""
    alice, bob = pair(world)
    alice.machine.state.app_versions = {}
    settle(alice, bob)
    state = alice.machine.state
    key = MessageKeys(bytes.fromhex(state.key or "")).key(state.side, "version")
    version = open_sealed(key, bytes.fromhex(state.own["version"].body))
    assert json.loads(version)["app_versions"] == {}


@pytest.mark.parametrize(
    "version", ['{"a":"\xff"}', '{"a":1e999}', f'{{"a":{"9" * 5000}}}', "[" * 100_000, '{"a":NaN}']
)
def test_a_version_message_that_cannot_be_read_is_the_peer_s_error(
    world: World, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    alice, bob = pair(world)
    sealed = alice.machine._conversation._seal  # only a client that breaks the rules would send this
    content = f'{{"app_versions":{version}}}'.encode("latin-1")
    monkeypatch.setattr(alice.machine._conversation, "_seal", lambda phase, _: sealed(phase, content))
    settle(alice, bob)
    assert isinstance(bob.machine.failure, PeerMessageError)


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
        alice.take()
        alice.cut()  # nor this one
        alice.machine.send(b"two")
    settle(alice, bob)
    assert bob.inbox is not None
    messages = [frame for frame in bob.inbox.frames if frame["type"] == "message"]
    theirs = [message["phase"] for message in messages if message["side"] != bob.machine.state.side]
    assert theirs == ["pake", "version", *(["0", "1"] if more else [])]
    assert [message.plaintext for message in events_of(bob, outputs.MessageReceived)] == (
        [b"one", b"two"] if more else []
    )
    assert events_of(alice, outputs.MessageReceived) == [outputs.MessageReceived(0, b"early")]


def test_a_list_has_numbers_only_and_answers_a_question_while_a_caller_waits(world: World) -> None:
    alice = Side(world, 1)
    alice.connect()
    alice.listen()
    alice.machine.list_nameplates()
    alice.machine.forget_list()
    assert not alice.machine.awaits_answer  # nobody waits for it any more
    for _ in range(2):
        alice.machine.list_nameplates()
    alice.machine.forget_list()
    assert alice.machine.awaits_answer
    for listed in (["4", "\x1b[31m", "4-purple", "", "12"], ["7"]):
        hear(alice, type="nameplates", nameplates=[{"id": nameplate} for nameplate in listed])
    assert events_of(alice, outputs.NameplatesListed) == [outputs.NameplatesListed(["4", "12"])]
    assert alice.machine.answers == 2  # the welcome and the first list


@pytest.mark.parametrize("closing", [False, True])
def test_what_a_server_could_not_store_is_sent_again_on_the_next_connection(world: World, closing: bool) -> None:
    alice, bob = pair(world)
    settle(alice, bob)
    alice.machine.send(b"hello")
    if closing:
        alice.machine.close()
    alice.take()
    while alice.to_server:
        refused = json.loads(alice.to_server.popleft())
        alice.machine.receive(json.dumps({"type": "error", "error": "not now", "orig": refused, "retry": True}))
    assert alice.machine.outputs() == [outputs.Reconnect("the server asks to try again later: not now")]
    alice.cut()
    settle(alice, bob)
    assert events_of(alice, events.Failed) == []
    assert events_of(bob, outputs.MessageReceived) == ([] if closing else [outputs.MessageReceived(0, b"hello")])
    assert events_of(alice, events.Closed) == ([events.Closed("happy")] if closing else [])


STEPS = ("speak", "listen", "cut", "restart", "connect", "send", "process", "process", "forget", "all restart")
SEED = bytes(SEED_BYTES)


def forget(world: World, sides: Sequence[Side]) -> None:
    for side in sides:
        side.cut()
    world.advance(3600)
    world.prune()
    assert set(world.counts().values()) == {"0"}


@effort.examples(120)
@given(st.booleans(), st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(STEPS)), max_size=80))
def test_with_receipts_each_message_is_processed_once_whatever_is_forgotten(
    by_seed: bool, steps: list[tuple[int, str]]
) -> None:
    """No nameplate leads to the mailbox of a seed, so that it may be forgotten before the key is agreed, too."""
    with closing(StoreWorld(Options())) as world:
        sides = with_seed(world) if by_seed else agreed(world)
        for side in sides:
            side.attentive = False
        sent: dict[Side, list[bytes]] = {side: [] for side in sides}
        for who, step in steps:
            side = sides[who]
            if step == "send":
                sent[side].append(b"%d" % len(sent[side]))
                side.machine.send(sent[side][-1])
                side.take()
            elif step == "all restart":
                for one in sides:
                    one.restart()
                world.restart()
            elif step == "forget":
                forget(world, sides)
            elif step != "connect" or side.inbox is None:
                getattr(side, step)()
        for side in sides:
            side.restart()
            side.attentive = True
        settle(*sides)
        for side, other in (sides, sides[::-1]):
            assert events_of(side, events.Failed) == []
            assert other.processed == sent[side]
            assert [delivered.number for delivered in events_of(side, events.MessageDelivered)] == list(
                range(len(sent[side]))
            )
            assert [phase for phase in side.machine.state.own if phase.isdigit()] == []
            side.machine.close()
        settle(*sides)
        assert [events_of(side, events.Closed) for side in sides] == [[events.Closed("happy")]] * 2
        assert set(world.counts().values()) == {"0"}


@pytest.mark.parametrize(
    ("phases", "sealed_for", "error", "delivered"),
    [
        *(([f"receipt-{number}"], None, None, []) for number in ("", "-1", "x", "01", "9" * 19)),
        (["receipt-4"], None, PeerMessageError, []),  # three were sent
        (["receipt-1"], "receipt-0", WrongPasswordError, []),  # a server could only repeat what it has
        (["receipt-2", "receipt-1", "receipt-2"], None, None, [0, 1]),
    ],
)
def test_a_receipt_confirms_what_was_sent_if_the_peer_sealed_it(
    world: World, phases: list[str], sealed_for: str | None, error: type[Exception] | None, delivered: list[int]
) -> None:
    alice, bob = agreed(world)
    for _ in range(3):
        alice.machine.send(b"0")
    settle(alice)
    state = bob.machine.state
    for phase in phases:
        key = MessageKeys(bytes.fromhex(state.key or "")).key(state.side, sealed_for or phase)
        body = seal(key, b"", bytes(NONCE_BYTES)).hex()
        hear(alice, type="message", side=state.side, phase=phase, body=body)
    assert [type(failed.error) for failed in events_of(alice, events.Failed)] == ([error] if error else [])
    assert [event.number for event in events_of(alice, events.MessageDelivered)] == delivered
    assert alice.machine.state.acknowledged == len(delivered)


def test_messages_that_are_processed_while_a_receipt_is_on_its_way_have_one_receipt(world: World) -> None:
    alice, bob = agreed(world)
    for _ in range(3):
        alice.machine.send(b"0")
    alice.take()
    while alice.speak():
        pass
    while bob.listen():
        pass
    assert len(bob.processed) == 3
    settle(alice, bob)
    assert alice.inbox is not None
    phases = [frame["phase"] for frame in alice.inbox.frames if frame["type"] == "message"]
    assert [phase for phase in phases if phase.startswith("receipt")] == ["receipt-1", "receipt-3"]
    assert [delivered.number for delivered in events_of(alice, events.MessageDelivered)] == [0, 1, 2]


def with_seed(world: World) -> tuple[Side, Side]:
    sides = tuple(Side(world, seed, wants_receipts=True, lasting=True) for seed in (1, 2))
    for side in sides:
        side.machine.set_code(seed_code(SEED), seed_mailbox(SEED))
    return sides[0], sides[1]


@pytest.mark.parametrize(
    "receipt_comes",
    [
        "before the next message is sent",
        "after the next message is sent",
        "after the next message is sent and the connection was lost",
        "after the next message is added and before it comes back",
        "in the replay during which the key is agreed and the next message is added",
    ],
)
def test_a_receipt_for_a_message_that_an_older_checkpoint_lacks_does_not_confirm_the_next_one(
    world: World, receipt_comes: str
) -> None:
    alice, bob = with_seed(world) if receipt_comes.startswith("in the replay") else agreed(world, lasting=True)
    checkpoint = _copy(alice.machine.state)
    alice.machine.send(b"first")
    settle(alice, bob)
    forget(world, (alice, bob))
    alice.restore(checkpoint)
    if receipt_comes.startswith("after the next message is added"):
        settle(alice)
    if receipt_comes.endswith("the connection was lost"):
        alice.connect()
        alice.listen()
    if not receipt_comes.startswith("before"):
        alice.machine.send(b"next")
        alice.take()
    if receipt_comes.endswith("the connection was lost"):
        alice.cut()
    settle(bob)
    settle(alice)
    settle(alice, bob)
    assert [type(failed.error) for failed in events_of(alice, events.Failed)] == [OldCheckpointError]
    assert events_of(alice, events.MessageDelivered) == []
    assert bob.processed == [b"first"]


@pytest.mark.parametrize("heard", [False, True])
def test_a_receipt_may_come_without_a_message_that_an_earlier_connection_has_added(world: World, heard: bool) -> None:
    alice, bob = agreed(world, lasting=True)
    alice.machine.send(b"first")
    alice.take()
    while alice.speak() or (heard and alice.listen()):
        pass
    settle(bob)
    forget(world, (alice, bob))
    alice.restart()
    settle(bob)
    settle(alice)
    assert events_of(alice, events.Failed) == []
    assert events_of(alice, events.MessageDelivered) == [events.MessageDelivered(0)]
    assert bob.processed == [b"first"]


def test_echoes_of_what_was_not_sent_are_not_kept(world: World) -> None:
    alice = Side(world, 1)
    alice.machine.set_code("4-purple-sausages")
    alice.connect()
    assert alice.machine.connection is not None
    while "open" not in alice.machine.connection.sent:
        alice.speak()
        alice.listen()
    for phase in ("pake", "0", "echo"):
        hear(alice, type="message", side=alice.machine.state.side, phase=phase, body="")
    assert alice.machine.connection.known_phases == {"pake"}


def test_nothing_is_added_after_a_close(world: World) -> None:
    alice, bob = agreed(world)
    forget(world, (alice, bob))
    alice.connect()
    alice.listen()
    alice.machine.close()
    alice.take()
    assert [json.loads(text)["type"] for text in alice.to_server] == ["bind", "open", "ping", "close"]
    while alice.speak():
        pass
    while alice.listen():
        pass
    assert list(alice.to_server) == []
    assert events_of(alice, events.Closed) == [events.Closed("happy")]
