"""Following topics over real RLPx: history and live envelopes meet, and each is handed over once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from restante.common.dice import SystemDice
from restante.common.errors import Misuse, StoreError
from restante.waku.client.actions import Budgets, FetchReport, Timeouts
from restante.waku.client.fetch import RequestOptions
from restante.waku.client.outbound_connection import connect
from restante.waku.client.ranges import FetchState
from restante.waku.client.ranges import HistoryQuery as Wanted
from restante.waku.client.subscribe import REMEMBERED_FAILURES, Intervals, _Subscription, subscribe
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.protocol import packets
from restante.waku.protocol.interest import Interest
from support.bounds import bounded
from support.waku.fake_node import FakeNode, listening
from support.waku.inside import Inside, Today, inside
from support.waku.letters import TOPIC
from support.waku.mailservers import Honest

PLAIN = RequestOptions(form="plain")
OTHER = b"\xff\xff\xff\xff"
RARELY = Intervals(history=3600.0, first=0.01, last=0.02, grace=0.1)
OFTEN = Intervals(history=0.01, first=0.01, last=0.02, grace=0.1)
QUICK = Timeouts(answer=60.0, tries=1, back_off=0.01)


def fresh(number: int, age: int = 0, **given: Any) -> Envelope:
    """Make an envelope of just now, or of some seconds ago."""
    now = int(time.time())
    ttl = given.pop("ttl", 50)
    return make(now - age + ttl, ttl, given.get("topic", TOPIC), bytes(given.get("size", 3)), number)


class Subscribing:
    """Somebody who follows, and what came to him."""

    def __init__(self, servers: list[Enode], intervals: Intervals = RARELY, state: FetchState | None = None) -> None:
        self.came: list[Envelope] = []
        self.told: list[tuple[int, str]] = []
        self.states: list[FetchState] = []
        self.until = asyncio.Event()
        self.subscriber: Callable[[list[Envelope]], None] = self.came.extend
        self._task = asyncio.create_task(
            subscribe(
                servers,
                Wanted(int(time.time()) - 3600, int(time.time()), frozenset([TOPIC])),
                PLAIN,
                self._take,
                self.until,
                state=state,
                keep=lambda found: self.states.append(found.copy()),
                on_failure=lambda server, words: self.told.append((server, words)),
                budgets=Budgets(size=1000),
                timeouts=QUICK,
                intervals=intervals,
            )
        )

    def _take(self, envelopes: list[Envelope]) -> None:
        self.subscriber(envelopes)

    async def has(self, *envelopes: Envelope) -> None:
        await self.until_true("the envelopes", lambda: {each.hash for each in envelopes} <= self.hashes())

    def hashes(self) -> set[bytes]:
        return {each.hash for each in self.came}

    async def until_true(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds() and not self._task.done():  # noqa: ASYNC110 - it is nobody's event
                await asyncio.sleep(0)
        assert holds(), self._task

    async def stop(self) -> FetchReport:
        self.until.set()
        return await self.over()

    async def over(self) -> FetchReport:
        async with bounded("the end"):
            return await self._task


@asynccontextmanager
async def node(data: Path, number: int = 1) -> AsyncIterator[Inside]:
    async with inside(data, number=number, clock=Today()) as here:
        yield here


async def post(here: Inside, envelope: Envelope) -> None:
    peer = await here.greet(packets.Options(pow=0.0, topics=frozenset()))
    assert not (await peer.post(envelope)).refusals


async def test_an_envelope_that_is_posted_while_history_is_fetched_comes_once(tmp_path: Path) -> None:
    """It is posted to one node, which relays it to the other: it comes live from both, and in the page of one."""
    async with node(tmp_path / "a", 1) as a, node(tmp_path / "b", 2) as b:
        joined = asyncio.create_task(b.node.stay_connected(a.enode))
        await b.until("the peer", lambda: bool(b.node.peers))
        old, new = fresh(1, age=100), fresh(2)
        await b.archive.save([old], 1)
        b.archive.search.clear()
        subscription = Subscribing([b.enode, a.enode], OFTEN)
        await b.until("the request", lambda: bool(b.archive.asked))
        await post(a, new)
        await subscription.has(new)
        await b.until("the archive", lambda: b.node.mailserver.counts["new"] == 1)
        await b.archived()
        b.archive.search.set()
        await subscription.has(old, new)
        await subscription.until_true("more rounds", lambda: len(b.archive.asked) > 2)
        report = await subscription.stop()
        joined.cancel()
        await asyncio.gather(joined, return_exceptions=True)
    assert subscription.came == [new, old]
    assert (report.missing, report.counts) == ([], {"handed over": 2})


async def test_envelopes_missed_during_a_lost_connection_come_as_history(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        subscription = Subscribing([here.enode])
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        missed = fresh(1)
        await here.archive.save([missed], 1)  # and nobody relays it
        for connection in list(here.node.connections):
            connection.drop()
        await subscription.has(missed)
        live = fresh(2)
        await here.until("a connection", lambda: bool(here.node.relay.interests))
        await post(here, live)
        await subscription.has(live)
        await subscription.stop()
    assert subscription.came == [missed, live]
    assert [words.startswith("it disconnected: ") for _, words in subscription.told] == [True]


async def test_live_envelopes_are_checked(tmp_path: Path) -> None:
    good = fresh(9)
    async with listening(Honest([])) as (fake, enode):
        subscription = Subscribing([enode])
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        bad = [
            fresh(1, topic=OTHER),
            fresh(2, age=500),
            fresh(3, age=-500),
            fresh(4, size=5000),
            fresh(5, age=7200, ttl=8000),
        ]
        relay(fake, b"\xc1\x01")
        relay(fake, packets.write_envelopes(each.raw for each in bad))
        relay(fake, packets.write_envelopes([good.raw, good.raw]))
        await subscription.has(good)
        many = [fresh(number, size=900) for number in range(100, 200)]
        relay(fake, packets.write_envelopes([each.raw for each in many]))  # so much is read in slices
        relay(fake, packets.write_envelopes([each.raw for each in many])[:-1])
        await subscription.has(*many)
        await subscription.stop()
    assert subscription.came == [good, *many]


def relay(fake: FakeNode, body: bytes) -> None:
    for connection in fake.connections:
        connection.send(packets.MESSAGES, body)


async def test_an_exception_of_the_subscriber_ends_the_subscription(tmp_path: Path) -> None:
    def full(_: list[Envelope]) -> None:
        raise StoreError("no room")

    async with node(tmp_path) as here:
        for post_it in (partial(post, here, fresh(1)), partial(here.archive.save, [fresh(2, age=70)], 1)):
            subscription = Subscribing([here.enode], OFTEN)
            await subscription.until_true("the first round", lambda: bool(subscription.states))  # noqa: B023
            subscription.subscriber = full
            await post_it()
            with pytest.raises(StoreError, match="no room"):
                await subscription.over()


async def test_only_a_few_failure_reasons_of_a_server_are_remembered() -> None:
    told: list[tuple[int, str]] = []

    def on_failure(server: int, words: str) -> None:
        told.append((server, words))

    query = Wanted(0, 1, frozenset([TOPIC]))
    subscription = _Subscription([], query, PLAIN, lambda _: None, lambda _: None, on_failure)
    said = [(number % 2, f"failure {number}") for number in range(1000)]
    for each in said:
        subscription._say(*each)
        subscription._say(*each)
    assert told == said, "each once"
    for server in (0, 1):
        assert len(subscription._reported[server]) <= REMEMBERED_FAILURES


async def test_an_unreachable_server_is_reported_once_and_dialled_again(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        gone = Enode(new_key(SystemDice()).public, "127.0.0.1", 1)
        subscription = Subscribing([gone, here.enode], OFTEN)
        late = fresh(7, age=70)
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        await here.archive.save([late], 1)
        await subscription.has(late)
        await subscription.until_true("many rounds", lambda: len(subscription.states) > 20)
        live = fresh(1)
        await post(here, live)
        await subscription.has(live)
        report = await subscription.stop()
    assert report.missing == []
    assert [server for server, _ in subscription.told] == [0]
    alone = Subscribing([gone])
    await alone.until_true("a failure", lambda: bool(alone.told))
    [(lower, upper)] = (await alone.stop()).missing
    assert upper - lower >= 3600


async def test_an_answer_under_way_is_completed(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        await here.archive.save([fresh(1)], 1)
        here.archive.search.clear()
        subscription = Subscribing([here.enode], Intervals(grace=30.0))
        await here.until("the request", lambda: bool(here.archive.asked))
        subscription.until.set()
        here.archive.search.set()
        report = await subscription.over()
    assert (report.missing, len(subscription.came)) == ([], 1)


async def test_a_subscription_without_topics_is_misuse() -> None:
    with pytest.raises(Misuse, match="topics"):
        await subscribe([], Wanted(0, 1, bloom=1), PLAIN, print, asyncio.Event())


async def test_a_listener_names_all_its_topics() -> None:
    topics = [number.to_bytes(4) for number in range(1000)]
    async with (
        listening() as (fake, enode),
        connect(enode, new_key(SystemDice()), Interest.named(topics), on_envelopes=print),
    ):
        [connection] = fake.connections
        async with bounded("the greeting"):
            while not connection.peer.greeted:  # noqa: ASYNC110 - it is nobody's event
                await asyncio.sleep(0)
        assert connection.peer.interest == Interest.named(topics)
        assert not connection.peer.confirms
