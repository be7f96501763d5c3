"""`fetch` and `subscribe` over real RLPx: honest Mailservers, and others; history and live envelopes meet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from restante.common.dice import SystemDice
from restante.common.errors import Misuse, PeerError, StoreError
from restante.waku.client.actions import Budgets, FetchReport, Timeouts
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.outbound_connection import NodeUnavailableError, connect
from restante.waku.client.probe import Outcome, _probe
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.subscribe import REMEMBERED_FAILURES, Intervals, _Subscription, subscribe
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.mining import mine
from restante.waku.protocol import packets, request
from restante.waku.protocol.interest import Interest
from restante.waku.protocol.request import Request
from support.bounds import bounded
from support.ports import held_port
from support.waku.fake_node import SHARED, FakeNode, listening
from support.waku.fixed import KEY
from support.waku.inside import Inside, Today, inside
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.mailservers import Honest, Refusing, Silent
from support.waku.virtual_time import in_virtual_time

QUERY = HistoryQuery(EPOCH, EPOCH + 500, frozenset([TOPIC]))
LETTERS = [letter(number, age=-number, size=300) for number in range(50)]
ENVELOPE = RequestOptions(to=SHARED)
PLAIN = RequestOptions(form="plain")
ONCE = Timeouts(tries=1)


def hashes(envelopes: list[Envelope]) -> list[bytes]:
    return sorted(each.hash for each in envelopes)


class Dying(Honest):
    """Answers one page, and then is no more."""

    node: FakeNode

    def packets(self, request: Any) -> Any:
        if not request.cursor:
            return super().packets(request)
        for connection in self.node.connections:
            connection.drop()
        return iter(())


async def test_what_cannot_be_fetched_is_misuse() -> None:
    with pytest.raises(Misuse, match="name the key"):
        RequestOptions()
    with pytest.raises(Misuse, match="no Mailserver is named"):
        await fetch([], QUERY, ENVELOPE, lambda _: None)
    with pytest.raises(PeerError, match="not on the curve"):
        await fetch([Enode(bytes(64), "127.0.0.1", 1)], QUERY, ENVELOPE, lambda _: None)
    with pytest.raises(Misuse, match="topics"):
        await subscribe([], HistoryQuery(0, 1, bloom=1), PLAIN, print, asyncio.Event())


async def test_only_a_requester_with_a_key_is_recognised() -> None:
    own = RequestOptions(to=SHARED, key=KEY)
    async with listening(Honest(LETTERS, size=30)) as (node, enode):
        for _ in range(2):
            await fetch([enode], QUERY, ENVELOPE, lambda _: None)
        signers = {request.signer for request in node.asked}
        assert (len(node.known), len(signers)) == (2, 4)
        assert not signers & node.known
        node.asked, node.known = [], set()
        for _ in range(2):
            await fetch([enode], QUERY, own, lambda _: None)
        assert (await _probe(enode, own, 60.0)).outcome is Outcome.WELL
    assert {request.signer for request in node.asked} == node.known == {KEY.public}


async def test_a_server_that_wants_too_much_work_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.client.fetch.mine", partial(mine, budget=100))
    came: list[Envelope] = []
    async with listening(Honest(LETTERS), pow=1e3) as (hungry, first), listening(Honest(LETTERS)) as (_, second):
        report = await fetch([first, second], QUERY, ENVELOPE, came.extend, timeouts=ONCE)
        assert report.missing == []
        assert "the server requires more proof of work than we accept" in report.failures[0]
        assert (hungry.asked, hungry.wrong) == ([], [])
        report = await fetch([first], QUERY, PLAIN, lambda _: None, timeouts=ONCE)
        assert report.missing == []


@in_virtual_time
async def test_servers_that_fail_are_left_for_one_that_answers_from_what_is_known() -> None:
    came: list[Envelope] = []
    with held_port() as port:
        async with (
            listening(Silent()) as (_, silent),
            listening(Refusing()) as (_, refusing),
            listening(Dying(LETTERS, size=20)) as (node, dying),
            listening(Honest(LETTERS), pow=1e-3) as (working, honest),
        ):
            node.mailserver.node = node
            nobody = Enode(new_key(SystemDice()).public, "127.0.0.1", port)
            servers = [nobody, silent, refusing, dying, honest]
            report = await fetch(servers, QUERY, ENVELOPE, came.extend, timeouts=ONCE)
    assert (report.missing, hashes(came), working.wrong) == ([], hashes(LETTERS), [])
    assert [(request.lower, request.cursor) for request in working.asked] == [(EPOCH + 19, b"")]
    assert "it disconnected: " in report.failures.pop(3)
    assert report.failures == {
        0: f"cannot connect to 127.0.0.1:{port}: Connection refused",
        1: "it does not answer",
        2: "it says: rate limit exceeded",
    }


async def test_history_from_an_untrusted_peer_is_ignored() -> None:
    """A call to hand over envelopes trusts nobody."""
    async with (
        listening(Honest(LETTERS)) as (node, enode),
        connect(enode, new_key(SystemDice()), Interest.named([])) as connection,
    ):
        asked = Request(id=bytes(32), lower=EPOCH, upper=EPOCH + 1, topics=frozenset([TOPIC]))
        connection.request(request.write(asked))
        assert (await connection.offer([letter(99)])).refusals == ()
        assert len(node.asked) == 1
        assert connection.node.violations is None
        for peer in list(node.connections):
            peer.drop()
        await connection.gone()
        with pytest.raises(NodeUnavailableError, match="the node disconnected: "):
            await connection.offer([letter(98)])


# ── probe ────────────────────────────────────────────────────────────────────────────────────────


PROBES: dict[str, tuple[dict[str, Any], Outcome, str]] = {
    "well": ({}, Outcome.WELL, "all is well: posted, and fetched in"),
    "well, unconfirmed": ({"says_so": False, "confirms": False}, Outcome.WELL, "all is well"),
    "does not greet": ({"greets": False}, Outcome.SILENT, "the node disconnected: "),
    "does not confirm": ({"confirms": False}, Outcome.UNCONFIRMED, "did not confirm the envelope within"),
    "refuses": ({"refuses": "full"}, Outcome.UNCONFIRMED, "refused the envelope: full"),
    "missing": ({"archives": False}, Outcome.MISSING, "the posted envelope is missing"),
    "no mailserver": ({"mailserver": None}, Outcome.UNANSWERED, "it does not answer"),
    "silent": ({"mailserver": Silent(), "archives": False}, Outcome.UNANSWERED, "it does not answer"),
    "error": (
        {"mailserver": Refusing("no"), "archives": False},
        Outcome.REFUSED,
        "it answers the request with an error: no",
    ),
}


@pytest.mark.parametrize(("options", "outcome", "words"), PROBES.values(), ids=PROBES)
def test_a_probe_reports_each_outcome(options: dict[str, Any], outcome: Outcome, words: str) -> None:
    @in_virtual_time
    async def probe() -> None:
        async with listening(**{"mailserver": Honest([]), **options}) as (_, enode):
            result = await _probe(enode, ENVELOPE, 60.0)
        assert result.outcome is outcome
        assert words in result.words

    probe()


class Tardy(Honest):
    """Has the envelope when it is asked a second time."""

    asked = 0

    def packets(self, request: Any) -> Iterator[Any]:
        self.asked += 1
        return super().packets(request) if self.asked > 1 else Honest([]).packets(request)


@in_virtual_time
async def test_a_probe_asks_again_if_the_envelope_is_not_archived_yet_and_reports_who_cannot_be_reached() -> None:
    tardy = Tardy([])
    async with listening(tardy) as (_, enode):
        result = await _probe(enode, ENVELOPE, 60.0)
    assert (result.outcome, tardy.asked) == (Outcome.WELL, 2)
    result = await _probe(enode, ENVELOPE, 60.0)
    assert (result.outcome, "Connection refused" in result.words) == (Outcome.UNREACHABLE, True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = await _probe(Enode(enode.public, *silent.getsockname()), ENVELOPE, 60.0)
    assert (result.outcome, "no Hello arrived" in result.words) == (Outcome.SILENT, True)


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

    def __init__(self, servers: list[Enode], intervals: Intervals = RARELY) -> None:
        self.came: list[Envelope] = []
        self.told: list[tuple[int, str]] = []
        self.states: list[FetchState] = []
        self.until = asyncio.Event()
        self.subscriber: Callable[[list[Envelope]], None] = self.came.extend
        self._task = asyncio.create_task(
            subscribe(
                servers,
                HistoryQuery(int(time.time()) - 3600, int(time.time()), frozenset([TOPIC])),
                PLAIN,
                self._take,
                self.until,
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


async def post(here: Inside, envelope: Envelope) -> None:
    peer = await here.greet(packets.Options(pow=0.0, topics=frozenset()))
    assert not (await peer.post(envelope)).refusals


async def test_an_envelope_that_is_posted_while_history_is_fetched_comes_once(tmp_path: Path) -> None:
    """It is posted to one node, which relays it to the other: it comes live from both, and in the page of one."""
    async with inside(tmp_path / "a", clock=Today()) as a, inside(tmp_path / "b", number=2, clock=Today()) as b:
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
    async with inside(tmp_path, clock=Today()) as here:
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


async def test_live_envelopes_are_checked() -> None:
    good = fresh(9)
    async with listening(Honest([])) as (fake, enode):
        subscription = Subscribing([enode])
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        bad = [fresh(1, topic=OTHER), fresh(2, age=500), fresh(3, age=-500), fresh(4, size=5000)]
        bad.append(fresh(5, age=7200, ttl=8000))
        relay(fake, b"\xc1\x01")
        relay(fake, packets.write_envelopes([envelope.raw for envelope in bad]))
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

    async with inside(tmp_path, clock=Today()) as here:
        for post_it in (partial(post, here, fresh(1)), partial(here.archive.save, [fresh(2, age=70)], 1)):
            subscription = Subscribing([here.enode], OFTEN)
            await subscription.until_true("the first round", lambda: bool(subscription.states))  # noqa: B023
            subscription.subscriber = full
            await post_it()
            with pytest.raises(StoreError, match="no room"):
                await subscription.over()


async def test_only_a_few_failure_reasons_of_a_server_are_remembered() -> None:
    reported: list[tuple[int, str]] = []
    query = HistoryQuery(0, 1, frozenset([TOPIC]))
    subscription = _Subscription([], query, PLAIN, print, print, lambda *failure: reported.append(failure))
    failures = [(number % 2, f"failure {number}") for number in range(1000)]
    for failure in failures:
        subscription._say(*failure)
        subscription._say(*failure)
    assert reported == failures, "each once"
    assert {len(reasons) for reasons in subscription._reported.values()} == {REMEMBERED_FAILURES}


async def test_an_unreachable_server_is_reported_once_and_dialled_again(tmp_path: Path) -> None:
    gone = Enode(new_key(SystemDice()).public, "127.0.0.1", 1)
    async with inside(tmp_path, clock=Today()) as here:
        subscription = Subscribing([gone, here.enode], OFTEN)
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
    async with inside(tmp_path, clock=Today()) as here:
        await here.archive.save([fresh(1)], 1)
        here.archive.search.clear()
        subscription = Subscribing([here.enode], Intervals(grace=30.0))
        await here.until("the request", lambda: bool(here.archive.asked))
        subscription.until.set()
        here.archive.search.set()
        report = await subscription.over()
    assert (report.missing, len(subscription.came)) == ([], 1)
