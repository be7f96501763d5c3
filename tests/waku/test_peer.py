"""Packets are what status-go sends; a conversation with a peer; filters; and who wants what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from restante.common.errors import PeerError
from restante.waku.devp2p.hello import CAPABILITY_CODES
from restante.waku.envelope import bloom
from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol import interest, packets
from restante.waku.protocol.interest import MAX_LISTED_TOPICS, WANTS_EVERYTHING, WANTS_NOTHING, Interest, Interests
from restante.waku.protocol.packets import Options, Refusal, Response
from restante.waku.protocol.peer import DEFAULT_POW, Answered, Changed, Greeted, Offered, Peer, Violation
from support.effort import examples
from support.mutation import mutated
from support.vectors import load
from support.waku.letters import TOPIC, letter

VECTORS = load("wire")


def named(section: str) -> pytest.MarkDecorator:
    vectors: list[dict[str, Any]] = VECTORS[section]
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.get("name", vector["wire"][:12]))


def options_of(vector: dict[str, Any]) -> Options:
    values: dict[str, Any] = dict(vector)
    if "bloom" in vector:
        values["bloom"] = bloom.parse(bytes.fromhex(vector["bloom"]))
    if "topics" in vector:
        values["topics"] = frozenset(map(bytes.fromhex, vector["topics"]))
    for name in values.keys() & {"packets", "bytes"}:
        values[name] = tuple(values[name])
    return Options(**values)


@named("options")
def test_options_are_read_and_written_as_status_go_writes_them(vector: dict[str, Any]) -> None:
    options = options_of(vector["options"])
    assert packets.read_options(bytes.fromhex(vector["wire"])) == options
    if vector["ours"]:
        assert packets.write_options(options).hex() == vector["wire"]


REFUSED = [
    (read, vector["wire"], vector["words"])
    for section, read in (
        ("no options", packets.read_options),
        ("no envelopes", packets.read_envelopes),
        ("no responses", packets.read_response),
    )
    for vector in VECTORS[section]
]


@pytest.mark.parametrize(("read", "wire", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_packet_is_refused(read: Callable[[bytes], object], wire: str, text: str) -> None:
    with pytest.raises(RlpError, match=text):
        read(bytes.fromhex(wire))


limits = st.tuples(*[st.integers(0, 2**64 - 1)] * 3)
options = st.builds(
    Options,
    pow=st.none() | st.floats(0, allow_infinity=False).map(abs),
    bloom=st.none() | st.integers(0, bloom.ALL_BITS),
    light=st.none() | st.booleans(),
    confirmations=st.none() | st.booleans(),
    packets=st.none() | limits,
    topics=st.none() | st.frozensets(st.binary(min_size=4, max_size=4), max_size=20),
    bytes=st.none() | limits,
)


@given(options)
def test_written_options_are_read_back(given_options: Options) -> None:
    assert packets.read_options(packets.write_options(given_options)) == given_options


def test_a_status_has_up_to_ten_thousand_topics_and_65536_bytes() -> None:
    topics = [number.to_bytes(4, "big") for number in range(packets.MAX_INTEREST_TOPICS + 1)]
    most = Options(topics=frozenset(topics[:-1]), bloom=bloom.ALL_BITS, packets=(2**64 - 1,) * 3)
    assert len(packets.read_options(packets.write_options(most)).topics or ()) == packets.MAX_INTEREST_TOPICS
    with pytest.raises(RlpError, match="more than 10000 topics"):
        packets.read_options(oracle.encode([[5, topics]]))
    longest = oracle.encode([[9, bytes(packets.MAX_STATUS_BYTES - 10)]])
    assert packets.read_options(longest) == Options()
    with pytest.raises(RlpError, match="more than 65536 bytes"):
        packets.read_options(longest + b"\0")


@named("envelopes")
def test_an_envelope_is_read_and_written(vector: dict[str, Any]) -> None:
    body = bytes.fromhex(vector["wire"])
    [envelope] = packets.read_envelopes(body)
    assert (envelope.expiry, envelope.ttl, envelope.nonce) == (vector["expiry"], vector["ttl"], vector["nonce"])
    assert (envelope.topic.hex(), envelope.data.hex()) == (vector["topic"], vector["data"])
    assert envelope.hash.hex() == vector["hash"]
    assert packets.write_envelopes([envelope.raw]) == body


def test_more_envelopes_than_a_packet_can_sensibly_have_are_refused() -> None:
    raw, most = letter(7, size=0).raw, packets.MAX_PACKET_ENVELOPES
    assert len(packets.read_envelopes(packets.write_envelopes([raw] * most))) == most
    with pytest.raises(RlpError, match="more than 50000 envelopes"):
        packets.read_envelopes(packets.write_envelopes([raw] * (most + 1)))


@pytest.mark.parametrize(("more", "expected"), [(0, [2]), (1, [1, 1])])
def test_packets_of_several_envelopes_have_room_to_spare_and_one_alone_may_need_all_of_it(
    more: int, expected: list[int]
) -> None:
    first = letter(1, size=500_000).raw
    head = len(first) - 500_000
    second = letter(2, size=packets.MAX_PACKET_BYTES - 16 + more - len(first) - head).raw
    assert len(first + second) == packets.MAX_PACKET_BYTES - 16 + more
    assert [len(part) for part in packets.split_for_packets([first, second])] == expected
    alone = letter(3, size=packets.MAX_ENVELOPE_BYTES - head).raw
    assert len(alone) == packets.MAX_ENVELOPE_BYTES
    assert list(packets.split_for_packets([second, alone, first])) == [[second], [alone], [first]]
    too_large = letter(3, size=packets.MAX_ENVELOPE_BYTES - head + 1).raw
    assert list(packets.split_for_packets([second, too_large, alone])) == [[second], [alone]]


@given(
    st.lists(st.integers(20, 300) | st.integers(300_000, packets.MAX_PACKET_BYTES - 40), max_size=9),
    st.sampled_from([0, 500, packets.MAX_ENVELOPES_BYTES, packets.MAX_ENVELOPE_BYTES]),
)
def test_envelopes_in_one_piece_are_split_alike(sizes: list[int], most: int) -> None:
    raws = [letter(number, size=size).raw for number, size in enumerate(sizes)]
    whole, stops = b"".join(raws), list(accumulate(map(len, raws)))
    starts = [0, *stops]
    parts = [[whole[starts[at] : stops[at]] for at in part] for part in packets.packet_ranges(stops, most)]
    assert parts == list(packets.split_for_packets(raws, most))


@named("acks")
def test_a_batch_ack_is_read_in_both_forms(vector: dict[str, Any]) -> None:
    packet = bytes.fromhex(vector["packet"])
    assert packets.read_ack(bytes.fromhex(vector["wire"])) == packet
    assert (packets.write_ack(packet).hex() == vector["wire"]) is vector["ours"]


@named("responses")
def test_a_response_is_read_and_written(vector: dict[str, Any]) -> None:
    packet = bytes.fromhex(vector["packet"])
    refusals = tuple(Refusal(bytes.fromhex(digest), code, text) for digest, code, text in vector["refusals"])
    response = Response(packet, refusals)
    assert packets.read_response(bytes.fromhex(vector["wire"])) == response
    assert (packets.write_response(response).hex() == vector["wire"]) is vector["ours"]


SENT = [
    bytes.fromhex(vector["wire"]) for section in VECTORS.values() if isinstance(section, list) for vector in section
]


READERS = (packets.read_options, packets.read_envelopes, packets.read_ack, packets.read_response)


@given(st.sampled_from(READERS), st.binary(max_size=100) | mutated(st.sampled_from(SENT)))
@examples(400)
def test_readers_raise_nothing_but_peer_errors(read: Callable[[bytes], object], payload: bytes) -> None:
    try:
        read(payload)
    except PeerError as error:
        assert error.code == 2  # noqa: PT017 - "breach of protocol"


CAPTURED = [bytes.fromhex(vector["wire"]) for vector in VECTORS["options"]]


def greeted(options: Options | None = None) -> Peer:
    peer = Peer()
    assert peer.receive(packets.STATUS, packets.write_options(options or Options())) == Greeted()
    return peer


def test_a_status_says_what_a_peer_wants_and_an_empty_one_is_a_full_node_s_with_the_default_work() -> None:
    """status-go's defaults (waku/v1/status_options.go:106-134)."""
    peer = greeted()
    assert (peer.pow, peer.interest) == (DEFAULT_POW, WANTS_EVERYTHING)
    assert peer.interest.wants(TOPIC)
    peer = greeted(Options(pow=0.5, light=True, bloom=bloom.filter_of([TOPIC])))
    assert (peer.pow, peer.interest) == (0.5, Interest(bloom=bloom.filter_of([TOPIC])))
    named = greeted(Options(topics=frozenset([TOPIC]), bloom=bloom.ALL_BITS))
    assert named.interest == Interest.of_topics([TOPIC]), "named topics take precedence over a filter"


