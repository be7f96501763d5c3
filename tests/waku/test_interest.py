"""Who wants what: the map gives the very peers that asking each of them would, each once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from restante.waku.envelope import bloom
from restante.waku.protocol import interest
from restante.waku.protocol.interest import MAX_LISTED_TOPICS, WANTS_EVERYTHING, Interest, Interests
from support.effort import examples

TOPICS = [bytes((first, 2, 3, last)) for first in range(3) for last in (0, 1, 4)]
"""Some share bits of a filter; 01020304 keeps two bits of three in status-go."""

OTHERS = [number.to_bytes(4, "big") for number in range(1 << 30, (1 << 30) + MAX_LISTED_TOPICS + 1)]
"""Enough for an interest that is looked into."""


def test_both_forms_of_a_filter_let_through_a_topic_whose_bits_meet_in_a_byte() -> None:
    """status-go keeps {byte 0: 04, byte 32: 08} of 01020304; 6/WAKU1 and nim-waku have 06 in byte 0."""
    topic = b"\1\2\3\4"
    overwritten = int.from_bytes(b"\4" + bytes(31) + b"\x08" + bytes(31), "little")
    ored = int.from_bytes(b"\6" + bytes(31) + b"\x08" + bytes(31), "little")
    assert Interest(bloom=overwritten).wants(topic)
    assert Interest(bloom=ored).wants(topic)
    assert not Interest(bloom=ored ^ 4).wants(topic)


@given(st.sets(st.binary(min_size=4, max_size=4), max_size=20), st.binary(min_size=4, max_size=4))
def test_an_interest_wants_what_it_names(topics: set[bytes], topic: bytes) -> None:
    named = Interest.named(topics)
    assert named.wants(topic) is (topic in topics)
    assert all(map(named.wants, topics))
    assert sorted(named.few() or []) == sorted(topics)


@pytest.mark.parametrize(("count", "few"), [(MAX_LISTED_TOPICS, True), (MAX_LISTED_TOPICS + 1, False)])
def test_few_topics_are_listed_and_many_are_not(count: int, few: bool) -> None:
    assert (Interest.named(OTHERS[:count]).few() is not None) is few


named = st.lists(st.sampled_from(TOPICS), unique=True).map(Interest.named)
interests = st.one_of(
    named,
    st.lists(st.sampled_from(TOPICS), unique=True).map(lambda some: Interest.named([*some, *OTHERS])),
    st.lists(st.sampled_from(TOPICS)).map(lambda some: Interest(bloom=bloom.of(some))),
    st.integers(0, 511).map(lambda bit: Interest(bloom=bloom.ALL_BITS ^ 1 << bit)),
    st.just(WANTS_EVERYTHING),
    st.just(Interest.named([])),
    st.just(Interest(bloom=0)),
)


class TheMap(RuleBasedStateMachine):
    """Beside it, what each peer said last."""

    def __init__(self) -> None:
        super().__init__()
        self.interests: Interests[int] = Interests()
        self.said: dict[int, Interest] = {}

    @rule(peer=st.integers(0, 5), said=interests)
    def put(self, peer: int, said: Interest) -> None:
        assert self.interests.put(peer, said) == self.said.get(peer)
        self.said[peer] = said

    @rule(peer=st.integers(0, 5))
    def drop(self, peer: int) -> None:
        assert self.interests.drop(peer) == self.said.pop(peer, None)

    @rule(topic=st.sampled_from(TOPICS))
    def who_wants(self, topic: bytes) -> None:
        """Ask in between, so that some answers are remembered while peers change their minds."""
        self.agrees(topic)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert len(self.interests) == len(self.said)

    def agrees(self, topic: bytes) -> None:
        wanting = list(self.interests.wanting(topic))
        assert sorted(wanting) == [peer for peer, said in sorted(self.said.items()) if said.wants(topic)]
        assert self.interests.wanted(topic) is bool(wanting)

    def teardown(self) -> None:
        for topic in (*TOPICS, OTHERS[0], b"\xff\xff\xff\xff"):
            self.agrees(topic)
        for peer in list(self.said):
            self.interests.drop(peer)
        left: dict[str, Any] = dict(vars(self.interests))
        passing = left.pop("_passing")
        assert not any(left.values()), left
        assert not any(passing.values()), passing


TestTheMap = TheMap.TestCase
TestTheMap.settings = examples(60, 30)


def test_the_number_of_remembered_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "REMEMBERED_TOPICS", 3)
    all_of_them: Interests[str] = Interests()
    all_of_them.put("a", Interest(bloom=bloom.of(TOPICS[:2])))
    for _ in range(2):
        for topic in TOPICS:
            assert list(all_of_them.wanting(topic)) == (["a"] if bloom.passes(bloom.of(TOPICS[:2]), topic) else [])
    assert len(all_of_them._passing) == 3
