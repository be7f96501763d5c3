"""devp2p: two ends that talk as they should, and peers that do not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse
from restante.waku.devp2p.hello import Capability, Hello, Reason, Shared
from restante.waku.devp2p.rlpx import Rlpx
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionLimits
from restante.waku.devp2p.snappy import compress
from support.dice import Seeded
from support.mutation import mutated
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
