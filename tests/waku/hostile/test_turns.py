"""How long who means well waits beside those who do not, by what is done before its turn comes and not by a clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from restante.waku import bloom, wire
from restante.waku.answers import OWN, PAGES
from restante.waku.archive.plans import PAIRED, SPARSE
from restante.waku.archive.query import BOUNDS, Bounds, Page, Query
from restante.waku.limits import Limits
from restante.waku.link import Link
from waku.asking import page, plain
from waku.inside import Inside, inside
from waku.letters import EPOCH, TOPIC, letter
from waku.raw_peer import RawPeer

TIMES: Final = 100
AT_ONCE: Final = 8
"""Requests that an attacker has in its line, so that it never waits for its own next one."""

_random: Final = random.Random(2026)

LETTERS: Final = [letter(number, age=number) for number in range(20)]
CROWD: Final = [letter(100 + number, topic=_random.randbytes(4), age=50) for number in range(3000)]

WANTED: Final = plain()
"""What the one who means well asks for."""


def filter_of(places: int) -> int:
    return sum(1 << place for place in _random.sample(range(512), places))


ATTACKS: Final[dict[str, dict[str, Any]]] = {
    "a bloom half full": {"bloom": filter_of(256), "topics": frozenset[bytes]()},
    "a filter that lets few topics through, each looked up": {
        "bloom": filter_of(SPARSE),
        "topics": frozenset[bytes](),
    },
    "a filter whose places are looked up in pairs": {"bloom": filter_of(PAIRED), "topics": frozenset[bytes]()},
    "everything": {"bloom": bloom.FULL, "topics": frozenset[bytes]()},
    "a thousand topics": {"topics": frozenset(_random.randbytes(4) for _ in range(1000))},
}


class Turns:
    """Counts the pages of others that are begun between a request that is read and its page."""

    def __init__(self, here: Inside) -> None:
        self.waited: list[int] = []
        self.worked: list[int] = []
        """What each page of the others looked at."""
        self._begun = self._read = 0
        self._ask, self._page = here.node.answers.ask, here.archive.page
        here.node.answers.ask = self._asked  # type: ignore[method-assign]
        here.archive.page = self._made  # type: ignore[method-assign, assignment]

    def _asked(self, link: Link, payload: bytes) -> None:
        if payload == WANTED:
            self._read = self._begun
        self._ask(link, payload)

    async def _made(self, query: Query, bounds: Bounds) -> Page:
        if query.topics == frozenset([TOPIC]):
            self.waited.append(self._begun - self._read)
            return await self._page(query, bounds)
        self._begun += 1
        found = await self._page(query, bounds)
        self.worked.append(found.looked)
        return found

    def p99(self) -> int:
        return sorted(self.waited)[math.ceil(0.99 * len(self.waited)) - 1]


@asynccontextmanager
async def beside(here: Inside, addresses: list[str], body: bytes) -> AsyncIterator[RawPeer]:
    """Have this asked for from each of these addresses, again and again; gives a peer of another one."""

    async def attack(peer: RawPeer) -> None:
        while True:
            peer.say(wire.REQUEST, body)
            await page(peer)

    public = here.node.key.public
    attackers = [await RawPeer.greet(here.port, public, source=address) for address in addresses]
    for each in attackers:
        each.say_all([(wire.REQUEST, body)] * AT_ONCE)
    attacks = [asyncio.create_task(attack(each)) for each in attackers]
    try:
        yield await RawPeer.greet(here.port, public, source="127.0.4.1")
    finally:
        for task in attacks:
            task.cancel()
        ended = await asyncio.gather(*attacks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("alone", [True, False], ids=["of one address", "of many"])
async def test_nearly_every_request_waits_for_few_pages_of_others_and_each_is_bounded(
    attack: str, alone: bool, tmp_path: Path
) -> None:
    """Of one address only so many are made at a time; of many, each has one before ours at the most."""
    many = PAGES + 4
    addresses = ["127.0.5.1" if alone else f"127.0.5.{number}" for number in range(1, many + 1)]
    unlimited = Limits(pages=0, rows=0)  # what rates would stop is what is to be borne here
    async with inside(tmp_path, limits=unlimited) as here:
        await here.archive.save([*LETTERS, *CROWD], EPOCH)
        turns = Turns(here)
        async with beside(here, addresses, plain(limit=20, **ATTACKS[attack])) as peer:
            for _ in range(TIMES):
                peer.say(wire.REQUEST, WANTED)
                packets, _ = await page(peer)
                assert sum(map(len, packets)) == len(LETTERS)
        assert len(turns.waited) == TIMES
        assert turns.p99() <= (OWN if alone else many)
        assert len(turns.worked) > TIMES
        assert max(turns.worked) <= 2 * BOUNDS.rows


@pytest.mark.parametrize("places", [PAIRED, SPARSE])
async def test_topics_that_are_looked_up_are_charged_and_bounded(places: int, tmp_path: Path) -> None:
    """Their work does not show in what is found."""
    async with inside(tmp_path) as here:
        await here.archive.save(CROWD, EPOCH)
        asked = Query(lower=0, upper=EPOCH, bloom=filter_of(places), limit=1)
        found = await here.archive.page(asked)
        assert found.looked >= (places**2 if places == PAIRED else 300)
        few = await here.archive.page(asked, Bounds(rows=50))
        assert few.looked <= (places**2 if places == PAIRED else places) + 2 * 50