def test_after_a_violation_the_conversation_continues() -> None:
    peer = greeted()
    for code in (packets.MESSAGES, packets.BATCH_ACK, packets.STATUS_UPDATE):
        assert peer.receive(code, b"\xc1") == peer.receive(code, b"\xc1") == Violation(code)
    assert peer.receive(packets.MESSAGES, b"\xc0") == Offered([])


def test_a_response_that_is_too_large_to_be_read_is_no_violation() -> None:
    """It names what an honest peer did not archive, and the node needs none of it."""
    peer, refusal = greeted(), Refusal(bytes(32), packets.OTHER_ERROR, "")
    for count, read in ((3_000, True), (packets.MAX_REFUSALS, False)):
        response = Response(bytes(32), (refusal,) * count)
        event = peer.receive(packets.MESSAGE_RESPONSE, packets.write_response(response))
        assert event == (Answered(response) if read else None)


def update(peer: Peer, options: Options) -> object:
    return peer.receive(packets.STATUS_UPDATE, packets.write_options(options))


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
    assert (peer.pow, peer.interest) == (0.25, Interest.of_topics([]))
    assert update(peer, Options(bloom=bloom.ALL_BITS)) == Changed(Interest.of_topics([]))
    assert peer.interest == WANTS_EVERYTHING


