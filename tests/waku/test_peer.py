"""A conversation with a peer; filters; and who wants what: the map gives the peers that asking all of them would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from restante.waku.devp2p.hello import CAPABILITY_LENGTHS
from restante.waku.envelope import bloom
from restante.waku.protocol import interest
from restante.waku.protocol import packets as waku_packets
from restante.waku.protocol.interest import MAX_LISTED_TOPICS, WANTS_EVERYTHING, WANTS_NOTHING, Interest, Interests
from restante.waku.protocol.packets import Options
from restante.waku.protocol.peer import (
    DEFAULT_POW,
    Changed,
    Greeted,
    Offered,
    Peer,
    Violation,
)
from support.effort import examples
from support.vectors import load
from support.waku.letters import TOPIC

VECTORS = load("wire")
CAPTURED = [bytes.fromhex(vector["wire"]) for vector in VECTORS["options"]]
NAMES_NOTHING = b"\xc0"


def greeted(options: Options | None = None) -> Peer:
    peer = Peer()
    assert peer.receive(waku_packets.STATUS, waku_packets.write_options(options or Options())) == Greeted()
    return peer


def test_a_status_says_what_a_peer_wants_and_an_empty_one_is_a_full_node_s_with_the_default_work() -> None:
    """status-go's defaults (waku/v1/status_options.go:106-134)."""
    peer = greeted()
    assert (peer.pow, peer.interest) == (DEFAULT_POW, WANTS_EVERYTHING)
    assert peer.interest.wants(TOPIC)
    peer = greeted(Options(pow=0.5, light=True, bloom=bloom.of([TOPIC])))
    assert (peer.pow, peer.interest) == (0.5, Interest(bloom=bloom.of([TOPIC])))
    named = greeted(Options(topics=frozenset([TOPIC]), bloom=bloom.ALL_BITS))
    assert named.interest == Interest.named([TOPIC]), "named topics take precedence over a filter"


def test_violations_are_counted_up_to_a_number_and_the_conversation_continues() -> None:
    peer = greeted()
    for code in (waku_packets.MESSAGES, waku_packets.BATCH_ACK, waku_packets.STATUS_UPDATE):
        violation = peer.receive(code, b"\xc1")
        assert isinstance(violation, Violation)
        assert peer.receive(code, b"\xc1") == violation
    assert peer.violations is not None
    assert peer.score == peer.violations.total() == 6
    assert peer.receive(waku_packets.MESSAGES, NAMES_NOTHING) == Offered([])
    for number in range(100):
        peer.count_violation(f"violation {number}")
    peer.count_violation("violation 0", 5)
    assert (len(peer.violations), peer.violations["violation 0"]) == (32, 6)


def update(peer: Peer, options: Options) -> object:
    return peer.receive(waku_packets.STATUS_UPDATE, waku_packets.write_options(options))


def test_an_update_changes_only_the_options_that_it_names() -> None:
    """A later filter replaces topics: in status-go, too, setting one unsets the other (waku/v1/peer.go)."""
    peer = greeted(Options(pow=0.5, light=True, topics=frozenset([TOPIC])))
    interest = peer.interest
    assert update(peer, Options(pow=0.75)) is None
    assert update(peer, Options(pow=0.25)) == Changed(WANTS_NOTHING)  # of all topics, there may be more for it
    assert (peer.pow, peer.interest) == (0.25, interest)
    assert update(peer, Options(light=False)) is None
    assert (peer.pow, peer.interest) == (0.25, interest)
    assert update(peer, Options(packets=(1, 2, 3), confirmations=False)) is None
    assert update(peer, Options(topics=frozenset([TOPIC]))) is None
    assert update(peer, Options(topics=frozenset())) == Changed(interest)
    assert (peer.pow, peer.interest) == (0.25, Interest.named([]))
    assert update(peer, Options(bloom=bloom.ALL_BITS)) == Changed(Interest.named([]))
    assert peer.interest == WANTS_EVERYTHING


@given(
    st.lists(
        st.tuples(st.integers(0, CAPABILITY_LENGTHS["waku"] - 1), st.sampled_from(CAPTURED) | st.binary(max_size=60))
    )
)
def test_after_a_good_status_nothing_is_an_error(packets: list[tuple[int, bytes]]) -> None:
    peer = greeted()
    for code, payload in packets:
        peer.receive(code, payload)
    assert peer.pow >= 0
    assert peer.greeted


