"""Wormholes on a simulated network: latency, lost connections, outages and silence, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.virtual import Network, simulate, virtual_wormhole
from restante.client import (
    Connecting,
    Event,
    LonelyError,
    Reconnecting,
    ServerGoneError,
    Wormhole,
    WormholeError,
)
from restante.client.base import MAX_CLOSE_SECONDS
from restante.client.connection import websocket
from support.effort import examples
from support.mailbox.givens import Options
from support.mailbox.worlds import CoreWorld


async def exchange(one: Wormhole, other: Wormhole, count: int) -> None:
    """Send messages both ways, and check that each arrives once and in order."""
    messages = [b"%d" % number for number in range(count)]

    async def send(wormhole: Wormhole) -> None:
        for message in messages:
            await wormhole.send(message)
            await asyncio.sleep(1)

    async def read(wormhole: Wormhole) -> None:
        assert [await wormhole.receive() for _ in range(count)] == messages

    await asyncio.gather(send(one), send(other), read(one), read(other))


async def meet(one: Wormhole, other: Wormhole) -> None:
    await other.set_code(await one.allocate_code())
    await asyncio.gather(one.verifier(), other.verifier())


@examples(40)
@given(
    seed=st.integers(0, 2**32),
    latency=st.sampled_from((0.0, 0.05, 2.0)),
    breaking=st.sampled_from((0.0, 0.01, 0.05)),
    outages=st.lists(st.floats(0.0, 120.0), max_size=3),
    count=st.integers(0, 20),
)
@example(seed=0, latency=2.0, breaking=0.0, outages=[2.0, 0.0], count=0).via("it is closed while it connects, slowly")
def test_whatever_the_network_does_each_message_arrives_once(
    seed: int, latency: float, breaking: float, outages: list[float], count: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        network = Network(CoreWorld(Options()), seed, latency=latency)
        patch.setattr(websocket, "connect", network.connect)

        async def fail_sometimes() -> None:
            for outage in outages:
                await asyncio.sleep(5)
                network.go_down()
                await asyncio.sleep(outage)
                network.up = True

        async def meet_and_exchange() -> None:
            async with virtual_wormhole(1) as alice, virtual_wormhole(2) as bob:
                code = await alice.allocate_code()
                await bob.set_code(code)
                await bob.nameplates()  # there was a first connection: from now on all may be lost
                network.breaking = breaking
                failing = asyncio.create_task(fail_sometimes())
                verifiers = await asyncio.gather(alice.verifier(), bob.verifier())
                assert verifiers[0] == verifiers[1]
                await exchange(alice, bob, count)
                await failing
                network.breaking = 0.0
                await asyncio.gather(alice.close(), bob.close())

        simulate(meet_and_exchange())
        assert network.is_empty


def test_attempts_come_in_growing_delays_of_at_most_61_seconds(network: Network) -> None:
    delays: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, Reconnecting):
            delays.append(event.delay)
            network.up = len(delays) == 12

    async def lose() -> None:
        async with virtual_wormhole(1, on_event=note) as alice:
            await alice.allocate_code()
            network.go_down()
            await alice.nameplates()
            network.go_down()
            await asyncio.sleep(1)
            assert delays[12] < 3  # the connection in between served us, so it begins anew
            await alice.close()

    simulate(lose())
    for number, delay in enumerate(delays[:12], 1):
        assert 0 <= delay - min(1.5**number, 60) < 1


@pytest.mark.parametrize(
    ("kind", "connections"), [("welcome", 1), ("allocated", 3), ("claimed", 3), ("message", 3), ("pong", 3)]
)
def test_a_server_that_owes_an_answer_is_given_up(network: Network, kind: str, connections: int) -> None:
    network.silent_from = kind
    events: list[Event] = []

    async def wait() -> None:
        async with virtual_wormhole(1, events.append) as alice:
            await alice.allocate_code()
            await alice.verifier()

    with pytest.raises(ServerGoneError, match="did not answer"):
        simulate(wait())
    assert len([event for event in events if isinstance(event, Connecting)]) == connections


async def closes(wormhole: Wormhole, seconds: float = 2 * MAX_CLOSE_SECONDS) -> None:
    """Close it, which ends within these seconds, whatever the server does."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await wormhole.close()
    finally:
        assert loop.time() - began <= seconds


@pytest.mark.parametrize(("latency", "away"), [(0.0, 0.0), (0.0, 1.0), (0.0, 3.0), (2.4, 0.0)])
def test_a_close_waits_for_a_slow_server_for_five_seconds(network: Network, latency: float, away: float) -> None:
    network.latency = latency

    async def close() -> None:
        async with virtual_wormhole(1) as alice:
            await alice.allocate_code()
            network.go_down()
            asyncio.get_running_loop().call_later(away, lambda: setattr(network, "up", True))
            await alice.close()

    simulate(close())
    assert network.is_empty


def test_a_close_goes_on_as_soon_as_the_server_has_stored_the_last_message(network: Network) -> None:
    """What it waits for is no event, but the server's echo of the version of this side."""

    async def close() -> None:
        async with virtual_wormhole(1) as alice, virtual_wormhole(2) as bob:
            await meet(alice, bob)
            await closes(alice, 0.0)

    simulate(close())


@pytest.mark.parametrize("kind", ["allocated", "claimed", "released", "closed", "pong"])
def test_a_close_ends_though_an_answer_is_missing(network: Network, kind: str) -> None:
    network.silent_from = kind

    async def close() -> None:
        async with virtual_wormhole(1) as alice:
            waiting = asyncio.create_task(alice.allocate_code())
            await asyncio.sleep(0)
            await closes(alice)
            (end,) = await asyncio.gather(waiting, return_exceptions=True)
            assert isinstance(end, str | WormholeError)

    simulate(close())


@pytest.mark.parametrize("fault", ["it is gone", "it greets and hangs up"])
def test_a_close_ends_though_the_server_is_of_no_use_any_more(network: Network, fault: str) -> None:
    attempts: list[Event] = []

    async def close() -> None:
        async with (
            virtual_wormhole(1, attempts.append) as alice,
            virtual_wormhole(2) as bob,
            virtual_wormhole(3) as c,
        ):
            await meet(alice, bob)
            await alice.flush()
            await c.allocate_code()
            network.go_down()
            network.frames_until_broken = 1
            network.up = fault != "it is gone"
            await bob.send(b"lost")
            waiting = asyncio.create_task(c.verifier())
            await asyncio.sleep(0)
            await closes(alice)  # all was stored: no error
            with pytest.raises(ServerGoneError, match="not stored"):
                await closes(bob)
            await closes(c)
            with pytest.raises(LonelyError):
                await waiting

    simulate(close())
    assert len([event for event in attempts if isinstance(event, Connecting)]) < 50
