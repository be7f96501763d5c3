"""Two sides that share a seed connect again without a code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from client.world import Side, settle
from restante.client.core.outputs import Failed, MessageReceived, PeerConfirmed
from restante.client.protocol.code import MAX_NAMEPLATE_DIGITS, nameplate_of
from restante.client.protocol.seeds import SEED_BYTES, seed_code, seed_of
from support.mailbox.givens import Options
from support.mailbox.reference_world import ReferenceWorld
from support.mailbox.worlds import StoreWorld, World


@pytest.fixture(params=["ours", "the reference server"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a server that has never heard of seeds."""
    if request.param == "ours":
        with closing(StoreWorld(Options())) as ours:
            yield ours
    else:
        with closing(ReferenceWorld(Options())) as reference:
            yield reference


def test_two_sides_that_have_met_meet_again_without_a_code(world: World) -> None:
    alice, bob = Side(world, 1, seeds=True), Side(world, 2, seeds=True)
    alice.machine.allocate("purple-sausages")
    settle(alice)
    bob.machine.set_code(alice.machine.state.code or "")
    settle(alice, bob)
    seeds = {seed_of(bytes.fromhex(each.machine.state.key or "")) for each in (alice, bob)}
    assert alice.machine.state.peer_abilities.seeds
    alice.machine.close()
    bob.machine.close()
    settle(alice, bob)
    (seed,) = seeds
    for meeting in range(2):
        again = Side(world, 3 + 2 * meeting), Side(world, 4 + 2 * meeting)
        for each in again:
            each.machine.set_code(seed_code(seed))
        again[0].machine.send(b"hello again")
        settle(*again)
        assert [event for event in again[1].events if isinstance(event, MessageReceived)] == [
            MessageReceived(0, b"hello again")
        ]
        for each in again:
            assert [type(event) for event in each.events if isinstance(event, PeerConfirmed | Failed)] == [
                PeerConfirmed
            ]
            each.machine.close()
        settle(*again)


def test_a_stranger_who_knows_the_nameplate_learns_nothing() -> None:
    code = seed_code(bytes(SEED_BYTES))
    world = StoreWorld(Options())
    alice, mallory = Side(world, 1), Side(world, 2)
    alice.machine.set_code(code)
    mallory.machine.set_code(f"{nameplate_of(code)}-guess")
    alice.machine.send(b"private")
    settle(alice, mallory)
    assert [type(each.error).__name__ for each in mallory.events if isinstance(each, Failed)] == [
        "WrongPasswordError"
    ]
    assert not [each for each in mallory.events if isinstance(each, MessageReceived)]
    world.close()


def test_the_code_of_a_seed_is_one_that_every_server_takes() -> None:
    for last in range(50):
        code = seed_code(bytes(SEED_BYTES - 1) + bytes([last]))
        nameplate = nameplate_of(code)
        assert nameplate.isdigit()
        assert len(nameplate) < MAX_NAMEPLATE_DIGITS
    with pytest.raises(ValueError, match="32 bytes"):
        seed_code(b"short")