TOPICS = [bytes((first, 2, 3, last)) for first in range(3) for last in (0, 1, 4)]
"""Some share bits of a filter; 01020304 keeps two bits of three in status-go."""

OTHERS = [number.to_bytes(4, "big") for number in range(1 << 30, (1 << 30) + MAX_LISTED_TOPICS + 1)]
"""Enough for an interest that is looked into."""


def wire(places: dict[str, str]) -> bytes:
    """Read a filter as the vectors write it."""
    filled = bytearray(bloom.FILTER_BYTES)
    for at, byte in places.items():
        filled[int(at)] = int(byte, 16)
    return bytes(filled)


def test_both_forms_of_a_filter_are_those_of_the_vectors() -> None:
    for vector in load("blooms"):
        topic = bytes.fromhex(vector["topic"])
        assert bloom.write(bloom.kept(topic)) == wire(vector["kept"])
        assert bloom.write(bloom.of([topic])) == wire(vector["of"])
    # status-go keeps {byte 0: 04, byte 32: 08} of 01020304; 6/WAKU1 and nim-waku have 06 in byte 0.
    overwritten, ored = bloom.read(wire({"0": "04", "32": "08"})), bloom.read(wire({"0": "06", "32": "08"}))
    assert Interest(bloom=overwritten).wants(b"\1\2\3\4")
    assert Interest(bloom=ored).wants(b"\1\2\3\4")
    assert not Interest(bloom=ored ^ 4).wants(b"\1\2\3\4")


four_bytes = st.binary(min_size=4, max_size=4)


@given(st.lists(four_bytes, min_size=1, max_size=5), four_bytes)
@examples(300)
def test_a_filter_lets_its_topics_through_in_either_form(asked: list[bytes], other: bytes) -> None:
    overwritten = 0
    for topic in asked:  # as status-go asks: the overwritten filters of the topics, together
        kept = bloom.kept(topic)
        assert kept & bloom.of([topic]) == kept != 0
        assert kept.bit_count() <= bloom.of([topic]).bit_count() <= 3
        overwritten |= kept
    for asking in (bloom.of(asked), overwritten):
        assert all(bloom.passes(asking, topic) for topic in asked)
        assert bloom.passes(asking, other) == (asking | bloom.kept(other) == asking)
        assert bloom.read(bloom.write(asking)) == asking


def test_no_filter_means_a_full_node_and_a_filter_of_zeros_matches_nothing() -> None:
    assert bloom.read(b"") == bloom.ALL_BITS == bloom.read(b"\xff" * 64)
    assert bloom.read(bytes(64)) == bloom.of([]) == 0
    assert bloom.passes(bloom.ALL_BITS, b"abcd")
    assert not bloom.passes(0, b"abcd")


@given(st.sets(four_bytes, max_size=20), four_bytes)
def test_an_interest_wants_what_it_names_and_lists_few_topics(topics: set[bytes], topic: bytes) -> None:
    named = Interest.named(topics)
    assert named.wants(topic) is (topic in topics)
    assert all(map(named.wants, topics))
    assert sorted(named.few() or []) == sorted(topics)
    assert Interest.named(OTHERS[:-1]).few() is not None
    assert Interest.named(OTHERS).few() is None


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
        self.latest: dict[int, Interest] = {}

    @rule(peer=st.integers(0, 5), interest=interests)
    def put(self, peer: int, interest: Interest) -> None:
        assert self.interests.put(peer, interest) == self.latest.get(peer)
        self.latest[peer] = interest

    @rule(peer=st.integers(0, 5))
    def drop(self, peer: int) -> None:
        assert self.interests.drop(peer) == self.latest.pop(peer, None)

    @rule(topic=st.sampled_from(TOPICS))
    def who_wants(self, topic: bytes) -> None:
        """Also in between, so that some answers are remembered while peers change their minds."""
        wanting = list(self.interests.wanting(topic))
        assert sorted(wanting) == [peer for peer, interest in sorted(self.latest.items()) if interest.wants(topic)]
        assert self.interests.wanted(topic) is bool(wanting)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert len(self.interests) == len(self.latest)

    def teardown(self) -> None:
        for topic in (*TOPICS, OTHERS[0], b"\xff\xff\xff\xff"):
            self.who_wants(topic)
        for peer in list(self.latest):
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
