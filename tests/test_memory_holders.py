"""Whose connections are closed when all together hold too much memory."""

from __future__ import annotations

from collections.abc import Hashable

from restante.mailbox.core.limits import KIB, MIB
from restante.mailbox.core.memory_holders import LONG_HOLD_SECONDS, SPARED_BYTES, MemoryHolders


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


def test_many_small_connections_of_one_address_count_together() -> None:
    attackers = [(Client("attacker", holding=SPARED_BYTES // 2), 0) for _ in range(100)]
    large = Client("honest", holding=2 * MIB)
    assert large not in closed(MIB, *attackers, (large, 20), now=20)


def test_connections_that_share_one_of_two_addresses_count_together() -> None:
    attackers = [(Client("attacker", f"named {number}", holding=SPARED_BYTES // 2), 0) for number in range(100)]
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
