"""Who asks for history faster than it may is answered later; refused is only what would come too late for anybody."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from restante.waku.archive.history.query import Bounds, PageQuery
from restante.waku.limits import Limits
from restante.waku.node.history_requests import GUARANTEED_QUEUE_BYTES, MAX_QUEUE_SECONDS, HistoryRequests
from restante.waku.protocol import packets
from restante.waku.protocol.completion import Completed, Failed
from support.waku.asking import ID, fetch_page, flat, page, plain, walk
from support.waku.inside import Inside, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.raw_peer import RawPeer

LETTERS = [letter(number, age=100 - number) for number in range(5)]
LATE = Failed(ID, "rate limit exceeded")
TOO_MANY = Failed(ID, "too many requests at once")

SMALL = 1024 + 128
"""Bytes that a request of one topic counts for."""
LARGE = 1024 + 128 * 1000

NOTHING = packets.Options(pow=0.0, confirmations=True, topics=frozenset())


class Hours:
    """The clock of requests: it stands still, and whoever waits for a time makes it that time at once."""

    def __init__(self, requests: HistoryRequests, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.on = asyncio.Event()
        """Cleared by a test that wants to see somebody wait."""
        self.on.set()
        self.waiting = 0
        monkeypatch.setattr(requests, "_loop", self)
        monkeypatch.setattr(requests, "_pause", self.pause)

    def time(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        due = math.ceil((self.now + seconds) * 1000) / 1000  # uvloop's clock has whole milliseconds, too
        self.waiting += 1
        try:
            await self.on.wait()
        finally:
            self.waiting -= 1
        self.now = max(self.now, due)


async def elsewhere(here: Inside, number: int = 9) -> RawPeer:
    """Connect a peer of another address, to which nothing is relayed."""
    return await RawPeer.greet(here.port, here.node.key.public, NOTHING, source=f"127.0.0.{number}")


async def test_six_hundred_small_pages_one_after_the_other_are_all_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """status-go gives a Mailserver up after two errors (protocol/messenger_mailserver_cycle.go)."""
    letters = [letter(number, age=700 - number) for number in range(600)]
    limits = Limits()
    async with inside(tmp_path) as here:
        hours = Hours(here.node.history_requests, monkeypatch)
        await here.archive.save(letters, EPOCH)
        peer = await here.greet()
        assert await walk(peer, limit=1) == letters
        over = len(letters) - limits.pages_at_once - 1
        assert over / limits.pages <= hours.now < over / limits.pages + 1
        assert here.node.history_requests.counts["requests refused"] == 0


async def test_a_requester_that_makes_the_node_examine_much_is_answered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(tmp_path, limits=Limits(rows=1.0, rows_at_once=len(LETTERS))) as here:
        hours = Hours(here.node.history_requests, monkeypatch)
        await here.archive.save(LETTERS, EPOCH)
        peer = await here.greet()
        topics = frozenset((TOPIC,))
        looked = (
            await here.archive.page(PageQuery(lower=0, upper=EPOCH, topics=topics, limit=1000), Bounds())
        ).looked
        for number in range(10):
            assert (await fetch_page(peer))[0] == LETTERS
            assert hours.now == pytest.approx(max(0, number * looked - len(LETTERS)), abs=0.1)


async def test_a_waiting_requester_delays_only_its_own_address_and_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(tmp_path, limits=Limits(pages=1.0, pages_at_once=1)) as here:
        hours = Hours(here.node.history_requests, monkeypatch)
        await here.archive.save(LETTERS, EPOCH)
        hasty, neighbour, other = await here.greet(NOTHING), await here.greet(NOTHING), await elsewhere(here)
        for _ in range(2):
            assert (await fetch_page(hasty))[0] == LETTERS
        hours.on.clear()
        hasty.say(packets.REQUEST, plain())
        neighbour.say(packets.REQUEST, plain())
        await here.until("those who wait", lambda: hours.waiting == 2)
        await hasty.fence()
        assert not (await hasty.post(letter(99, topic=b"else"))).refusals
        assert (await fetch_page(other))[0] == LETTERS
        assert hasty.inbox == []
        hours.on.set()
        for peer in (hasty, neighbour):
            assert flat((await page(peer))[0]) == LETTERS


async def test_a_request_that_would_wait_too_long_is_refused_and_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a page that comes later."""
    async with inside(tmp_path, limits=Limits(pages=1 / MAX_QUEUE_SECONDS, pages_at_once=1)) as here:
        hours = Hours(here.node.history_requests, monkeypatch)
        peer = await here.greet()
        for _ in range(2):
            await fetch_page(peer)
        hours.on.clear()
        peer.say(packets.REQUEST, plain())
        await here.until("one that waits", lambda: hours.waiting == 1)
        other = await here.greet()
        other.say(packets.REQUEST, plain())
        await here.until("another", lambda: hours.waiting == 2)
        hours.on.set()
        ends = [(await page(each))[1] for each in (peer, other)]
        assert sorted(map(str, ends)) == sorted(map(str, [Completed(ID), LATE]))
        assert hours.now == pytest.approx(MAX_QUEUE_SECONDS, abs=0.01)
        assert here.node.history_requests.counts["requests refused"] == 1
        hours.now += MAX_QUEUE_SECONDS
        await fetch_page(peer)


