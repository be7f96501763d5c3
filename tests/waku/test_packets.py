"""Packets: what status-go sent is read, what we send is what it sends, and what is no packet is the peer's fault."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.rlp import RlpError
from restante.waku.protocol import packets
from restante.waku.protocol.packets import Options, Refusal, Response
from support.effort import examples
from support.mutation import mutated
from support.vectors import load

VECTORS = load("wire")


def named(section: str) -> pytest.MarkDecorator:
    """Walk the vectors of a section."""
    vectors: list[dict[str, Any]] = VECTORS[section]
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.get("name", vector["wire"][:12]))


def options_of(shown: dict[str, Any]) -> Options:
    """Read options as the vectors write them."""
    values: dict[str, Any] = dict(shown)
    if "bloom" in shown:
        values["bloom"] = bloom.read(bytes.fromhex(shown["bloom"]))
    if "topics" in shown:
        values["topics"] = frozenset(map(bytes.fromhex, shown["topics"]))
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
    """One bad envelope spoils its packet."""
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


def small(number: int, size: int = 3) -> Envelope:
    return make(1_600_000_050, 50, b"\1\2\3\4", bytes(size), number)


def test_more_envelopes_than_a_packet_can_sensibly_have_are_refused() -> None:
    raw, most = small(7, 0).raw, packets.MAX_PACKET_ENVELOPES
    assert len(packets.read_envelopes(packets.write_envelopes([raw] * most))) == most
    with pytest.raises(RlpError, match="more than 50000 envelopes"):
        packets.read_envelopes(packets.write_envelopes([raw] * (most + 1)))


class Watched(bytes):
    """Counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


READERS: dict[str, Callable[[bytes], object]] = {
    "options": packets.read_options,
    "envelopes": packets.read_envelopes,
    "ack": packets.read_ack,
    "response": packets.read_response,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_megabyte_of_nothing_is_refused_at_its_beginning(read: Callable[[bytes], object]) -> None:
    """Its million items, each of one byte, would take seconds and hundreds of MiB to be listed."""
    body = Watched(b"\xfa\x10\0\0" + b"\x80" * (1 << 20))
    with pytest.raises(RlpError):
        read(body)
    assert body.looks < 20


@pytest.mark.parametrize(("more", "expected"), [(0, [2]), (1, [1, 1])])
def test_packets_of_several_envelopes_have_room_to_spare_and_one_alone_may_need_all_of_it(
    more: int, expected: list[int]
) -> None:
    first = small(1, 500_000).raw
    head = len(first) - 500_000
    second = small(2, packets.MAX_PACKET_BYTES - 16 + more - len(first) - head).raw
    assert len(first + second) == packets.MAX_PACKET_BYTES - 16 + more
    assert [len(part) for part in packets.split_for_packets([first, second])] == expected
    alone = small(3, packets.MAX_ENVELOPE_BYTES - head).raw
    assert len(alone) == packets.MAX_ENVELOPE_BYTES
    assert list(packets.split_for_packets([second, alone, first])) == [[second], [alone], [first]]
    too_large = small(3, packets.MAX_ENVELOPE_BYTES - head + 1).raw
    assert list(packets.split_for_packets([second, too_large, alone])) == [[second], [alone]]


@given(
    st.lists(st.integers(20, 300) | st.integers(300_000, packets.MAX_PACKET_BYTES - 40), max_size=9),
    st.sampled_from([0, 500, packets.MAX_ENVELOPES_BYTES, packets.MAX_ENVELOPE_BYTES]),
)
def test_envelopes_in_one_piece_are_split_alike(sizes: list[int], most: int) -> None:
    raws = [small(number, size).raw for number, size in enumerate(sizes)]
    whole, stops = b"".join(raws), list(accumulate(map(len, raws)))
    starts = [0, *stops]
    parts = [[whole[starts[at] : stops[at]] for at in part] for part in packets.packets(stops, most)]
    assert parts == list(packets.split_for_packets(raws, most))


@named("acks")
def test_a_batch_ack_is_read_in_both_forms(vector: dict[str, Any]) -> None:
    packet = bytes.fromhex(vector["packet"])
    assert packets.read_ack(bytes.fromhex(vector["wire"])) == packet
    assert (packets.write_ack(packet).hex() == vector["wire"]) is vector["ours"]


@named("responses")
def test_a_response_is_read_and_written(vector: dict[str, Any]) -> None:
    packet = bytes.fromhex(vector["packet"])
    refusals = tuple(Refusal(bytes.fromhex(digest), code, words) for digest, code, words in vector["refusals"])
    response = Response(packet, refusals)
    assert packets.read_response(bytes.fromhex(vector["wire"])) == response
    assert (packets.write_response(response).hex() == vector["wire"]) is vector["ours"]


SENT = [
    bytes.fromhex(vector["wire"]) for section in VECTORS.values() if isinstance(section, list) for vector in section
]


@given(st.sampled_from([*READERS.values()]), st.binary(max_size=100) | mutated(st.sampled_from(SENT)))
@examples(400)
def test_readers_raise_nothing_but_peer_errors(read: Callable[[bytes], object], payload: bytes) -> None:
    try:
        read(payload)
    except PeerError as error:
        assert error.code == 2  # noqa: PT017 - "breach of protocol"
