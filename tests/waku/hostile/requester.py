"""A requester who means well, beside those who do not: what it asks for it gets, and soon."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from hostile.gauges import descriptors, resident
from restante.waku.envelope import Envelope
from waku.asking import ask
from waku.hostile.siege import FIGURES, MIB, NOTHING, Siege
from waku.raw_peer import RawPeer

MEDIAN: Final = 1.0
"""Seconds; the most that half of its pages may take, on a busy machine of two slow cores."""

ADDRESSES: Final = [f"127.0.1.{number}" for number in range(1, 9)]
"""It asks without a pause, which one address may not for long."""


class Requester:
    """Asks for the same page again and again."""

    def __init__(self, peers: list[RawPeer], topic: bytes, expected: list[Envelope]) -> None:
        self.delays: list[float] = []
        self._peers = itertools.cycle(peers)
        self._topic = topic
        self._expected = expected

    async def ask(self) -> None:
        """Ask for a page, which must be right."""
        began = time.perf_counter()
        found, cursor = await ask(next(self._peers), upper=int(time.time()), topics=frozenset([self._topic]))
        self.delays.append(time.perf_counter() - began)
        assert found == self._expected
        assert not cursor

    async def ask_on(self) -> None:
        while True:
            await self.ask()


async def requester(siege: Siege, topic: bytes, expected: list[Envelope]) -> Requester:
    """Connect one, which belongs to the house from now on."""
    port = siege.node.port
    peers = [await RawPeer.greet(port, siege.public, NOTHING, source=address) for address in ADDRESSES]
    asking = Requester(peers, topic, expected)
    for _ in range(100):
        await asking.ask()
    siege.descriptors = descriptors(siege.node.pid)
    siege.resident, siege.archived = resident(siege.node.pid), siege.archive_size()
    return asking


@asynccontextmanager
async def beside_both(siege: Siege, asking: Requester, attack: str) -> AsyncIterator[None]:
    """The pair posts, and the requester asks, as long as the block lasts, and after; they may notice nothing."""
    asking.delays = []
    async with siege.beside_the_pair(attack):
        going_on = asyncio.create_task(asking.ask_on())
        try:
            yield
        finally:
            going_on.cancel()
            await asyncio.wait([going_on])
        if not going_on.cancelled():
            going_on.result()
    median, longest = statistics.median(asking.delays), max(asking.delays)
    shown = " ".join(f"{each * 1000:>9.1f}" for each in (median, longest))
    FIGURES.append(
        f"{'  and a page of history':<60} {len(asking.delays):>6} {shown} {resident(siege.node.pid) / MIB:>8.1f}"
    )
    assert median < MEDIAN
