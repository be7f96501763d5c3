"""A requester who means well, beside those who do not: what it asks for it gets.

How long it waits for a page is shown, and not asserted: test_turns.py counts what is done before its turn comes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from restante.waku.envelope.envelope import Envelope
from support.proc import descriptors, resident
from support.waku.asking import fetch_page
from support.waku.raw_peer import RawPeer
from support.waku.siege import NOTHING, Siege

ADDRESSES: Final = [f"127.0.1.{number}" for number in range(1, 9)]
"""It asks without a pause, which one address may not for long."""


class Requester:
    """Asks for the same page again and again."""

    def __init__(self, peers: list[RawPeer], topic: bytes, expected: list[Envelope]) -> None:
        self.delays: list[float] = []
        self._peers = itertools.cycle(peers)
        self._topic = topic
        self._expected = expected
        self._on = False
        self._asking: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()

    async def fetch(self) -> None:
        """Fetch a page, which must be right."""
        began = time.perf_counter()
        found, cursor = await fetch_page(next(self._peers), upper=int(time.time()), topics=frozenset([self._topic]))
        self.delays.append(time.perf_counter() - began)
        assert found == self._expected
        assert not cursor
        self._answered.set()

    def start(self) -> None:
        """Fetch one page after the other, until `stop`."""

        async def fetch_repeatedly() -> None:
            while self._on:
                await self.fetch()

        self._on = True
        self.delays = []
        self._asking = asyncio.create_task(fetch_repeatedly())

    async def asks(self, count: int) -> None:
        """Wait until it has got so many more."""
        wanted = len(self.delays) + count
        while len(self.delays) < wanted:
            assert self._asking is not None
            self._answered.clear()
            waiting = asyncio.ensure_future(self._answered.wait())
            await asyncio.wait((waiting, self._asking), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._asking.done():
                self._asking.result()

    async def stop(self) -> None:
        """Wait for the last page, and fetch no more."""
        assert self._asking is not None
        self._on = False
        await self._asking


async def requester(siege: Siege, topic: bytes, expected: list[Envelope]) -> Requester:
    """Connect a requester. Count its memory and descriptors as the node's own."""
    port = siege.node.port
    peers = [await RawPeer.greet(port, siege.public, NOTHING, source=address) for address in ADDRESSES]
    asking = Requester(peers, topic, expected)
    for _ in range(100):
        await asking.fetch()
    siege.descriptors = descriptors(siege.node.pid)
    siege.resident, siege.archived = resident(siege.node.pid), siege.archive_size()
    return asking


@asynccontextmanager
async def beside_both(siege: Siege, asking: Requester, attack: str) -> AsyncIterator[None]:
    """The pair posts, and the requester asks, as long as the block lasts, and after; they may notice nothing."""
    async with siege.beside_the_pair(attack):
        asking.start()
        try:
            await asking.asks(1)
            yield
            await asking.asks(2)
        finally:
            await asking.stop()