async def test_a_slow_reader_does_not_exceed_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it asked for meanwhile is answered when it has read what came before."""
    async with inside(tmp_path) as here:
        hours = Hours(here.node.history_requests, monkeypatch)
        await here.archive.save(LETTERS, EPOCH)
        here.archive.search.clear()
        peer = await here.greet()
        [connection] = here.node.connections
        peer.say_all([(packets.REQUEST, plain())] * 3)
        await peer.fence()
        connection.pause_writing()
        here.archive.search.set()
        await here.until("a page that waits", lambda: connection in here.node.history_requests._unread)
        hours.now += 2 * MAX_QUEUE_SECONDS
        connection.resume_writing()
        for _ in range(3):
            assert flat((await page(peer))[0]) == LETTERS


async def test_a_requester_that_leaves_while_it_waits_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside(tmp_path, limits=Limits(pages=1.0, pages_at_once=1)) as here:
        requests = here.node.history_requests
        hours = Hours(requests, monkeypatch)
        peer = await here.greet()
        for _ in range(2):
            await fetch_page(peer)
        hours.on.clear()
        peer.say_all([(packets.REQUEST, plain())] * 10)
        await here.until("one that waits", lambda: hours.waiting == 1)
        await peer.fence()
        assert requests.waiting == 10 * SMALL
        peer.cut()
        await here.until("nobody who waits", lambda: not hours.waiting and not requests._making)
        assert requests.waiting == 0
        assert not requests._lines
        hours.on.set()
        assert (await fetch_page(await here.greet()))[0] == []


async def test_waiting_requests_have_a_memory_limit_and_small_ones_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = plain(topics=frozenset(number.to_bytes(4, "big") for number in range(1000)))
    monkeypatch.setattr("restante.waku.node.history_requests.MAX_QUEUED_BYTES", 3 * LARGE)
    async with inside(tmp_path) as here:
        await here.archive.save(LETTERS, EPOCH)
        here.archive.search.clear()
        requests = here.node.history_requests
        greedy = [await elsewhere(here, number) for number in (11, 12)]
        for peer in greedy:
            peer.say_all([(packets.REQUEST, large)] * 3)
            await peer.fence()
        assert requests.counts["requests refused"] == 3
        for peer in greedy:
            for code, body in peer.inbox:
                assert (code, body[-len(TOO_MANY.words) :]) == (packets.REQUEST_COMPLETE, TOO_MANY.words.encode())
        modest = await elsewhere(here, 13)
        modest.say_all([(packets.REQUEST, plain())] * (GUARANTEED_QUEUE_BYTES // SMALL + 1))
        await modest.fence()
        assert requests.counts["requests refused"] == 4
        assert (await page(modest))[1] == TOO_MANY
        here.archive.search.set()
        for _ in range(GUARANTEED_QUEUE_BYTES // SMALL):
            assert flat((await page(modest))[0]) == LETTERS
        for peer in greedy:
            for _ in range(3):
                await page(peer)
        await here.until("the end of all lines", lambda: not requests._making)
        assert requests.waiting == 0
