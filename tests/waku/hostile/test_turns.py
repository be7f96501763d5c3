"""How long who means well waits beside those who do not, by what is done before its turn comes and not by a clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from restante.waku.archive.history.query import Bounds, Page, PageQuery
from restante.waku.archive.history.readers import Readers
from restante.waku.archive.schema import FILE
from restante.waku.connection.peer_connection import PeerConnection
from restante.waku.limits import Limits
from restante.waku.node.history_requests import MAX_PAGES, HistoryTerms
from restante.waku.node.requester_quotas import MAX_PAGES_PER_ADDRESS
from restante.waku.protocol import packets as waku_packets
from support.waku.asking import page, plain
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import RawPeer

TIMES: Final = 8
AT_ONCE: Final = 8
"""Requests that an attacker has in its line, so that it never waits for its own next one."""

MANY: Final = MAX_PAGES + 4
"""Attackers: more than there are places."""

ROWS: Final = 10
"""That a page may look at: all that is well meant, and a small part of what every attack would have looked at."""

_random: Final = random.Random(2026)

LETTERS: Final = [letter(number, age=number) for number in range(ROWS)]
CROWD: Final = [letter(100 + number, topic=_random.randbytes(4), age=50) for number in range(3000)]

WANTED: Final = plain()
"""What the one who means well asks for."""


ATTACKS: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "a bloom half full": ({"bloom": sum(1 << place for place in _random.sample(range(512), 256))}, 0),
    "a thousand topics": ({"topics": frozenset(envelope.topic for envelope in CROWD[:1000])}, 1000),
}
"""What is asked for, again and again; and how many topics are looked up because it names them."""


class Turns:
    """Counts the pages of others that are finished from when our request is read until its page is."""

    def __init__(self, here: Inside) -> None:
        self.waited: list[int] = []
        self.worked: list[int] = []
        """What each finished page of the others looked at."""
        self._read = 0
        self._receive, self._page = here.node.history_requests.receive, here.archive.page
        here.node.history_requests.receive = self._asked  # type: ignore[method-assign]
        here.archive.page = self._made  # type: ignore[method-assign, assignment]

    def _asked(self, connection: PeerConnection, payload: bytes) -> None:
        if payload == WANTED:
            self._read = len(self.worked)
        self._receive(connection, payload)

    async def _made(self, query: PageQuery, bounds: Bounds) -> Page:
        found = await self._page(query, bounds)
        if query.topics == frozenset([TOPIC]):
            self.waited.append(len(self.worked) - self._read)
        else:
            self.worked.append(found.looked)
        return found


def one_reader(here: Inside, data: Path) -> None:
    """Let the archive search one page at a time, because how many another thread searches meanwhile is chance."""
    here.archive.readers.close()
    here.archive.readers = Readers.open(data / FILE, 1)


@asynccontextmanager
async def beside(here: Inside, addresses: list[str], body: bytes) -> AsyncIterator[RawPeer]:
    """Request this from each of these addresses, again and again, and yield a peer of another one."""

    async def attack(peer: RawPeer) -> None:
        while True:
            peer.say(waku_packets.REQUEST, body)
            await page(peer)

    public = here.node.key.public
    attackers = [await RawPeer.greet(here.port, public, source=address) for address in addresses]
    for each in attackers:
        each.say_all([(waku_packets.REQUEST, body)] * AT_ONCE)
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
async def test_every_request_waits_for_few_pages_of_others_and_each_is_bounded(
    attack: str, alone: bool, tmp_path: Path
) -> None:
    """Of one address only so many are made at a time; of many, each has one before ours at the most.

    Those in the making when ours is read may be finished in the turn of the loop that ours needs to stand in line,
    and be followed by as many.
    """
    addresses = ["127.0.5.1" if alone else f"127.0.5.{number}" for number in range(1, MANY + 1)]
    before, made = (MAX_PAGES_PER_ADDRESS, MAX_PAGES_PER_ADDRESS) if alone else (MANY, MAX_PAGES)
    unlimited = Limits(pages=0, rows=0)  # what rates would stop is what is to be borne here
    fields, named = ATTACKS[attack]
    async with inside(tmp_path, limits=unlimited, history=HistoryTerms(bounds=Bounds(rows=ROWS))) as here:
        await here.archive.save([*LETTERS, *CROWD], EPOCH)
        one_reader(here, tmp_path)
        turns = Turns(here)
        async with beside(here, addresses, plain(limit=1000, **{"topics": frozenset()} | fields)) as peer:
            for _ in range(TIMES):
                peer.say(waku_packets.REQUEST, WANTED)
                packets, _ = await page(peer)
                assert sum(map(len, packets)) == len(LETTERS)
        assert len(turns.waited) == TIMES
        assert max(turns.waited) <= before + made
        assert len(turns.worked) > TIMES
        assert max(turns.worked) <= named + 2 * ROWS
