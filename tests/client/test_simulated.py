"""Wormholes on a simulated network: latency, lost connections and outages, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.virtual import Network, simulate, virtual_wormhole
from restante.client import CodeExpiredError, Event, Reconnecting, ServerGoneError, Wormhole, WrongPasswordError
from restante.client.connection import websocket
from support.effort import examples
from support.mailbox.givens import Options
from support.mailbox.worlds import CoreWorld


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Network]:
    """Make networks. The last one is the one that wormholes use."""

    def make(**how: Any) -> Network:
        network = Network(CoreWorld(Options()), **how)
        monkeypatch.setattr(websocket, "connect", network.connect)
        return network

    return make


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

        async def meet() -> None:
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

        simulate(meet())
        assert set(network.world.counts().values()) == {"0"}


def test_attempts_come_in_growing_delays_of_at_most_61_seconds(network: Callable[..., Network]) -> None:
    net, delays = network(seed=1), list[float]()

    def note(event: Event) -> None:
        if isinstance(event, Reconnecting):
            delays.append(event.delay)
            net.up = len(delays) == 12

    async def lose() -> None:
        async with virtual_wormhole(1, on_event=note) as alice:
            await alice.allocate_code()
            net.go_down()
            await alice.nameplates()
            net.go_down()
            await asyncio.sleep(1)
            assert delays[12] < 3  # the connection in between served us, so it begins anew
            await alice.close()

    simulate(lose())
    for number, delay in enumerate(delays[:12], 1):
        assert 0 <= delay - min(1.5**number, 60) < 1


def test_a_server_that_was_never_reached_is_gone_at_once(network: Callable[..., Network]) -> None:
    network(seed=1).up = False

    async def try_it() -> None:
        async with virtual_wormhole(1) as alice:
            with pytest.raises(ServerGoneError):
                await alice.allocate_code()

    simulate(try_it())


@pytest.mark.parametrize("silent", [0.0, 1.0, 3.0])
def test_a_close_waits_for_a_slow_server_for_five_seconds(network: Callable[..., Network], silent: float) -> None:
    net = network(seed=1)

    async def close() -> float:
        loop = asyncio.get_running_loop()
        async with virtual_wormhole(1) as alice:
            await alice.allocate_code()
            net.go_down()
            loop.call_later(silent, lambda: setattr(net, "up", True))
            began = loop.time()
            await alice.close()
        return loop.time() - began

    assert simulate(close()) <= 10.0
    assert set(net.world.counts().values()) == {"0"}


def test_a_close_leaves_nothing_at_a_server_that_answers_slowly(network: Callable[..., Network]) -> None:
    net = network(seed=1, latency=2.4)

    async def close() -> None:
        async with virtual_wormhole(1) as alice:
            await alice.allocate_code()
            net.go_down()
            net.up = True
            await alice.close()

    simulate(close())
    assert set(net.world.counts().values()) == {"0"}


def test_a_close_ends_though_a_server_greets_and_hangs_up_each_time(network: Callable[..., Network]) -> None:
    net = network(seed=1)

    async def close() -> float:
        loop = asyncio.get_running_loop()
        async with virtual_wormhole(1) as alice, virtual_wormhole(2) as bob:
            await bob.set_code(await alice.allocate_code())
            await asyncio.gather(alice.verifier(), bob.verifier())
            net.frames_until_broken = 1
            net.go_down()
            net.up = True
            await alice.send(b"lost")
            began = loop.time()
            with pytest.raises(ServerGoneError, match="not stored"):
                await alice.close()
            taken = loop.time() - began
            net.frames_until_broken = None
        return taken

    assert simulate(close()) <= 10.0


def test_a_code_that_expired_while_nobody_came_says_so(network: Callable[..., Network]) -> None:
    net = network(seed=1)

    async def wait() -> None:
        async with virtual_wormhole(1) as alice:
            await alice.allocate_code()
            await asyncio.sleep(1)  # until its mailbox is open, too
            net.go_down()
            net.world.advance(3600)
            net.world.prune()
            net.up = True
            with pytest.raises(CodeExpiredError):
                await alice.verifier()

    simulate(wait())


def test_both_sides_learn_that_their_codes_differ_however_slow_the_network_is(
    network: Callable[..., Network],
) -> None:
    network(seed=1, latency=20.0)

    async def differ() -> None:
        async with virtual_wormhole(1) as alice, virtual_wormhole(2) as bob:
            code = await alice.allocate_code()
            await bob.set_code(f"{code}-wrong")
            for each in (alice, bob):
                with pytest.raises(WrongPasswordError):
                    await each.verifier()

    simulate(differ())
