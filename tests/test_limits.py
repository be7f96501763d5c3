"""Limits: the limiter of one connection, and of the memory that all hold together."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.mailbox.core.address_quotas import ABUSE_SCORE_TOLERATED
from restante.mailbox.core.admission import CONNECTION_ABUSE_SCORE
from restante.mailbox.core.limits import KIB, MIB, UNLIMITED, Limits, RateLimiter
from restante.mailbox.core.memory_holders import LONG_HOLD_SECONDS, SPARED_BYTES, MemoryHolders

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
