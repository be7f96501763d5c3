"""Limits: of one connection's rate, of the memory that all hold together; and what commands weigh and cost."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.errors import PeerError
from restante.mailbox.core.address_quotas import ABUSE_SCORE_TOLERATED
from restante.mailbox.core.admission import CONNECTION_ABUSE_SCORE
from restante.mailbox.core.dispatcher import (
    FRAME_WEIGHT,
    MAX_DEPARTING_CHARACTERS,
    MAX_DEPARTING_COMMANDS,
    MAX_SUBSCRIBERS,
    MESSAGE_GONE_WEIGHT,
    Dispatcher,
)
from restante.mailbox.core.fair_queue import MAX_BATCH_WEIGHT
from restante.mailbox.core.limits import KIB, MIB, UNLIMITED, Limits, RateLimiter
from restante.mailbox.core.memory_holders import LONG_HOLD_SECONDS, SPARED_BYTES, MemoryHolders
from restante.mailbox.core.model import Now, Policy
from restante.mailbox.core.state import State
from support.dice import FakeDice
from support.mailbox.givens import EPOCH, Peer

LIMITS = replace(UNLIMITED, commands=10.0, commands_at_once=5, bytes=1000.0, bytes_at_once=5000)


def test_an_expensive_command_is_executed_and_the_next_ones_wait() -> None:
    limiter = RateLimiter()
    limiter.charge(0.0, LIMITS, 20_000)
    assert limiter.refresh(0.0, LIMITS) == pytest.approx(15.0)
    assert limiter.refresh(15.01, LIMITS) == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3000)), min_size=1, max_size=50))
def test_a_connection_that_keeps_its_waits_never_exceeds_the_limits(said: list[tuple[float, int]]) -> None:
    limiter, now, commands, size = RateLimiter(), 0.0, 0, 0
    for passed, cost in said:
        now += passed
        now += limiter.refresh(now, LIMITS)
        assert commands <= LIMITS.commands_at_once + now * LIMITS.commands + 1e-6
        assert size <= LIMITS.bytes_at_once + now * LIMITS.bytes + 3000
        limiter.charge(now, LIMITS, cost)
        commands, size = commands + 1, size + cost


def test_no_default_contradicts_another() -> None:
    limits = Limits()
    assert limits.message_bytes <= limits.mailbox_bytes <= limits.stored_bytes
    assert limits.message_bytes <= limits.bytes_at_once
    assert limits.mailbox_bytes <= limits.address_bytes < limits.stored_bytes
    assert limits.mailbox_bytes < limits.held_bytes
    # The limits' own reasons are no trouble to an adaptive server: an office after an outage, a class of thirty.
    assert limits.address_connects_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED
    assert 30 + limits.address_claims_at_once * CONNECTION_ABUSE_SCORE < ABUSE_SCORE_TOLERATED


# ── whose connections are closed when all together hold too much memory ──────────────────────────


class Client:
    """A connection that holds something until it is closed."""

    def __init__(self, *addresses: Hashable, holding: int) -> None:
        self.addresses = addresses
        self.holding = holding

    def give_up(self) -> None:
        self.holding = 0


def closed(excess: int, *came: tuple[Client, int], now: int) -> set[Client]:
    """Return which are closed to free so many bytes, of clients that came in their seconds."""
    memory_holders = MemoryHolders()
    for client, second in came:
        memory_holders.note(client, second)
    memory_holders.close(excess, now)
    return {client for client, _ in came if not client.holding}


def test_an_address_that_holds_much_is_closed_before_those_that_hold_a_little_for_long() -> None:
    idle = [(Client(f"honest {number}", holding=18 * KIB), 0) for number in range(10)]
    attackers = [(Client("attacker", holding=4 * MIB), 3600) for _ in range(66)]
    gone = closed(100 * MIB, *idle, *attackers, now=3600)
    assert gone <= {client for client, _ in attackers}
    assert len(gone) == 25


@pytest.mark.parametrize("named", [0, 1], ids=["one address", "one of two addresses"])
def test_many_small_connections_that_share_an_address_count_together(named: int) -> None:
    names = (("attacker", *[f"named {number}"] * named) for number in range(100))
    attackers = [(Client(*addresses, holding=SPARED_BYTES // 2), 0) for addresses in names]
    large = Client("honest", holding=2 * MIB)
    assert large not in closed(MIB, *attackers, (large, 20), now=20)


def test_a_new_holder_is_spared_while_others_hold_as_much_for_longer() -> None:
    attackers = [(Client(f"attacker {number}", holding=4 * MIB), 0) for number in range(64)]
    newcomer = Client("honest", holding=4 * MIB)
    assert newcomer not in closed(32 * MIB, (newcomer, LONG_HOLD_SECONDS), *attackers, now=LONG_HOLD_SECONDS)


def test_among_equals_the_longest_holder_is_closed_first() -> None:
    clients = [Client(number, holding=MIB) for number in range(4)]
    assert closed(2 * MIB, *((client, 0) for client in clients), now=0) == set(clients[:2])


def test_a_connection_that_held_nothing_in_between_counts_from_then_on() -> None:
    memory_holders, first, second = MemoryHolders(), Client(1, holding=MIB), Client(2, holding=MIB)
    memory_holders.note(first, 0)
    memory_holders.note(second, 5)
    memory_holders.note(first, 9, anew=True)
    memory_holders.close(MIB, 9)
    assert (first.holding, second.holding) == (MIB, 0)
    memory_holders.note(second, 9)
    first.holding = 0
    memory_holders.close(MIB, 9)
    assert len(memory_holders) == 0


# ── what commands weigh and cost, and how a refused client is parted from ────────────────────────


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(State(), FakeDice(), Policy())


def weight(peer: Peer, **message: Any) -> int:
    """Say something; return its weight."""
    peer.say(**message)
    return peer.weight


def test_an_add_weighs_and_costs_as_much_as_its_deliveries_and_a_list_as_its_nameplates(
    dispatcher: Dispatcher,
) -> None:
    subscribers = [Peer(dispatcher, "a") for _ in range(20)]
    for subscriber in subscribers:
        subscriber.say(type="open", mailbox="m")
    assert weight(subscribers[0], type="add", phase="1", body="0" * 2000) > 20 * (FRAME_WEIGHT + 2000)
    assert dispatcher.cost > 20 * 2000
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


def test_a_refused_client_may_clean_up_but_not_go_on_nor_send_long_messages(dispatcher: Dispatcher) -> None:
    peer = Peer(dispatcher, "a")
    peer.connection.verdict = PeerError(1008, "too many connections from your address")
    for _ in range(MAX_DEPARTING_COMMANDS):
        assert not peer.inbox.ignored
        assert [answer["type"] for answer in peer.say(type="release", nameplate="1")] == ["released"]
    assert peer.say(type="release", nameplate="1") == []
    assert peer.inbox.ignored
    peer = Peer(dispatcher, "a")
    peer.connection.verdict = PeerError(1013, "the server has no room for more connections")
    assert peer.say(type="ping", ping="x" * MAX_DEPARTING_CHARACTERS) == []
    assert peer.inbox.ignored
