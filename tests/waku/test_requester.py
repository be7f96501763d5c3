"""The requester, in simulated time: all that an honest server has, once; and a cheat costs what it may, no more."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.client.actions import Budgets, Timeouts
from restante.waku.client.inbox import Inbox
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import OVERSIZED, UNASKED, Phase
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol import completion
from restante.waku.protocol.interest import Interest
from support.effort import examples
from support.rows import every
from support.waku.errands import DROP, GO, SLOW, Errand
from support.waku.letters import EPOCH, TOPIC, letter
from support.waku.mailservers import (
    Empty,
    EndFirst,
    Endless,
    EndOnly,
    Foreign,
    Honest,
    Junk,
    Refusing,
    Repeating,
    Shuffled,
    Silent,
    Stuck,
    WrongId,
    key,
)

QUERY = HistoryQuery(EPOCH, EPOCH + 500, frozenset([TOPIC]))
LETTERS = [letter(number, age=-(number // 2)) for number in range(30)]
"""Two of each second; the query begins with the first."""
ONE_TRY = Timeouts(tries=1)
BOTH = pytest.mark.parametrize("downward", [False, True], ids=["upward", "downward"])


def hashes(envelopes: list[Envelope]) -> list[bytes]:
    return sorted(each.hash for each in envelopes)


def complete(errand: Errand, letters: list[Envelope] = LETTERS) -> Errand:
    """Everything, once."""
    errand.run()
    assert errand.report is not None
    assert errand.report.missing == []
    assert hashes(errand.handed) == hashes(letters)
    return errand


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize("size", [1, 2, 7, 15, 30, 1000])
def test_pages_are_followed_to_the_last(size: int, downward: bool) -> None:
    errand = complete(Errand(QUERY, [Honest(LETTERS, downward, size)]))
    assert errand.report is not None
    assert errand.report.counts == {"handed over": 30, "pages": 30 // size + 1}
    assert errand.report.failures == {}


def test_a_list_and_cursors_of_another_kind_will_do() -> None:
    complete(Errand(QUERY, [Honest(LETTERS, answer="list", size=7)]))
    complete(Errand(QUERY, [Shuffled(LETTERS, size=7)]))


def test_nothing_there_is_an_answer() -> None:
    errand = complete(Errand(QUERY, [Honest([])]), [])
    assert len(errand.asked) == 1


def test_what_is_asked_for() -> None:
    errand = complete(Errand(QUERY, [Honest(LETTERS, size=20)], patience=Timeouts(limit=20)))
    (_, first), (_, second) = errand.asked
    assert (first.lower, first.upper, first.limit) == (EPOCH, EPOCH + 500, 20)
    assert first.topics == frozenset([TOPIC])
    assert first.bloom == bloom.of([TOPIC]) != bloom.kept(TOPIC)
    assert first.cursor == b""
    assert second == msgspec.structs.replace(first, id=second.id, cursor=key(sorted(LETTERS, key=key)[19]))


def test_a_query_by_filter() -> None:
    query = HistoryQuery(EPOCH, EPOCH + 500, bloom=bloom.kept(TOPIC))
    others = [letter(99, topic=b"\xff" * 4)]
    errand = complete(Errand(query, [Honest(LETTERS + others)]))
    assert errand.asked[0][1].topics == frozenset()
    assert errand.asked[0][1].bloom == bloom.kept(TOPIC)


# ── failover ─────────────────────────────────────────────────────────────────────────────────────


@every(
    ("bad", "words"),
    [
        (Silent(), "it does not answer"),
        (Refusing(), "it says: rate limit exceeded"),
        (Junk(), "a byte below 80 has a length"),
        (Stuck(), "its cursor does not advance"),
        (Empty(), "its answer takes more than 50 pages"),
        (Endless(), "its answer takes more than 200 envelopes"),
        (Endless(page_size=1), "its answer takes more than 50 pages"),
        (Repeating(LETTERS[:3]), "its pages repeat"),
        (EndOnly(LETTERS), "its answer ended, and its last envelope did not come"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_after_a_bad_server_comes_a_good_one(bad: Any, words: str) -> None:
    budgets = Budgets(pages=50, envelopes=200)
    errand = Errand(QUERY, [bad, Honest(LETTERS, size=7)], budgets=budgets, patience=ONE_TRY).run()
    assert errand.report is not None
    assert errand.report.missing == []
    assert errand.report.failures == {0: words}
    counted = Counter(each.hash for each in errand.handed)
    assert max(counted.values()) == 1
    assert {each.hash for each in LETTERS} <= counted.keys()
    assert len(errand.handed) <= 200 + 30


REFUSALS = {
    "check message signature failed: wrong signature of p2p request": "it wants requests to be signed",
    "failed to decrypt p2p request": "it has another password",
    "failed to decode data: a list is expected": "it does not read requests of this form",
    "this server serves those that it was told to": "it does not know our key",
    "this server takes no plain requests": "ask it in the other form",
    "this server takes no requests in envelopes": "ask it in the other form",
    "PoW too low": "it asks for more work",
}


@every(("words", "meaning"), REFUSALS.items())
def test_a_refusal_that_lasts_is_not_asked_for_twice(words: str, meaning: str) -> None:
    errand = Errand(QUERY, [Refusing(words), Honest(LETTERS)])
    complete(errand)
    assert [server for server, _ in errand.asked] == [0, 1]
    assert errand.report is not None
    assert errand.report.failures == {0: f"it says: {words}: {meaning}"}


def test_where_every_refusal_lasts_it_is_over_at_once() -> None:
    errand = Errand(QUERY, [Refusing("request is invalid: no"), Refusing("query range is invalid")]).run()
    assert errand.now < 1
    assert errand.report is not None
    assert errand.report.missing == [(QUERY.lower, QUERY.upper)]
    assert errand.report.failures == {0: "it says: request is invalid: no", 1: "it says: query range is invalid"}


@every("words", ["rate limit exceeded", "too many requests at once", "the archive cannot be read", "busy"])
def test_a_refusal_that_may_pass_is_asked_again(words: str) -> None:
    errand = Errand(QUERY, [Refusing(words)], patience=Timeouts(tries=3)).run()
    assert len(errand.asked) == 3
    assert errand.report is not None
    assert errand.report.failures == {0: f"it says: {words}"}


@pytest.mark.parametrize("kind", [WrongId, EndFirst], ids=["wrong id", "the end first"])
def test_what_is_odd_and_loses_nothing_is_borne(kind: Any) -> None:
    errand = complete(Errand(QUERY, [kind(LETTERS, size=7)]))
    assert errand.report is not None
    assert errand.report.failures == {}


def test_what_was_not_asked_for_is_not_handed_over() -> None:
    errand = complete(Errand(QUERY, [Foreign(LETTERS)], budgets=Budgets(size=1000)))
    assert errand.report is not None
    assert errand.report.counts == {
        "handed over": 30,
        "of another topic": 1,
        "out of range": 2,
        OVERSIZED: 1,
        "pages": 1,
    }


def test_a_server_that_was_not_asked_is_not_heard() -> None:
    errand = Errand(QUERY, [Honest(LETTERS), Honest(LETTERS)])
    assert errand.core.came(1, LETTERS, errand.now) == []
    assert errand.core.ended(1, b"", errand.now) == []
    assert errand.core.lost(1, "gone", errand.now) == []
    assert errand.core.connected(1, errand.now) == []
    complete(errand)
    assert errand.report is not None
    assert errand.report.counts[UNASKED] == 30
    assert errand.core.came(0, [letter(77)], errand.now) == []


@BOTH
def test_the_next_server_is_asked_for_what_is_not_known_and_without_a_cursor(downward: bool) -> None:
    packets = iter([GO] * 9 + [DROP] + [GO] * 100)
    errand = Errand(
        QUERY,
        [Honest(LETTERS, downward, 7), Honest(LETTERS)],
        patience=ONE_TRY,
        decide=lambda what: next(packets) if what == "packet" else GO,
    )
    complete(errand)
    server, request = errand.asked[-1]
    last = errand.asked[-2][1].cursor
    assert (server, request.cursor) == (1, b"")
    sent = int.from_bytes(last[:4])
    assert (request.lower, request.upper) == ((EPOCH, sent) if downward else (sent, EPOCH + 500))
    assert {asked.cursor for number, asked in errand.asked if number == 1} == {b""}


@every("long", [2, 36])
@every(("size", "before"), [(1, 2), (7, 9)])
def test_after_cursors_of_another_kind_the_next_server_is_asked_for_everything(
    size: int, before: int, long: int
) -> None:
    """Also where they are as long as shipped ones: what names a time that was not asked for is no key."""
    packets = iter([GO] * before + [DROP] + [GO] * 100)
    errand = Errand(
        QUERY,
        [Shuffled(LETTERS, size=size, long=long), Honest(LETTERS)],
        patience=ONE_TRY,
        decide=lambda what: next(packets) if what == "packet" else GO,
    )
    assert errand.asked[0][1].cursor == b""
    complete(errand)
    assert (errand.asked[-1][1].lower, errand.asked[-1][1].upper) == (EPOCH, EPOCH + 500)


class Late(Honest):
    """Honest for two pages; then its cursor does not advance."""

    def page(self, request: Any) -> tuple[list[Envelope], bytes]:
        found, cursor = super().page(request)
        return (found, cursor) if not request.cursor else (found, request.cursor)


def test_what_came_from_a_cheat_does_not_count() -> None:
    errand = Errand(QUERY, [Late(LETTERS, size=7), Honest(LETTERS)], patience=ONE_TRY)
    complete(errand)
    assert (errand.asked[-1][1].lower, errand.asked[-1][1].upper) == (EPOCH, EPOCH + 500)
    known = [state.known.get(TOPIC.hex(), []) for state, _ in errand.saved]
    assert known[0] == [(EPOCH, EPOCH + 2)]
    assert known[1] == []
    assert known[-1] == [(EPOCH, EPOCH + 500)]


def test_the_first_server_is_preferred_and_backed_off_from() -> None:
    fails = iter([DROP])
    errand = Errand(
        QUERY,
        [Honest(LETTERS), Silent()],
        patience=Timeouts(back_off=10, answer=30),
        decide=lambda what: next(fails, GO) if what == "connect" else GO,
    )
    assert [server for server, _ in errand.asked] == [1]
    complete(errand)
    assert [server for server, _ in errand.asked] == [1, 0]


def test_who_always_fails_is_left_after_some_tries() -> None:
    errand = Errand(QUERY, [Refusing("no"), Refusing("never")], patience=Timeouts(tries=3, back_off=2)).run()
    assert errand.report is not None
    assert errand.report.missing == [(EPOCH, EPOCH + 500)]
    assert errand.report.failures == {0: "it says: no", 1: "it says: never"}
    assert Counter(server for server, _ in errand.asked) == {0: 3, 1: 3}
    assert 6 <= errand.now <= 7
    assert errand.handed == []


def test_nobody_to_ask() -> None:
    errand = Errand(QUERY, [])
    assert errand.report is not None
    assert errand.report.missing == [(EPOCH, EPOCH + 500)]


def test_seconds_are_a_budget_too() -> None:
    budgets = Budgets(seconds=100)
    errand = Errand(QUERY, [Silent()], budgets=budgets, patience=Timeouts(tries=100)).run()
    assert errand.report is not None
    assert "100 seconds" in errand.report.failures[0]
    asked = len(errand.asked)
    assert asked == 4


def test_the_pauses_that_a_server_forces_count_as_its_time() -> None:
    """It answers a page, and goes: that is no failure in a row, and would last for as many pages as there may be."""
    letters = [letter(number, age=-number) for number in range(400)]
    steps = itertools.cycle([GO, GO, DROP])
    errand = Errand(
        QUERY,
        [Honest(letters, size=1)],
        budgets=Budgets(seconds=100),
        patience=Timeouts(back_off=2),
        decide=lambda what: next(steps) if what == "packet" else GO,
    ).run()
    assert errand.report is not None
    assert "100 seconds" in errand.report.failures[0]
    assert errand.now < 110


def test_bytes_are_a_budget_too() -> None:
    size = len(LETTERS[0].raw)
    errand = Errand(QUERY, [Honest(LETTERS)], budgets=Budgets(bytes=size * 10), patience=ONE_TRY).run()
    assert errand.report is not None
    assert "bytes" in errand.report.failures[0]
    assert len(errand.handed) <= 10
    complete(Errand(QUERY, [Honest(LETTERS)], budgets=Budgets(bytes=sum(len(each.raw) for each in LETTERS))))


# ── live ─────────────────────────────────────────────────────────────────────────────────────────


def test_history_and_live_envelopes_meet_at_one_inbox() -> None:
    inbox = Inbox([Interest.named([TOPIC])])
    live = [*LETTERS[20:], letter(55, topic=b"\0\0\0\1")]
    assert inbox.new(live) == LETTERS[20:]
    errand = Errand(QUERY, [Honest(LETTERS)], inbox=inbox).run()
    assert hashes(errand.handed) == hashes(LETTERS[:20])
    assert inbox.new(LETTERS) == []


def test_an_inbox_forgets_what_came_longest_ago() -> None:
    inbox = Inbox([Interest.named([TOPIC])], remembered=3)
    assert inbox.new(LETTERS[:3]) == LETTERS[:3]
    assert inbox.new(LETTERS[2:5]) == LETTERS[3:5]
    assert inbox.new(LETTERS[:2]) == LETTERS[:2]


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def later(query: HistoryQuery, upper: int) -> HistoryQuery:
    return msgspec.structs.replace(query, upper=upper)


def test_what_is_known_is_not_asked_for_again() -> None:
    first = complete(Errand(QUERY, [Honest(LETTERS)]))
    state = first.saved[-1][0]
    assert state == FetchState({TOPIC.hex(): [(EPOCH, EPOCH + 500)]})
    again = Errand(QUERY, [Honest(LETTERS)], state=state)
    assert again.report is not None
    assert (again.report.missing, again.asked, again.handed) == ([], [], [])


def test_another_topic_has_missing_ranges_of_its_own() -> None:
    other = b"\0\0\0\1"
    state = FetchState({TOPIC.hex(): [(EPOCH, EPOCH + 100)], other.hex(): [(EPOCH + 50, EPOCH + 500)]})
    both = msgspec.structs.replace(QUERY, topics=frozenset([TOPIC, other]))
    assert state.missing(both) == [(EPOCH, EPOCH + 49), (EPOCH + 101, EPOCH + 500)]
    errand = Errand(both, [Honest(LETTERS)], state=state).run()
    assert [(each.lower, each.upper) for _, each in errand.asked] == state.missing(both)
    assert errand.saved[-1][0].known == {name: [(EPOCH, EPOCH + 500)] for name in (TOPIC.hex(), other.hex())}


def test_what_comes_late_is_found_by_asking_again_and_the_rest_is_not_handed_over_twice() -> None:
    """At 1000 the last 80 seconds are not known for good."""
    query = later(QUERY, EPOCH + 2000)
    young = [letter(number, age=-990 - number) for number in range(5)]
    first = complete(Errand(query, [Honest(LETTERS + young)]), LETTERS + young)
    state = first.saved[-1][0]
    assert state.known == {TOPIC.hex(): [(EPOCH, EPOCH + 920)]}
    late = letter(77, age=-925)
    second = Errand(query, [Honest([*LETTERS, *young, late])], state=state, wall=EPOCH + 1060.0).run()
    assert [(each.lower, each.upper) for _, each in second.asked] == [(EPOCH + 921, EPOCH + 2000)]
    assert second.handed == [late]
    state = second.saved[-1][0]
    assert state.known == {TOPIC.hex(): [(EPOCH, EPOCH + 980)]}
    assert sorted(state.recent[TOPIC.hex()].values()) == [each.sent for each in young]
    third = Errand(query, [Honest([*LETTERS, *young, late])], state=state, wall=EPOCH + 5000.0).run()
    assert third.handed == []
    assert third.saved[-1][0] == FetchState({TOPIC.hex(): [(EPOCH, EPOCH + 2000)]})


def test_a_state_goes_through_json() -> None:
    state = Errand(later(QUERY, EPOCH + 2000), [Honest([letter(1, age=-990)])]).run().saved[-1][0]
    assert state.recent
    assert msgspec.json.decode(msgspec.json.encode(state), type=FetchState) == state


@every(
    "wrong",
    [(5, 4), (0, 0), (-1, 4), (1, 1 << 32)],
)
def test_a_query_about_no_time(wrong: tuple[int, int]) -> None:
    with pytest.raises(Misuse, match="times"):
        HistoryQuery(*wrong, frozenset([TOPIC]))


def test_a_query_about_nothing_or_too_much() -> None:
    with pytest.raises(Misuse, match="about topics"):
        HistoryQuery(1, 2)
    with pytest.raises(Misuse, match="1000 topics"):
        HistoryQuery(1, 2, frozenset(number.to_bytes(4) for number in range(1001)))


# ── every interleaving ───────────────────────────────────────────────────────────────────────────


@st.composite
def archives(draw: st.DrawFn) -> list[Envelope]:
    """Some seconds have many, some none; up to and beyond both ends of the query."""
    ages = draw(st.lists(st.integers(-30, 3), max_size=40))
    return [letter(number, age=age) for number, age in enumerate(ages)]


SHORT = HistoryQuery(EPOCH, EPOCH + 25, frozenset([TOPIC]))


def asked_for(letters: list[Envelope]) -> list[Envelope]:
    return [each for each in letters if EPOCH <= each.sent <= EPOCH + 25]


def honest(data: st.DataObject, letters: list[Envelope]) -> Honest:
    kind = data.draw(st.sampled_from([Honest, Shuffled, WrongId, EndFirst]))
    return kind(
        letters,
        data.draw(st.booleans()),
        data.draw(st.integers(1, 12)),
        data.draw(st.sampled_from(["string", "list"])),
        data.draw(st.integers(1, 4)),
    )


@given(archives(), st.data())
@examples(200)
def test_whatever_happens_all_that_honest_servers_have_comes_once(
    letters: list[Envelope], data: st.DataObject
) -> None:
    troubles = data.draw(st.integers(0, 6))
    left = [troubles]

    def decide(_what: str) -> str:
        if not left[0]:
            return GO
        found = data.draw(st.sampled_from([GO, GO, GO, GO, DROP, SLOW]))
        left[0] -= found != GO
        return found

    servers = [honest(data, letters) for _ in range(data.draw(st.integers(1, 3)))]
    complete(Errand(SHORT, servers, patience=Timeouts(tries=10), decide=decide), asked_for(letters))


@given(archives(), st.data())
@examples(150)
def test_from_any_saved_state_nothing_is_lost(letters: list[Envelope], data: st.DataObject) -> None:
    """The run ends anywhere, and the next has what was saved last; twice. Some of it is young."""
    wall = EPOCH + data.draw(st.integers(60, 200))
    state, handed = FetchState(), set[bytes]()
    for _ in range(2):
        errand = Errand(SHORT, [honest(data, letters)], state=state, wall=float(wall))
        for _ in range(data.draw(st.integers(0, 20))):
            if errand.report is None:
                errand.step()
        if errand.saved:
            state, count = errand.saved[-1]
            state = msgspec.json.decode(msgspec.json.encode(state), type=FetchState)
            handed |= {each.hash for each in errand.handed[:count]}
        wall += data.draw(st.integers(0, 100))
    last = Errand(SHORT, [honest(data, letters)], state=state, wall=float(wall)).run()
    assert last.report is not None
    assert last.report.missing == []
    assert handed | {each.hash for each in last.handed} == {each.hash for each in asked_for(letters)}


ANY_LETTER = st.builds(
    letter, st.integers(0, 40), age=st.integers(-30, 3), topic=st.sampled_from([TOPIC, b"\0\0\0\1"])
)
ANY_END = st.builds(
    lambda ours, *words: lambda id_: completion.complete(id_ if ours else bytes(32), *words),
    st.booleans(),
    ANY_LETTER.map(lambda each: each.hash) | st.just(bytes(32)),
    st.sampled_from([b"", b"\1", b"\7" * 36]) | ANY_LETTER.map(key),
    st.sampled_from(["string", "list"]),
)
ANY_PACKETS = st.lists(
    st.lists(ANY_LETTER, max_size=5).map(lambda each: lambda _id: each)
    | ANY_END
    | ANY_END
    | st.just(lambda id_: completion.failure(id_, "no"))
    | st.binary(max_size=4).map(lambda each: lambda _id: each),
    max_size=6,
)
"""Each is made for the id of a request."""


class Anything:
    """Says whatever the dice say."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def packets(self, request: Any) -> Any:
        return iter([make(request.id) for make in self.data.draw(ANY_PACKETS)])


@given(archives(), st.data())
@examples(200)
def test_a_cheat_costs_at_most_the_budgets_and_the_honest_one_is_asked(
    letters: list[Envelope], data: st.DataObject
) -> None:
    budgets = Budgets(pages=5, envelopes=20, seconds=120)
    generous = 1000
    errand = Errand(
        SHORT,
        [Anything(data)],  # type: ignore[list-item] # it is none of those by name
        budgets=budgets,
        patience=Timeouts(tries=5),
    ).run()
    assert errand.report is not None
    assert len(errand.handed) <= 20
    assert errand.report.counts["pages"] <= 5
    assert errand.now <= 120 + 5 * 2 * 2**5
    assert len(errand.asked) < generous
    counted = Counter(each.hash for each in errand.handed)
    assert all(each.topic == TOPIC and SHORT.lower <= each.sent <= SHORT.upper for each in errand.handed)
    assert not counted or max(counted.values()) == 1
    assert errand.core.phase is Phase.DONE
    assert errand.core.next_timeout() is None
