"""What the dispatcher charges for work that is not in a message's bytes, and how it parts from a refused client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from restante.common.errors import PeerError
from restante.mailbox.core.dispatcher import (
    FRAME_WEIGHT,
    MAX_DEPARTING_CHARACTERS,
    MAX_DEPARTING_COMMANDS,
    MAX_SUBSCRIBERS,
    MESSAGE_GONE_WEIGHT,
    Dispatcher,
)
from restante.mailbox.core.fair_queue import MAX_BATCH_WEIGHT
from restante.mailbox.core.model import Now, Policy
from restante.mailbox.core.state import State
from support.dice import FakeDice
from support.mailbox.givens import EPOCH, Peer


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(State(), FakeDice(), Policy())


def weight(peer: Peer, **message: Any) -> int:
    """Say something; return its weight."""
    peer.say(**message)
    return peer.weight


def test_an_add_weighs_and_costs_as_much_as_its_deliveries(dispatcher: Dispatcher) -> None:
    subscribers = [Peer(dispatcher, "a") for _ in range(20)]
    for subscriber in subscribers:
        subscriber.say(type="open", mailbox="m")
    assert weight(subscribers[0], type="add", phase="1", body="0" * 2000) > 20 * (FRAME_WEIGHT + 2000)
    assert dispatcher.cost > 20 * 2000


def test_a_list_costs_as_much_as_its_nameplates(dispatcher: Dispatcher) -> None:
    for number in range(200):
        Peer(dispatcher, "a").say(type="claim", nameplate=str(number))
    Peer(dispatcher, "b").say(type="list")
    assert dispatcher.cost > 200 * len('{"id":"7"}')


def test_a_replay_weighs_and_costs_as_much_as_its_messages_and_the_last_close_as_those_that_it_deletes(
    dispatcher: Dispatcher,
) -> None:
    """Two replays of as many messages as a mailbox may have are two batches."""
    writer = Peer(dispatcher, "a")
    writer.say(type="open", mailbox="m")
    for number in range(5000):
        writer.say(type="add", phase=str(number), body="00")
    assert weight(Peer(dispatcher, "a"), type="open", mailbox="m") > MAX_BATCH_WEIGHT
    assert dispatcher.cost > 5000 * len('{"type":"message"}')
    assert weight(writer, type="close", mailbox="m") > 5000 * MESSAGE_GONE_WEIGHT


def test_a_close_weighs_the_names_that_its_row_has(dispatcher: Dispatcher) -> None:
    """Rows of 400 mailboxes with long names and moods took 10 to 16 ms to make."""
    name = "\N{GRINNING FACE}" * 490
    for side in ("a" + name, "b" + name):
        Peer(dispatcher, side).say(type="open", mailbox=name)
    closing = Peer(dispatcher, "a" + name)
    alone = len(json.dumps({"type": "close", "mailbox": name}))
    assert weight(closing, type="close", mailbox=name) > alone + 3 * 4 * 490


def test_a_text_weighs_its_bytes_not_its_characters_and_an_error_repeats_it(dispatcher: Dispatcher) -> None:
    peer = Peer(dispatcher, "a")
    text = '{"type" :  "claim", "x": 1e400, "y": "%s"}' % ("\N{GRINNING FACE}" * 10_000)
    dispatcher.handle(peer.connection, text, Now(1e9, 0.0))
    assert dispatcher.weight > 40_000
    assert dispatcher.cost > 40_000
    assert b'"orig":' + text.encode() in peer.connection.outbox[-1]


def test_one_mailbox_has_a_limit_of_connections(dispatcher: Dispatcher) -> None:
    first, *others = [Peer(dispatcher, "a") for _ in range(MAX_SUBSCRIBERS)]
    for peer in (first, *others):
        assert peer.say(type="open", mailbox="m") == []
    late = Peer(dispatcher, "a")
    [refused] = late.say(type="open", mailbox="m")
    assert (refused["error"], refused["hint"]) == ("the mailbox is full", "32 connections have it open already")
    dispatcher.lose(first.connection, Now(EPOCH, 0.0))
    assert late.say(type="open", mailbox="m") == []


def test_a_refused_client_may_clean_up_but_not_go_on(dispatcher: Dispatcher) -> None:
    peer = Peer(dispatcher, "a")
    peer.connection.verdict = PeerError(1008, "too many connections from your address")
    for _ in range(MAX_DEPARTING_COMMANDS):
        assert not peer.inbox.ignored
        assert [answer["type"] for answer in peer.say(type="release", nameplate="1")] == ["released"]
    assert peer.say(type="release", nameplate="1") == []
    assert peer.inbox.ignored


def test_a_refused_client_is_not_read_after_a_long_message(dispatcher: Dispatcher) -> None:
    peer = Peer(dispatcher, "a")
    peer.connection.verdict = PeerError(1013, "the server has no room for more connections")
    assert peer.say(type="ping", ping="x" * MAX_DEPARTING_CHARACTERS) == []
    assert peer.inbox.ignored
