"""devp2p: two ends that talk as they should, and peers that do not; Hello, reasons and compression."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse, PeerError
from restante.waku.devp2p.hello import Capability, Hello, Reason, Shared, share
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionLimits
from restante.waku.devp2p.snappy import compress, decompress, literal_head
from restante.waku.envelope import rlp
from support.dice import Seeded
from support.mutation import mutated
from support.vectors import load
from support.waku.devp2p_pair import HELLO_A, HELLO_B, A, B, Bare, Pair, cut

SHARED = (Shared("waku", 1, 16, 128),)

# ── Hello ────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 2000), max_size=20).map(tuple))
def test_both_are_connected_however_their_bytes_are_cut(places: tuple[int, ...]) -> None:
    pair = Pair(places=places).carry()
    assert pair.heard_by_a == [Connected(HELLO_B, SHARED)]
    assert pair.heard_by_b == [Connected(HELLO_A, SHARED)]
    assert (pair.a.remote, pair.b.remote) == (B.public, A.public)
    assert not pair.a.closed
    assert not pair.b.closed


def test_only_known_capabilities_may_be_offered() -> None:
    hello = Hello("a", (Capability("eth", 63),), 0, A.public)
    with pytest.raises(Misuse, match="waku"):
        Devp2p(Rlpx.recipient(A, Seeded(1)), hello, 0.0)


def hello_of(**changes: object) -> bytes:
    return b"\x80" + msgspec.structs.replace(HELLO_A, **changes).encode()


@pytest.mark.parametrize(
    ("frame", "reason", "words"),
    [
        (hello_of(public=B.public), Reason.UNEXPECTED_IDENTITY, "another public key"),
        (hello_of(public=bytes(64)), Reason.NULL_IDENTITY, "without a public key"),
        (hello_of(capabilities=(Capability("waku", 2), Capability("shh", 1))), Reason.USELESS_PEER, "no capability"),
        (b"\x80\xc0", Reason.BREACH, "five items"),
        (b"\x80" + compress(HELLO_A.encode()), Reason.BREACH, "list is expected"),
        (b"\2\xc0", Reason.BREACH, "message id 2 came before a Hello"),
        (b"\x81\x8e\xc0", Reason.BREACH, "message id 142 came before a Hello"),
        (b"\x80" + bytes(2049), Reason.BREACH, "1 to 2049 bytes"),
    ],
)
def test_an_unsuitable_hello_is_answered_with_the_reason(frame: bytes, reason: Reason, words: str) -> None:
    """Compressed and as a list: who has our Hello expects that."""
    bare = Bare()
    (event,) = bare.say(frame)
    assert isinstance(event, Disconnected)
    assert (event.reason, event.by_us) == (reason, True)
    assert words in event.words
    assert bare.frames == [b"\1" + compress(reason.listed())]
    assert bare.peer.closed


@given(mutated(st.just(b"\x80" + HELLO_A.encode())) | st.binary(max_size=80))
def test_any_hello_ends_in_a_connection_or_a_reason(frame: bytes) -> None:
    bare = Bare()
    (event,) = bare.say(frame)
    assert isinstance(event, Connected | Disconnected)
    assert bare.peer.closed is isinstance(event, Disconnected)


def test_a_node_that_dials_itself_receives_the_reason_in_place_of_a_hello() -> None:
    """A bare byte, which is what geth reads there (p2p/transport.go:167-169)."""
    rlpx = Rlpx.initiator(B, B.public, Seeded(1))
    us = Devp2p(Rlpx.recipient(B, Seeded(2)), HELLO_B, 0.0)
    (event,) = us.receive_data(rlpx.data_to_send(), 0.0)
    assert event == Disconnected(Reason.SELF_CONNECTION, True, "the peer is this node itself")
    assert rlpx.receive_data(us.data_to_send()) == [b"\1\x0a"]
    assert us.closed


# ── packets ──────────────────────────────────────────────────────────────────────────────────────

packets = st.lists(st.tuples(st.integers(0, 127), st.binary(max_size=300)), max_size=8)


@given(packets, packets, st.lists(st.integers(0, 5000), max_size=9).map(tuple), st.sampled_from([4, 5]))
def test_packets_arrive_as_they_were_sent(
    ours: list[tuple[int, bytes]], theirs: list[tuple[int, bytes]], places: tuple[int, ...], version: int
) -> None:
    pair = Pair(msgspec.structs.replace(HELLO_A, version=version), places=places).carry().forget()
    for code, payload in ours:
        pair.a.send(code, payload)
    for code, payload in theirs:
        pair.b.send(code, payload, compressed=compress(payload))
    pair.carry()
    assert pair.heard_by_b == [Packet(code, payload) for code, payload in ours]
    assert pair.heard_by_a == [Packet(code, payload) for code, payload in theirs]


def test_message_ids_are_those_of_the_offset() -> None:
    bare = Bare().connected()
    for code in (0, 1, 111, 112, 126, 127):
        bare.peer.send(code, b"payload")
    assert bare.say() == []
    ids = [frame[: -len(compress(b"payload"))].hex() for frame in bare.frames]
    assert ids == ["10", "11", "7f", "8180", "818e", "818f"]


def test_only_if_both_have_version_5_is_anything_compressed() -> None:
    for ours, theirs in ((4, 4), (4, 5), (5, 4), (5, 5)):
        bare = Bare(msgspec.structs.replace(HELLO_B, version=ours))
        bare.say(hello_of(version=theirs))
        bare.peer.send(1, b"payload", compressed=compress(b"payload"))
        bare.say()
        compressed = ours == theirs == 5
        assert bare.frames == [b"\x11" + (compress(b"payload") if compressed else b"payload")]
        bare.say(b"\2\xc0")
        assert bare.frames == [b"\3" + (compress(b"\xc0") if compressed else b"\xc0")]


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_of_two_pieces_is_one(version: int) -> None:
    pair = Pair(msgspec.structs.replace(HELLO_A, version=version)).carry().forget()
    pair.a.send_whole(127, b"head", memoryview(b"body" * 1000))
    assert pair.b.receive_data(pair.a.data_to_send(), 0.0) == [Packet(127, b"head" + b"body" * 1000)]


def test_nothing_is_sent_before_hello_nor_with_an_invalid_code() -> None:
    pair = Pair()
    with pytest.raises(Misuse, match="Hello has not arrived"):
        pair.a.send(1, b"early")
    pair.carry()
    for code in (-17, -1, 128, 1000):
        with pytest.raises(Misuse, match=f"code {code}"):
            pair.a.send(code, b"payload")


def test_an_invalid_or_unassigned_message_id_is_a_breach() -> None:
    for frame in (b"\x81\x90\0", b"\x82\1\0\0", b"\x81\x11\0", b"\x81", b"\0\0", b"\xc0\0"):
        (event,) = Bare().connected().say(frame)
        assert isinstance(event, Disconnected)
        assert (event.reason, event.by_us) == (Reason.BREACH, True)
        assert "message id" in event.words


def test_other_messages_of_devp2p_are_ignored() -> None:
    bare = Bare().connected()
    for frame in (b"\x80" + HELLO_A.encode(), b"\3\xc0", b"\3", *(bytes([code, 7]) for code in range(4, 16))):
        assert bare.say(frame, b"\x10" + compress(b"after")) == [Packet(0, b"after")]
        assert bare.frames == []


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not valid Snappy"),
        (b"\xc0", "not valid Snappy"),
        (b"\5abc", "not valid Snappy"),
        (compress(bytes(101)), "101 bytes uncompressed"),
        (b"\xff\xff\xff\xff\x0f\0a", "4294967295 bytes uncompressed"),
        (b"\x64\0a", "100 bytes uncompressed"),
    ],
)
def test_a_packet_that_cannot_or_must_not_be_inflated_is_a_breach(payload: bytes, words: str) -> None:
    bare = Bare(limits=SessionLimits(packet=100)).connected()
    (event,) = bare.say(b"\x10" + payload)
    assert isinstance(event, Disconnected)
    assert event.reason is Reason.BREACH
    assert words in event.words
    assert bare.frames == [b"\1" + compress(Reason.BREACH.listed())]


def test_the_limit_of_a_packet_applies_compressed_or_not() -> None:
    for size, version in ((100, 4), (100, 5), (101, 4), (101, 5)):
        bare = Bare(limits=SessionLimits(packet=100))
        bare.say(hello_of(version=version))
        (event,) = bare.say(b"\x10" + (compress(bytes(size)) if version == 5 else bytes(size)))
        assert (event == Packet(0, bytes(size))) is (size == 100)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4), st.lists(st.integers(0, 800), max_size=5))
def test_any_frames_are_read_without_an_exception(frames: list[bytes], places: list[int]) -> None:
    bare = Bare().connected()
    wire = b"".join(map(bare.rlpx.seal, frames))
    events = [event for part in cut(wire, places) for event in bare.peer.receive_data(part, 1.0)]
    assert all(isinstance(event, Packet) for event in events[:-1])
    assert bare.peer.closed is (bool(events) and isinstance(events[-1], Disconnected))


# ── Disconnect ───────────────────────────────────────────────────────────────────────────────────


def test_a_disconnect_is_sent_and_received() -> None:
    for reason in Reason:
        pair = Pair().carry().forget()
        pair.a.disconnect(reason)
        assert pair.a.closed
        pair.carry()
        assert pair.heard_by_b == [Disconnected(reason, False, f"the peer said {reason.name}")]
        assert pair.b.closed
        assert pair.heard_by_a == []


def test_a_disconnect_is_understood_in_every_form() -> None:
    """Compressed or not, list or byte, in the place of a Hello or later; what comes after it is not read."""
    for payload in (b"\xc1\4", b"\4", compress(b"\xc1\4"), compress(b"\4")):
        for bare in (Bare(), Bare().connected()):
            (event,) = bare.say(b"\1" + payload, b"\x10" + compress(b"late"), b"\xff")
            assert event == Disconnected(Reason.TOO_MANY_PEERS, False, "the peer said TOO_MANY_PEERS")
            assert bare.frames == []


def test_after_a_disconnect_nothing_is_sent_and_nothing_is_read() -> None:
    pair = Pair().carry().forget()
    pair.a.disconnect(Reason.CLIENT_QUITTING)
    pair.a.send(1, b"late")
    pair.a.disconnect(Reason.REQUESTED)
    pair.b.send(1, b"crossing")
    assert pair.a.receive_data(pair.b.data_to_send(), 0.0) == []
    pair.carry()
    assert pair.heard_by_b == [Disconnected(Reason.CLIENT_QUITTING, False, "the peer said CLIENT_QUITTING")]
    assert pair.a.next_timeout() is None
    assert pair.a.handle_timeout(1e9) == []


def test_before_the_handshake_is_done_a_disconnect_only_closes() -> None:
    us = Devp2p(Rlpx.recipient(B, Seeded(2)), HELLO_B, 0.0)
    us.disconnect(Reason.TOO_MANY_PEERS)
    assert us.closed
    assert us.data_to_send() == b""
    us = Devp2p(Rlpx.recipient(B, Seeded(2)), HELLO_B, 0.0)
    (event,) = us.receive_data(b"\4" * 2 + b"\7" * 305, 0.0)
    assert isinstance(event, Disconnected)
    assert (event.reason, event.by_us) == (Reason.BREACH, True)
    assert "before EIP-8" in event.words
    assert (us.data_to_send(), us.closed) == (b"", True)
    bare = Bare()  # that knows our Hello
    bare.peer.disconnect(Reason.TOO_MANY_PEERS)
    bare.say()
    assert bare.frames == [b"\1" + compress(b"\xc1\4")]


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_ping_is_answered() -> None:
    for payload in (compress(b"\xc0"), b"\xc0", b"", b"anything"):
        bare = Bare().connected()
        assert bare.say(b"\2" + payload) == []
        assert bare.frames == [b"\3\1\0\xc0"]


def test_a_peer_that_sends_no_hello_in_time_is_given_up() -> None:
    pair = Pair(now=100.0)
    assert pair.b.next_timeout() == 105.0
    assert pair.b.handle_timeout(104.9) == []
    (event,) = pair.b.handle_timeout(105.0)
    assert event == Disconnected(Reason.PING_TIMEOUT, True, "no Hello arrived in time")
    assert pair.b.closed
    assert pair.b.data_to_send() == b""


def test_a_handshake_does_not_extend_the_time_for_the_hello() -> None:
    pair = Pair()
    pair.b.receive_data(pair.a.data_to_send(), 4.0)
    assert pair.b.next_timeout() == 5.0
    pair.b.handle_timeout(5.0)
    events = [event for data in [pair.b.data_to_send()] for event in pair.a.receive_data(data, 5.0)]
    assert events == [
        Connected(HELLO_B, SHARED),
        Disconnected(Reason.PING_TIMEOUT, False, "the peer said PING_TIMEOUT"),
    ]


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    bare = Bare().connected()
    assert bare.peer.next_timeout() == 1.0 + 15.0
    assert bare.peer.handle_timeout(15.9) == []
    assert bare.peer.data_to_send() == b""
    assert bare.peer.handle_timeout(16.0) == []
    assert bare.rlpx.receive_data(bare.peer.data_to_send()) == [b"\2\1\0\xc0"]
    assert bare.peer.next_timeout() == 1.0 + 30.0
    assert bare.peer.handle_timeout(30.9) == []
    assert bare.peer.data_to_send() == b""
    (event,) = bare.peer.handle_timeout(31.0)
    assert event == Disconnected(Reason.PING_TIMEOUT, True, "the peer did not answer a Ping")
    assert bare.rlpx.receive_data(bare.peer.data_to_send()) == [b"\1" + compress(b"\xc1\x0b")]


def test_a_peer_that_answers_pings_is_never_given_up() -> None:
    pair = Pair().carry().forget()
    for _ in range(10):
        due = pair.a.next_timeout()
        assert due is not None
        pair.now = due
        pair.a.handle_timeout(due)
        pair.carry()
    assert pair.now == 150.0
    assert (pair.heard_by_a, pair.heard_by_b) == ([], [])


def test_a_frame_that_never_ends_counts_as_silence() -> None:
    """Else a byte now and then would hold what a large frame takes, for ever."""
    pair = Pair().carry()
    pair.a.send(1, b"slow")
    for number, byte in enumerate(pair.a.data_to_send()[:-1]):
        pair.b.receive_data(bytes([byte]), float(number))
    assert pair.b.next_timeout() == 15.0


PUBLIC = bytes(range(1, 65))


def test_a_hello_is_what_status_go_was_seen_to_send() -> None:
    hello = Hello("x" * 33, (Capability("waku", 0), Capability("waku", 1)), 0, PUBLIC)
    expected = "f87505a1" + "78" * 33 + "cec68477616b7580c68477616b750180b840" + PUBLIC.hex()
    assert hello.encode().hex() == expected
    assert Hello.parse(bytes.fromhex(expected)) == hello


def test_the_hello_of_eip_8_has_another_version_and_more_items() -> None:
    """The text says version 22; its bytes say 55."""
    hello = Hello.parse(bytes.fromhex(load("eip8")["hello of version 22 with more items"]))
    assert hello.version == 55
    assert hello.client_id == "kneth/v0.91/plan9"
    assert hello.capabilities == (Capability("eth", 61), Capability("mork", 22))
    assert hello.port == 9999
    assert hello.public.hex()[:8] == "fda1cff6"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
hellos = st.builds(
    Hello,
    texts,
    st.lists(st.builds(Capability, texts, st.integers(0, 2**64 - 1)), max_size=5).map(tuple),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=64, max_size=64).filter(any),
    st.integers(0, 2**64 - 1),
)


@given(hellos)
def test_a_hello_is_read_as_it_is_written(hello: Hello) -> None:
    assert Hello.parse(hello.encode() + b"junk") == hello


@given(mutated(hellos.map(Hello.encode)) | st.binary(max_size=200))
def test_reading_a_hello_raises_nothing_but_peer_errors(payload: bytes) -> None:
    try:
        hello = Hello.parse(payload)
    except PeerError:
        return
    assert len(hello.public) == 64


@pytest.mark.parametrize("public", [b"", bytes(64), bytes(63), b"\1" * 63, b"\1" * 65])
def test_a_hello_without_a_key_is_one_without_identity(public: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        Hello.parse(rlp.encode([5, b"x", [], 0, public]))
    assert caught.value.code is Reason.NULL_IDENTITY


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([5, b"x", [], 0], "at least five items, not 4"),
        ([b"\0", b"x", [], 0, PUBLIC], "leading zero"),
        ([b"\1" * 9, b"x", [], 0, PUBLIC], "64 bits"),
        ([5, b"x", b"", 0, PUBLIC], "list is expected"),
        ([5, b"x", [[b"waku", 1, 2]], 0, PUBLIC], "2 items"),
        ([5, b"x", [[b"waku", []]], 0, PUBLIC], "number is expected"),
        ([5, b"x", [], 0, []], "string is expected"),
    ],
)
def test_an_invalid_hello_is_refused(fields: list[rlp.Encodable], words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        Hello.parse(rlp.encode(fields))
    assert caught.value.code == Reason.BREACH


def test_a_client_name_that_is_no_utf_8_is_shown_escaped() -> None:
    assert Hello.parse(rlp.encode([5, b"\xffx", [[b"\xfe", 1]], 0, PUBLIC])).client_id == "\ufffdx"


LENGTHS = {"aaa": 8, "bbb": 17, "waku": 128}


def capabilities(text: str) -> list[Capability]:
    return [Capability(name, int(version)) for name, version in (one.split("/") for one in text.split())]


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        ("waku/0 waku/1", "waku/0 waku/1", [("waku", 1, 16, 128)]),
        ("waku/1 waku/0", "waku/0", [("waku", 0, 16, 128)]),
        ("waku/1", "waku/0", []),
        ("waku/1", "shh/6 les/2 waku/1 eth/63", [("waku", 1, 16, 128)]),
        ("waku/1 aaa/3", "aaa/3 waku/1", [("aaa", 3, 16, 8), ("waku", 1, 24, 128)]),
        (
            "bbb/1 aaa/3 aaa/2 waku/1",
            "waku/1 aaa/2 bbb/1",
            [("aaa", 2, 16, 8), ("bbb", 1, 24, 17), ("waku", 1, 41, 128)],
        ),
        ("waku/1", "waku/1 waku/1", [("waku", 1, 16, 128)]),
        ("waku/1", "waku/10", []),
    ],
)
def test_message_ids_go_to_the_highest_shared_versions_by_name(
    ours: str, theirs: str, shared: list[tuple[str, int, int, int]]
) -> None:
    assert share(capabilities(ours), capabilities(theirs), LENGTHS) == tuple(Shared(*one) for one in shared)


def test_a_reason_is_read_in_every_form_and_written_as_a_list_or_bare() -> None:
    for reason in Reason:
        for form in (reason.listed(), reason.bare(), rlp.encode(reason.value)):
            assert Reason.read(form) is reason
    assert (Reason.USELESS_PEER.listed(), Reason.REQUESTED.listed()) == (b"\xc1\3", b"\xc1\x80")
    assert (Reason.USELESS_PEER.bare(), Reason.REQUESTED.bare()) == (b"\3", b"\0")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("10", Reason.SUBPROTOCOL),
        ("c100", Reason.REQUESTED),
        ("80", Reason.REQUESTED),
        ("c20405", Reason.TOO_MANY_PEERS),
        ("c2c104", Reason.TOO_MANY_PEERS),
        ("04ffff", Reason.TOO_MANY_PEERS),
        ("820004", Reason.TOO_MANY_PEERS),
        ("", Reason.REQUESTED),
        ("c1c0", Reason.REQUESTED),
        ("0c", Reason.REQUESTED),
        ("c3", Reason.REQUESTED),
        ("ffffffffffffffffff", Reason.REQUESTED),
    ],
)
def test_any_payload_has_a_reason(payload: str, reason: Reason) -> None:
    assert Reason.read(bytes.fromhex(payload)) is reason


@given(st.binary() | mutated(st.just(b"\xc1\x03")))
def test_reading_a_reason_raises_nothing(payload: bytes) -> None:
    assert Reason.read(payload) in Reason


payloads = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 99)
)


def varint(number: int) -> bytes:
    """As snappy writes a size."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


