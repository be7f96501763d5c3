"""`fetch` and `subscribe`: all that an honest server has, once; a cheat costs no more than it may."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from restante.common.dice import SystemDice
from restante.common.errors import Misuse, StoreError
from restante.waku.client import requester
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.inbox import Inbox
from restante.waku.client.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.waku.client.outbound_connection import NodeUnavailableError, connect
from restante.waku.client.probe import Outcome, probe
from restante.waku.client.ranges import FetchState, HistoryQuery, Range, add_range, subtract_ranges
from restante.waku.client.requester import (
    Action,
    FetchReport,
    Requester,
    RequesterPhase,
)
from restante.waku.client.subscribe import SubscriptionRun
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.mining import mine
from restante.waku.node.mailserver import EnvelopeCount
from restante.waku.protocol import completion, packets, request
from restante.waku.protocol.completion import NO_HASH
from restante.waku.protocol.interest import WANTS_EVERYTHING, Interest
from restante.waku.protocol.request import Request
from support.bounds import bounded
from support.effort import examples
from support.ports import held_port
from support.waku import fake_node
from support.waku.fake_node import SHARED, FakeNode, Honest, Mailserver, Packet, key, listening, refusing, silent
from support.waku.inside import Inside, Today, inside
from support.waku.letters import EPOCH, KEY, TOPIC, letter
from support.waku.raw_peer import NOTHING
from support.waku.virtual_time import in_virtual_time


@dataclass
class Shuffled(Honest):
    """In no order, with cursors that are its own affair: 10/WAKU-MAILSERVER allows it."""

    cursor_bytes: int = 2

    def page(self, request: Request) -> tuple[list[Envelope], bytes]:
        matching = [envelope for envelope in self.envelopes if fake_node.wanted(request, envelope)]
        matching.sort(key=lambda envelope: envelope.hash)
        start = int.from_bytes(request.cursor)
        end = start + min(self.size, request.limit)
        return matching[start:end], end.to_bytes(self.cursor_bytes) if end < len(matching) else b""


def counting(answer: Callable[[Request, int], Sequence[Packet]]) -> Mailserver:
    numbers = itertools.count(1)
    return lambda request: answer(request, next(numbers))


def end(request: Request, cursor: bytes, last_envelope: Envelope | None = None) -> bytes:
    return completion.encode(request.id, last_envelope.hash if last_envelope else NO_HASH, cursor)


def endless(request: Request, count: int) -> Sequence[Packet]:
    made = [make(request.lower + 50, 50, TOPIC, b"", 10 * count + number) for number in range(10)]
    return made, end(request, count.to_bytes(36), made[-1])


QUERY = HistoryQuery(EPOCH, EPOCH + 500, frozenset([TOPIC]))
DROP, SLOW, GO = "drop", "slow", "go"


@dataclass
class Simulation:
    """`decide` is asked at each step whether it goes well (GO), the connection drops, or a minute passes."""

    servers: Sequence[Mailserver]
    query: HistoryQuery = QUERY
    state: FetchState | None = None
    options: ConnectionOptions = DEFAULT_OPTIONS
    decide: Callable[[str], str] = lambda _what: GO
    wall: float = EPOCH + 1000.0
    now: float = 0.0
    handed: list[Envelope] = field(default_factory=list)
    saved: list[tuple[FetchState, int]] = field(default_factory=list)
    asked: list[tuple[int, Request]] = field(default_factory=list)
    report: Any = None
    lines: dict[int, deque[Packet]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = Requester(self.query, len(self.servers), Inbox(WANTS_EVERYTHING), self.state, self.options)
        self.do(self.core.start(self.now, self.wall))

    def run(self) -> Simulation:
        while self.report is None:
            self.step()
        return self

    def step(self) -> None:
        server, packets = next(((server, line) for server, line in self.lines.items() if line), (0, None))
        if packets is None:
            deadline = self.core.next_timeout()
            assert deadline is not None
            assert deadline < float("inf")
            self.now = max(self.now, deadline)
            self.do(self.core.handle_timeout(self.now))
            return
        match self.decide("packet"):
            case "drop":
                self.drop(server)
            case "slow":
                self.now += 5
                self.do(self.core.handle_timeout(self.now))
            case _:
                packet = packets.popleft()
                self.now += 0.01
                handle = self.core.request_completed if isinstance(packet, bytes) else self.core.envelopes_received
                self.do(handle(server, packet, self.now))  # type: ignore[arg-type]

    def drop(self, server: int) -> None:
        del self.lines[server]
        self.do(self.core.server_failed(server, "the connection was lost", self.now))

    def do(self, todo: list[Action]) -> None:
        for action in todo:
            assert self.report is None, "nothing comes after the report"
            match action:
                case requester.Connect(server):
                    self.lines[server] = deque()
                    if self.decide("connect") == DROP:
                        self.drop(server)
                    else:
                        self.do(self.core.connected(server, self.now))
                case requester.SendRequest(server, request):
                    request = replace(request, id=(len(self.asked) + 1).to_bytes(32))
                    self.asked.append((server, request))
                    self.do(self.core.request_sent(server, request.id, self.now))
                    self.lines[server].extend(self.servers[server](request))
                case requester.Disconnect(server):
                    self.lines.pop(server, None)
                case requester.HandOver(envelopes):
                    self.handed += envelopes
                case requester.SaveState(state):
                    self.saved.append((state, len(self.handed)))
                case requester.Finished(report):
                    self.report = report


def dropping(*steps: str, at: str = "packet") -> Callable[[str], str]:
    decisions = iter(steps)
    return lambda what: next(decisions, GO) if what == at else GO


LETTERS = [letter(number, age=-(number // 2)) for number in range(30)]
ONE_TRY = ConnectionOptions(max_failures=1)
BOTH = pytest.mark.parametrize("downward", [False, True], ids=["upward", "downward"])


def hashes(envelopes: list[Envelope]) -> list[bytes]:
    return sorted(envelope.hash for envelope in envelopes)


def complete(simulation: Simulation, letters: list[Envelope] = LETTERS) -> Simulation:
    simulation.run()
    assert simulation.report.missing == []
    assert hashes(simulation.handed) == hashes(letters)
    return simulation


@BOTH
@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_pages_are_followed_to_the_last(size: int, downward: bool) -> None:
    simulation = complete(Simulation([Honest(LETTERS, downward, size)]))
    assert (simulation.report.handed_over, len(simulation.asked)) == (30, 30 // size + 1)
    assert simulation.report.failures == {}


def test_a_request_has_the_topics_and_times_of_the_query_or_its_filter() -> None:
    simulation = complete(Simulation([Honest(LETTERS, size=20)], options=ConnectionOptions(page_envelopes=20)))
    (_, first), (_, second) = simulation.asked
    assert (first.lower, first.upper, first.limit) == (EPOCH, EPOCH + 500, 20)
    assert first.topics == frozenset([TOPIC])
    assert first.bloom == bloom.filter_of([TOPIC]) != bloom.required_bits(TOPIC)
    assert first.cursor == b""
    assert second == replace(first, id=second.id, cursor=key(sorted(LETTERS, key=key)[19]))
    query = HistoryQuery(EPOCH, EPOCH + 500, bloom=bloom.required_bits(TOPIC))
    simulation = complete(Simulation([Honest([*LETTERS, letter(99, topic=b"\xff" * 4)])], query))
    assert (simulation.asked[0][1].topics, simulation.asked[0][1].bloom) == (frozenset(), bloom.required_bits(TOPIC))


def test_only_times_that_one_of_the_topics_misses_are_requested() -> None:
    other = b"\0\0\0\1"
    state = FetchState({TOPIC.hex(): [(EPOCH, EPOCH + 100)], other.hex(): [(EPOCH + 50, EPOCH + 500)]})
    both = replace(QUERY, topics=frozenset([TOPIC, other]))
    simulation = Simulation([Honest(LETTERS)], both, state).run()
    ranges = [(request.lower, request.upper) for _, request in simulation.asked]
    assert ranges == state.missing(both) == [(EPOCH, EPOCH + 49), (EPOCH + 101, EPOCH + 500)]
    assert simulation.saved[-1][0].known == {name: [(EPOCH, EPOCH + 500)] for name in (TOPIC.hex(), other.hex())}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (silent, "it does not answer"),
        (refusing(), "it says: rate limit exceeded"),
        (counting(lambda _request, _count: [b"\x81\x01"]), "a byte below 80 is encoded with a length"),
        (counting(lambda request, _: [end(request, b"\7" * 36)]), "its cursor does not advance"),
        (counting(lambda request, count: [end(request, count.to_bytes(36))]), "its answer takes more than 50 pages"),
        (counting(endless), "its answer takes more than 200 envelopes"),
        (counting(lambda _request, _count: [[letter(1, size=4000)]]), "its answer takes more than 4,000 bytes"),
        (
            counting(lambda request, count: [LETTERS[:3], end(request, count.to_bytes(36), LETTERS[2])]),
            "its pages repeat",
        ),
        (
            counting(lambda request, _: [end(request, b"", LETTERS[2])]),
            "its answer ended, and its last envelope did not come",
        ),
    ],
    ids=itertools.count(),
)
def test_after_a_bad_server_the_next_one_is_asked(bad: Mailserver, reason: str) -> None:
    options = ConnectionOptions(max_pages=50, max_envelopes=200, max_bytes=4000, max_failures=1)
    simulation = Simulation([bad, Honest(LETTERS, size=7)], options=options).run()
    assert (simulation.report.missing, simulation.report.failures) == ([], {0: reason})
    counted = Counter(envelope.hash for envelope in simulation.handed)
    assert max(counted.values()) == 1
    assert {envelope.hash for envelope in LETTERS} <= counted.keys()
    assert len(simulation.handed) <= 200 + 30


REFUSALS = {
    "check message signature failed: wrong signature of p2p request": "the server requires signed requests",
    "failed to decrypt p2p request": "the server uses another password",
    "failed to decode data: a list is expected": "the server does not support requests of this form",
    "this server serves those that it was told to": "the server does not accept this key",
    "this server takes no plain requests": "use the other form of requests",
    "this server takes no requests in envelopes": "use the other form of requests",
    "PoW too low": "the server requires more proof of work",
}


@pytest.mark.parametrize(("text", "meaning"), REFUSALS.items())
def test_a_server_with_a_final_refusal_is_not_asked_again(text: str, meaning: str) -> None:
    simulation = complete(Simulation([refusing(text), Honest(LETTERS)]))
    assert [server for server, _ in simulation.asked] == [0, 1]
    assert simulation.report.failures == {0: f"it says: {text}: {meaning}"}


def test_unrequested_envelopes_are_not_handed_over() -> None:
    others = [letter(1, topic=b"\xff" * 4), letter(2, age=-501), letter(3, age=1), letter(4, size=2000)]

    def answer(request: Request, _count: int) -> Sequence[Packet]:
        *envelopes, end_packet = Honest(LETTERS)(request)
        return [others, *envelopes, *envelopes, end_packet]

    complete(Simulation([counting(answer)], options=ConnectionOptions(max_envelope_bytes=1000)))


def test_an_answer_of_a_server_that_was_not_asked_is_ignored() -> None:
    simulation = Simulation([Honest(LETTERS), Honest(LETTERS)])
    assert simulation.core.envelopes_received(1, LETTERS, simulation.now) == []
    assert simulation.core.request_completed(1, b"", simulation.now) == []
    assert simulation.core.server_failed(1, "gone", simulation.now) == []
    assert simulation.core.connected(1, simulation.now) == []
    complete(simulation)
    assert simulation.core.envelopes_received(0, [letter(77)], simulation.now) == []


@BOTH
def test_the_next_server_is_asked_for_unknown_times_and_without_a_cursor(downward: bool) -> None:
    servers, decide = [Honest(LETTERS, downward, 7), Honest(LETTERS)], dropping(*[GO] * 9, DROP)
    simulation = complete(Simulation(servers, options=ONE_TRY, decide=decide))
    server, request = simulation.asked[-1]
    last_cursor = simulation.asked[-2][1].cursor
    assert (server, request.cursor) == (1, b"")
    sent = int.from_bytes(last_cursor[:4])
    assert (request.lower, request.upper) == ((EPOCH, sent) if downward else (sent, EPOCH + 500))
    assert {asked.cursor for number, asked in simulation.asked if number == 1} == {b""}


class Late(Honest):
    def page(self, request: Any) -> tuple[list[Envelope], bytes]:
        envelopes, cursor = super().page(request)
        return (envelopes, cursor) if not request.cursor else (envelopes, request.cursor)


def test_answers_of_a_contradictory_server_do_not_count() -> None:
    simulation = Simulation([Late(LETTERS, size=7), Honest(LETTERS)], options=ONE_TRY)
    complete(simulation)
    assert (simulation.asked[-1][1].lower, simulation.asked[-1][1].upper) == (EPOCH, EPOCH + 500)
    known_ranges = [state.known.get(TOPIC.hex(), []) for state, _ in simulation.saved]
    assert known_ranges[:2] == [[(EPOCH, EPOCH + 2)], []]
    assert known_ranges[-1] == [(EPOCH, EPOCH + 500)]


def test_the_first_server_is_preferred_and_backed_off_from() -> None:
    options, decide = ConnectionOptions(retry_seconds=10, answer_seconds=30), dropping(DROP, at="connect")
    simulation = Simulation([Honest(LETTERS), silent], options=options, decide=decide)
    assert [server for server, _ in simulation.asked] == [1]
    complete(simulation)
    assert [server for server, _ in simulation.asked] == [1, 0]


def test_a_server_that_always_fails_is_left_after_some_tries() -> None:
    """Also where it says that it is busy: these refusals are temporary."""
    reasons = ["rate limit exceeded", "too many requests at once", "the archive cannot be read", "busy"]
    simulation = Simulation(list(map(refusing, reasons))).run()
    assert simulation.report.missing == [(EPOCH, EPOCH + 500)]
    assert simulation.report.failures == {number: f"it says: {reason}" for number, reason in enumerate(reasons)}
    assert Counter(server for server, _ in simulation.asked) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert 6 <= simulation.now <= 7


def test_pauses_that_a_server_forces_count_as_its_time() -> None:
    """It answers a page, and goes: that is no failure in a row, and would last for as many pages as there may be."""
    honest = Honest([letter(number, age=-number) for number in range(400)], size=1)
    options = ConnectionOptions(max_seconds=100)
    simulation = Simulation([honest], options=options, decide=dropping(*[GO, GO, DROP] * 400)).run()
    assert "100 seconds" in simulation.report.failures[0]
    assert simulation.now < 110


def test_an_inbox_forgets_the_earliest_arrivals() -> None:
    inbox = Inbox(Interest.of_topics([TOPIC]), max_hashes=3)
    assert inbox.filter_new(LETTERS[:3]) == LETTERS[:3]
    assert inbox.filter_new(LETTERS[2:5]) == LETTERS[3:5]
    assert inbox.filter_new(LETTERS[:2]) == LETTERS[:2]


def test_late_envelopes_are_found_by_a_repeated_request_and_others_are_not_handed_over_twice() -> None:
    query = replace(QUERY, upper=EPOCH + 2000)
    young = [letter(number, age=-990 - number) for number in range(5)]
    first = complete(Simulation([Honest(LETTERS + young)], query), LETTERS + young)
    state = first.saved[-1][0]
    assert state.known == {TOPIC.hex(): [(EPOCH, EPOCH + 920)]}
    late = letter(77, age=-925)
    second = Simulation([Honest([*LETTERS, *young, late])], query, state, wall=EPOCH + 1060.0).run()
    assert [(request.lower, request.upper) for _, request in second.asked] == [(EPOCH + 921, EPOCH + 2000)]
    assert second.handed == [late]
    state = second.saved[-1][0]
    assert state.known == {TOPIC.hex(): [(EPOCH, EPOCH + 980)]}
    assert sorted(state.recent[TOPIC.hex()].values()) == [envelope.sent for envelope in young]
    third = Simulation([Honest([*LETTERS, *young, late])], query, state, wall=EPOCH + 5000.0).run()
    assert third.handed == []
    assert third.saved[-1][0] == FetchState({TOPIC.hex(): [(EPOCH, EPOCH + 2000)]})


def test_a_query_needs_a_range_and_topics_but_not_too_many() -> None:
    for lower, upper in ((5, 4), (0, 0), (-1, 4), (1, 1 << 32)):
        with pytest.raises(Misuse, match="times"):
            HistoryQuery(lower, upper, frozenset([TOPIC]))
    with pytest.raises(Misuse, match="either topics or a bloom filter"):
        HistoryQuery(1, 2)
    with pytest.raises(Misuse, match="1000 topics"):
        HistoryQuery(1, 2, frozenset(number.to_bytes(4) for number in range(1001)))


SHORT = HistoryQuery(EPOCH, EPOCH + 25, frozenset([TOPIC]))
ARCHIVES = st.lists(st.integers(-30, 3), max_size=40).map(
    lambda ages: [letter(number, age=age) for number, age in enumerate(ages)]
)


def honest(data: st.DataObject, letters: list[Envelope]) -> Mailserver:
    """Return one of some kind; the cursors of one that is shuffled may be as long as shipped ones."""
    kind: Any = data.draw(
        st.sampled_from([Honest, partial(Shuffled, cursor_bytes=2), partial(Shuffled, cursor_bytes=36)])
    )
    answer: Any = data.draw(st.sampled_from(["string", "list"]))
    server: Mailserver = kind(
        letters, data.draw(st.booleans()), data.draw(st.integers(1, 12)), answer, data.draw(st.integers(1, 4))
    )

    def ends_first(request: Request) -> list[Packet]:
        *packets, end = server(request)
        return [end, *packets]

    def ends_another_first(request: Request) -> list[Packet]:
        other = b"\xee" * 32
        return [completion.encode(other), completion.encode_refusal(other, "it is not yours"), *server(request)]

    ways: list[Mailserver] = [server, ends_first, ends_another_first]
    return data.draw(st.sampled_from(ways))


def matching(letters: list[Envelope]) -> list[Envelope]:
    return [envelope for envelope in letters if EPOCH <= envelope.sent <= EPOCH + 25]


@given(ARCHIVES, st.data())
@examples(200)
def test_every_envelope_is_handed_over_once_whatever_happens(letters: list[Envelope], data: st.DataObject) -> None:
    remaining_failures = data.draw(st.integers(0, 6))

    def decide(_what: str) -> str:
        nonlocal remaining_failures
        what = data.draw(st.sampled_from([GO, GO, GO, GO, DROP, SLOW])) if remaining_failures else GO
        remaining_failures -= what != GO
        return what

    servers = [honest(data, letters) for _ in range(data.draw(st.integers(1, 3)))]
    complete(Simulation(servers, SHORT, options=ConnectionOptions(max_failures=10), decide=decide), matching(letters))


@given(ARCHIVES, st.data())
@examples(150)
def test_from_any_saved_state_nothing_is_lost(letters: list[Envelope], data: st.DataObject) -> None:
    wall = EPOCH + data.draw(st.integers(60, 200))
    state, handed = FetchState(), set[bytes]()
    for _ in range(2):
        simulation = Simulation([honest(data, letters)], SHORT, state, wall=float(wall))
        for _ in range(data.draw(st.integers(0, 20))):
            if simulation.report is None:
                simulation.step()
        if simulation.saved:
            state, count = simulation.saved[-1]
            state = msgspec.json.decode(msgspec.json.encode(state), type=FetchState)
            handed |= {envelope.hash for envelope in simulation.handed[:count]}
        wall += data.draw(st.integers(0, 100))
    final = Simulation([honest(data, letters)], SHORT, state, wall=float(wall)).run()
    assert final.report.missing == []
    assert handed | {envelope.hash for envelope in final.handed} == {envelope.hash for envelope in matching(letters)}


ANY_LETTER = st.builds(
    letter, st.integers(0, 40), age=st.integers(-30, 3), topic=st.sampled_from([TOPIC, b"\0\0\0\1"])
)
ANY_END = st.builds(
    lambda ours, *parts: lambda id_: completion.encode(id_ if ours else bytes(32), *parts),
    st.booleans(),
    ANY_LETTER.map(lambda envelope: envelope.hash) | st.just(bytes(32)),
    st.sampled_from([b"", b"\1", b"\7" * 36]) | ANY_LETTER.map(key),
    st.sampled_from(["string", "list"]),
)
ANY_PACKETS = st.lists(
    st.lists(ANY_LETTER, max_size=5).map(lambda envelopes: lambda _id: envelopes)
    | ANY_END
    | ANY_END
    | st.just(lambda id_: completion.encode_refusal(id_, "no"))
    | st.binary(max_size=4).map(lambda packet: lambda _id: packet),
    max_size=6,
)


@given(st.data())
@examples(200)
def test_a_cheating_server_costs_at_most_its_budgets(data: st.DataObject) -> None:
    options = ConnectionOptions(max_pages=5, max_envelopes=20, max_seconds=120, max_failures=5)
    anything: Mailserver = lambda request: [make(request.id) for make in data.draw(ANY_PACKETS)]  # noqa: E731
    simulation = Simulation([anything], SHORT, options=options).run()
    assert len(simulation.handed) <= 20
    assert simulation.now <= 120 + 5 * 2 * 2**5
    assert len(simulation.asked) <= 5 * 5
    assert {envelope.topic for envelope in simulation.handed} <= {TOPIC}
    assert all(SHORT.lower <= envelope.sent <= SHORT.upper for envelope in simulation.handed)
    assert len(set(hashes(simulation.handed))) == len(simulation.handed)
    assert simulation.core.phase is RequesterPhase.DONE
    assert simulation.core.next_timeout() is None


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))))


def seconds(ranges: list[Range]) -> set[int]:
    return {second for lower, upper in ranges for second in range(lower, upper + 1)}


@given(RANGES, RANGES)
@examples(300)
def test_ranges_that_touch_are_one_and_a_subtracted_range_is_gone(ranges: list[Range], less: list[Range]) -> None:
    merged: list[Range] = reduce(add_range, ranges, [])
    remaining = subtract_ranges(merged, less)
    assert seconds(merged) == seconds(ranges)
    assert seconds(remaining) == seconds(ranges) - seconds(less)
    for result in (merged, remaining):
        assert all(before[1] + 1 < after[0] for before, after in pairwise(result))


ENVELOPE = RequestOptions(to=SHARED)
ENVELOPE_ONCE = RequestOptions(to=SHARED, connection=ONE_TRY)


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
        assert (await probe(enode, own, 60.0)).outcome is Outcome.WELL
    assert {request.signer for request in node.asked} == node.known == {KEY.public}


async def test_a_server_that_wants_too_much_work_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.waku.client.fetch.mine", partial(mine, budget=100))
    received: list[Envelope] = []
    async with listening(Honest(LETTERS), pow=1e3) as (hungry, first), listening(Honest(LETTERS)) as (_, second):
        report = await fetch([first, second], QUERY, ENVELOPE_ONCE, received.extend)
        assert "the server requires more proof of work than we accept" in report.failures[0]
        assert (report.missing, hungry.asked, hungry.wrong) == ([], [], [])
        assert (await fetch([first], QUERY, RequestOptions(form="plain"), lambda _: None)).missing == []


@in_virtual_time
async def test_servers_that_fail_are_left_for_one_that_answers_from_what_is_known() -> None:
    def one_page(request: Request) -> Iterable[Packet]:
        if not request.cursor:
            return Honest(LETTERS, size=20)(request)
        for connection in node.connections:
            connection.abort()
        return ()

    received: list[Envelope] = []
    with held_port() as port:
        async with (
            listening(silent) as (_, first),
            listening(refusing()) as (_, second),
            listening(one_page) as (node, third),
            listening(Honest(LETTERS), pow=1e-3) as (working, fourth),
        ):
            nobody = Enode(new_key(SystemDice()).public, "127.0.0.1", port)
            servers = [nobody, first, second, third, fourth]
            report = await fetch(servers, QUERY, ENVELOPE_ONCE, received.extend)
    assert (report.missing, hashes(received), working.wrong) == ([], hashes(LETTERS), [])
    assert [(request.lower, request.cursor) for request in working.asked] == [(EPOCH + 9, b"")]
    assert "it disconnected: " in report.failures.pop(3)
    assert report.failures == {
        0: f"cannot connect to 127.0.0.1:{port}: Connection refused",
        1: "it does not answer",
        2: "it says: rate limit exceeded",
    }


async def test_history_from_an_untrusted_peer_is_ignored() -> None:
    async with listening(Honest(LETTERS)) as (node, enode), connect(enode) as connection:
        asked = Request(id=bytes(32), lower=EPOCH, upper=EPOCH + 1, topics=frozenset([TOPIC]))
        connection.send_request(request.encode(asked))
        responses = await asyncio.gather(connection.offer(letter(99)), connection.offer(letter(99)))
        assert [response is not None and response.refusals for response in responses] == [(), ()]
        assert len(node.asked) == 1
        for peer in list(node.connections):
            peer.abort()
        await connection.wait_closed()
        with pytest.raises(NodeUnavailableError, match="the node disconnected: "):
            await connection.offer(letter(98))


PROBES: dict[str, tuple[dict[str, Any], Outcome, str]] = {
    "well": ({}, Outcome.WELL, "all is well: posted, and fetched in"),
    "well, unconfirmed": ({"says_so": False, "confirms": False}, Outcome.WELL, "all is well"),
    "does not greet": ({"greets": False}, Outcome.SILENT, "the node disconnected: "),
    "does not confirm": ({"confirms": False}, Outcome.UNCONFIRMED, "did not confirm the envelope within"),
    "refuses": ({"refuses": "full"}, Outcome.UNCONFIRMED, ": full"),
    "missing": ({"archives": False}, Outcome.MISSING, "the posted envelope is missing"),
    "no mailserver": ({"mailserver": None}, Outcome.UNANSWERED, "it does not answer"),
    "error": ({"mailserver": refusing("no"), "archives": False}, Outcome.REFUSED, "with an error: no"),
}


@pytest.mark.parametrize(("options", "outcome", "text"), PROBES.values(), ids=PROBES)
@in_virtual_time
async def test_a_probe_reports_each_outcome(options: dict[str, Any], outcome: Outcome, text: str) -> None:
    async with listening(**{"mailserver": Honest([]), **options}) as (_, enode):
        result = await probe(enode, ENVELOPE, 60.0)
    assert result.outcome is outcome
    assert text in result.explanation


class Tardy(Honest):
    asked = 0

    def __call__(self, request: Request) -> Iterator[Packet]:
        self.asked += 1
        return super().__call__(request) if self.asked > 1 else Honest([])(request)


@in_virtual_time
async def test_a_probe_asks_again_if_the_envelope_is_not_archived_yet_and_reports_who_cannot_be_reached() -> None:
    tardy = Tardy([])
    async with listening(tardy) as (_, enode):
        result = await probe(enode, ENVELOPE, 60.0)
    assert (result.outcome, tardy.asked) == (Outcome.WELL, 2)
    result = await probe(enode, ENVELOPE, 60.0)
    assert (result.outcome, "Connection refused" in result.explanation) == (Outcome.UNREACHABLE, True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = await probe(Enode(enode.public, *silent.getsockname()), ENVELOPE, 60.0)
    assert (result.outcome, "no Hello arrived" in result.explanation) == (Outcome.SILENT, True)


QUICK = ConnectionOptions(first_delay_seconds=0.01, max_delay_seconds=0.02, retry_seconds=0.01, max_failures=1)
RARELY = replace(QUICK, answer_seconds=60.0, stop_seconds=0.1, history_seconds=3600.0, max_envelope_bytes=1000)
OFTEN = replace(RARELY, history_seconds=0.01)


def fresh(number: int, **fields: Any) -> Envelope:
    return letter(number, now=int(time.time()), **fields)


class Subscribing:
    def __init__(self, servers: list[Enode], options: ConnectionOptions = RARELY) -> None:
        self.received: list[Envelope] = []
        self.failures: list[tuple[int, str]] = []
        self.states: list[FetchState] = []
        self.until = asyncio.Event()
        self.subscriber: Callable[[list[Envelope]], None] = self.received.extend
        now = int(time.time())
        self._task = asyncio.create_task(
            SubscriptionRun(
                servers,
                HistoryQuery(now - 3600, now, frozenset([TOPIC])),
                RequestOptions(form="plain", connection=options),
                lambda envelopes: self.subscriber(envelopes),  # noqa: PLW0108 - a test may set another one
                keep=lambda state: self.states.append(state.copy()),
                on_failure=lambda *failure: self.failures.append(failure),
            ).run(self.until)
        )

    async def has(self, *envelopes: Envelope) -> None:
        hashes = {envelope.hash for envelope in envelopes}
        await self.until_true("the envelopes", lambda: hashes <= {envelope.hash for envelope in self.received})

    async def until_true(self, what: str, holds: Callable[[], bool]) -> None:
        async with bounded(what):
            while not holds() and not self._task.done():  # noqa: ASYNC110 - it is nobody's event
                await asyncio.sleep(0)
        assert holds(), self._task

    async def over(self) -> FetchReport:
        async with bounded("the end"):
            return await self._task

    async def stop(self) -> FetchReport:
        self.until.set()
        return await self.over()


async def post(here: Inside, envelope: Envelope) -> None:
    peer = await here.greet(NOTHING)
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
        await b.until("the archive", lambda: b.node.mailserver.counts[EnvelopeCount.NEW] == 1)
        await b.archived()
        b.archive.search.set()
        await subscription.has(old, new)
        await subscription.until_true("more rounds", lambda: len(b.archive.asked) > 2)
        report = await subscription.stop()
        joined.cancel()
        await asyncio.gather(joined, return_exceptions=True)
    assert subscription.received == [new, old]
    assert (report.missing, report.handed_over) == ([], 2)


async def test_envelopes_missed_during_a_lost_connection_come_as_history(tmp_path: Path) -> None:
    async with inside(tmp_path, clock=Today()) as here:
        subscription = Subscribing([here.enode])
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        missed = fresh(1)
        await here.archive.save([missed], 1)  # and nobody relays it
        for connection in list(here.node.connections):
            connection.abort()
        await subscription.has(missed)
        live = fresh(2)
        await here.until("a connection", lambda: bool(here.node.relay.interests))
        await post(here, live)
        await subscription.has(live)
        await subscription.stop()
    assert subscription.received == [missed, live]
    assert [text.startswith("it disconnected: ") for _, text in subscription.failures] == [True]


async def test_live_envelopes_are_checked() -> None:
    good = fresh(9)
    async with listening(Honest([])) as (fake, enode):
        subscription = Subscribing([enode])
        await subscription.until_true("the first round", lambda: bool(subscription.states))
        bad = [fresh(1, topic=b"else"), fresh(2, age=500), fresh(3, age=-500), fresh(4, size=5000)]
        bad.append(fresh(5, age=7200, ttl=8000))
        relay(fake, b"\xc1\x01")
        relay(fake, packets.write_envelopes([envelope.raw for envelope in bad]))
        relay(fake, packets.write_envelopes([good.raw, good.raw]))
        await subscription.has(good)
        many = [fresh(number, size=900) for number in range(100, 200)]
        relay(fake, packets.write_envelopes([envelope.raw for envelope in many]))  # so much is read in slices
        relay(fake, packets.write_envelopes([envelope.raw for envelope in many])[:-1])
        await subscription.has(*many)
        await subscription.stop()
    assert subscription.received == [good, *many]


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
    assert [server for server, _ in subscription.failures] == [0]
    alone = Subscribing([gone])
    await alone.until_true("a failure", lambda: bool(alone.failures))
    [(lower, upper)] = (await alone.stop()).missing
    assert upper - lower >= 3600


async def test_an_answer_under_way_is_completed(tmp_path: Path) -> None:
    async with inside(tmp_path, clock=Today()) as here:
        await here.archive.save([fresh(1)], 1)
        here.archive.search.clear()
        subscription = Subscribing([here.enode], replace(RARELY, stop_seconds=30.0))
        await here.until("the request", lambda: bool(here.archive.asked))
        subscription.until.set()
        here.archive.search.set()
        report = await subscription.over()
    assert (report.missing, len(subscription.received)) == ([], 1)