@given(st.lists(st.tuples(st.integers(0, CAPABILITY_CODES - 1), st.sampled_from(CAPTURED) | st.binary(max_size=60))))
def test_after_a_good_status_nothing_is_an_error(packets: list[tuple[int, bytes]]) -> None:
    peer = greeted()
    for code, payload in packets:
        peer.receive(code, payload)
    assert peer.pow >= 0
    assert peer.greeted


TOPICS = [bytes((first, 2, 3, last)) for first in range(3) for last in (0, 1, 4)]
"""Some share bits of a filter; 01020304 keeps two bits of three in status-go."""

OTHERS = [number.to_bytes(4, "big") for number in range(1 << 30, (1 << 30) + MAX_LISTED_TOPICS + 1)]


def wire(bytes_set: dict[str, str]) -> bytes:
    filled = bytearray(bloom.FILTER_BYTES)
    for at, byte in bytes_set.items():
        filled[int(at)] = int(byte, 16)
    return bytes(filled)


def test_both_forms_of_a_filter_are_those_of_the_vectors() -> None:
    for vector in load("blooms"):
        topic = bytes.fromhex(vector["topic"])
        assert bloom.encode(bloom.required_bits(topic)) == wire(vector["kept"])
        assert bloom.encode(bloom.filter_of([topic])) == wire(vector["of"])
    # status-go keeps {byte 0: 04, byte 32: 08} of 01020304; 6/WAKU1 and nim-waku have 06 in byte 0.
    overwritten, ored = (bloom.parse(wire(bits)) for bits in ({"0": "04", "32": "08"}, {"0": "06", "32": "08"}))
    assert Interest(bloom=overwritten).wants(b"\1\2\3\4")
    assert Interest(bloom=ored).wants(b"\1\2\3\4")
    assert not Interest(bloom=ored ^ 4).wants(b"\1\2\3\4")


four_bytes = st.binary(min_size=4, max_size=4)