@given(payloads)
def test_compressed_bytes_are_decompressed_unchanged(payload: bytes) -> None:
    assert decompress(compress(payload), len(payload)) == payload


def test_the_block_format_is_that_of_geth() -> None:
    for payload, compressed in (("c0", "0100c0"), ("c103", "0204c103"), ("", "00")):
        assert compress(bytes.fromhex(payload)).hex() == compressed


def test_literal_blocks_and_maximally_compressed_zeros_are_decompressed_too() -> None:
    for size in (1, 60, 127, 128, 255, 256, 65536, 65537, 1 << 20):
        assert decompress(literal_head(size) + bytes(size), size) == bytes(size)
        assert decompress(compress(bytes(size)), size) == bytes(size)


@given(payloads.filter(bool))
def test_one_byte_more_than_allowed_is_refused(payload: bytes) -> None:
    with pytest.raises(PeerError, match=f"{len(payload)} bytes uncompressed"):
        decompress(compress(payload), len(payload) - 1)


@pytest.mark.parametrize("size", [1000, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1])
def test_a_wrong_size_is_refused_before_decompression(size: int) -> None:
    with pytest.raises(PeerError, match=f"declares {size} bytes"):
        decompress(varint(size) + b"\0a", 1 << 20)


@pytest.mark.parametrize(
    "compressed", ["", "80", "05", "0561", "ffffffffffffffffff7f", "ff" * 12, "0101", "010061ff", "05fe0100"]
)
def test_bytes_that_are_not_compressed_are_refused(compressed: str) -> None:
    with pytest.raises(PeerError):
        decompress(bytes.fromhex(compressed), 1000)


@given(st.binary(max_size=100) | mutated(payloads.map(compress)))
def test_decompression_raises_nothing_but_peer_errors(compressed: bytes) -> None:
    try:
        payload = decompress(compressed, 500)
    except PeerError:
        return
    assert len(payload) <= 500