@given(st.lists(four_bytes, min_size=1, max_size=5), four_bytes)
@examples(300)
def test_a_filter_lets_its_topics_through_in_either_form(asked: list[bytes], other: bytes) -> None:
    overwritten = 0
    for topic in asked:  # as status-go asks: the overwritten filters of the topics, together
        kept = bloom.required_bits(topic)
        assert kept & bloom.filter_of([topic]) == kept != 0
        assert kept.bit_count() <= bloom.filter_of([topic]).bit_count() <= 3
        overwritten |= kept
    for asking in (bloom.filter_of(asked), overwritten):
        assert all(bloom.passes(asking, topic) for topic in asked)
        assert bloom.passes(asking, other) == (asking | bloom.required_bits(other) == asking)
        assert bloom.parse(bloom.encode(asking)) == asking


def test_no_filter_means_a_full_node_and_a_filter_of_zeros_matches_nothing() -> None:
    assert bloom.parse(b"") == bloom.ALL_BITS == bloom.parse(b"\xff" * 64)
    assert bloom.parse(bytes(64)) == bloom.filter_of([]) == 0
    assert bloom.passes(bloom.ALL_BITS, b"abcd")
    assert not bloom.passes(0, b"abcd")


@given(st.sets(four_bytes, max_size=20), four_bytes)
def test_an_interest_wants_what_it_names_and_lists_few_topics(topics: set[bytes], topic: bytes) -> None:
    named = Interest.of_topics(topics)
    assert named.wants(topic) is (topic in topics)
    assert all(map(named.wants, topics))
    assert sorted(named.listed_topics() or []) == sorted(topics)
    assert Interest.of_topics(OTHERS[:-1]).listed_topics() is not None
    assert Interest.of_topics(OTHERS).listed_topics() is None


interests = st.one_of(
    st.lists(st.sampled_from(TOPICS), unique=True).map(Interest.of_topics),
    st.lists(st.sampled_from(TOPICS), unique=True).map(lambda some: Interest.of_topics([*some, *OTHERS])),
    st.lists(st.sampled_from(TOPICS)).map(lambda some: Interest(bloom=bloom.filter_of(some))),
    st.integers(0, 511).map(lambda bit: Interest(bloom=bloom.ALL_BITS ^ 1 << bit)),
    st.just(WANTS_EVERYTHING),
    st.just(Interest.of_topics([])),
    st.just(Interest(bloom=0)),
)


class TheMap(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.interests: Interests[int] = Interests()
        self.latest: dict[int, Interest] = {}

    @rule(peer=st.integers(0, 5), interest=interests)
    def put(self, peer: int, interest: Interest) -> None:
        self.interests.put(peer, interest)
        self.latest[peer] = interest

    @rule(peer=st.integers(0, 5))
    def drop(self, peer: int) -> None:
        self.interests.drop(peer)
        self.latest.pop(peer, None)

    @rule(topic=st.sampled_from(TOPICS))
    def who_wants(self, topic: bytes) -> None:
        wanting = list(self.interests.peers_wanting(topic))
        assert sorted(wanting) == [peer for peer, interest in sorted(self.latest.items()) if interest.wants(topic)]
        assert self.interests.any_peer_wants(topic) is bool(wanting)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert len(self.interests) == len(self.latest)

    def teardown(self) -> None:
        for topic in (*TOPICS, OTHERS[0], b"\xff\xff\xff\xff"):
            self.who_wants(topic)


TestTheMap = TheMap.TestCase
TestTheMap.settings = examples(60, 30)


def test_the_number_of_remembered_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "MAX_CACHED_TOPICS", 3)
    all_of_them: Interests[str] = Interests()
    all_of_them.put("a", Interest(bloom=bloom.filter_of(TOPICS[:2])))
    for _ in range(2):
        for topic in TOPICS:
            assert list(all_of_them.peers_wanting(topic)) == ["a"] * bloom.passes(bloom.filter_of(TOPICS[:2]), topic)
    assert len(all_of_them._unlisted_matches) == 3  # nothing else shows it: who is forgotten is looked up again
