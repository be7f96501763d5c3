"""devp2p: two ends that talk as they should, and peers that do not; Hello, reasons and compression."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import Misuse, PeerError
from restante.waku.devp2p import rlpx
from restante.waku.devp2p.hello import Capability, Hello, Reason
from restante.waku.devp2p.rlpx import PREFIX_BYTES, Rlpx, max_frame_bytes
from restante.waku.devp2p.session import Connected, Devp2p, Disconnected, Packet, SessionEvent, SessionLimits
from restante.waku.devp2p.snappy import compress, decompress, literal_head
from restante.waku.envelope import ecies, rlp
from restante.waku.envelope.keys import Key
from support.dice import Fixed, Seeded
from support.mutation import mutated
from support.vectors import load

A, B = Key(b"\1" * 32), Key(b"\2" * 32)
WAKU = (Capability("waku", 0), Capability("waku", 1))
HELLO_A = Hello("a", WAKU, 30303, A.public)
HELLO_B = Hello("b", WAKU, 30304, B.public)


def cut(data: bytes | bytearray, positions: Iterable[int]) -> Iterator[bytes | bytearray]:
    begin = 0
    for end in sorted({number % (len(data) + 1) for number in positions} | {len(data)}):
        yield data[begin:end]
        begin = end


def listening() -> Devp2p:
    return Devp2p(Rlpx.recipient(B, Seeded(2)), HELLO_B, 0.0)


class Pair:
    """A dials B, over a pipe that cuts the bytes. `to_a` and `to_b` are the events of both."""

    def __init__(self, hello: Hello = HELLO_A, cuts: Iterable[int] = ()) -> None:
        self.a = Devp2p(Rlpx.initiator(A, B.public, Seeded(1)), hello, 0.0)
        self.b = listening()
        self.now = 0.0
        self.cuts = list(cuts)
        self.to_a: list[SessionEvent] = []
        self.to_b: list[SessionEvent] = []

    def carry(self) -> Pair:
        while self.a.has_output or self.b.has_output:
            for part in cut(self.a.data_to_send(), self.cuts):
                self.to_b += self.b.receive_data(part, self.now)
            for part in cut(self.b.data_to_send(), self.cuts):
                self.to_a += self.a.receive_data(part, self.now)
        return self

    def connected(self) -> Pair:
        self.carry()
        self.to_a.clear()
        self.to_b.clear()
        return self


class Bare:
    def __init__(self, hello: Hello = HELLO_B, *limits: SessionLimits) -> None:
        self.rlpx = Rlpx.initiator(A, B.public, Seeded(1))
        self.peer = Devp2p(Rlpx.recipient(B, Seeded(2)), hello, 0.0, *limits)
        self.peer.receive_data(self.rlpx.data_to_send(), 0.0)
        self.frames = self.rlpx.receive_data(self.peer.data_to_send())

    def say(self, *frames: bytes) -> list[SessionEvent]:
        events = self.peer.receive_data(b"".join(map(self.rlpx.seal, frames)), 1.0)
        self.frames = self.rlpx.receive_data(self.peer.data_to_send())
        return events

    def connected(self) -> Bare:
        self.say(b"\x80" + HELLO_A.encode())
        return self


def assert_refused(events: list[SessionEvent], reason: Reason, text: str) -> None:
    (event,) = events
    assert isinstance(event, Disconnected)
    assert event.reason == reason
    assert text in event.text


def hello_of(**changes: object) -> bytes:
    return b"\x80" + msgspec.structs.replace(HELLO_A, **changes).encode()


@pytest.mark.parametrize(
    ("frame", "reason", "text"),
    [
        (hello_of(public=B.public), Reason.UNEXPECTED_IDENTITY, "another public key"),
        (hello_of(capabilities=(Capability("waku", 2), Capability("shh", 1))), Reason.USELESS_PEER, "no capability"),
        (b"\x80" + compress(HELLO_A.encode()), Reason.BREACH, "list is expected"),
        (b"\2\xc0", Reason.BREACH, "message id 2 came before a Hello"),
        (b"\x81\x8e\xc0", Reason.BREACH, "message id 142 came before a Hello"),
        (b"\x80" + bytes(2049), Reason.BREACH, "1 to 2049 bytes"),
    ],
)
def test_an_unsuitable_hello_is_answered_with_the_reason(frame: bytes, reason: Reason, text: str) -> None:
    """Compressed and as a list: who has our Hello expects that."""
    bare = Bare()
    assert_refused(bare.say(frame), reason, text)
    assert bare.frames == [b"\1" + compress(reason.encode_as_list())]
    assert bare.peer.closed


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


@given(mutated(hellos.map(Hello.encode) | st.just(HELLO_A.encode())) | st.binary(max_size=200))
def test_any_hello_ends_in_a_connection_or_a_reason(payload: bytes) -> None:
    bare = Bare()
    (event,) = bare.say(b"\x80" + payload)
    assert isinstance(event, Connected | Disconnected)
    assert bare.peer.closed is isinstance(event, Disconnected)


PUBLIC = bytes(range(1, 65))


def test_a_hello_is_what_status_go_was_seen_to_send() -> None:
    hello = Hello("x" * 33, (Capability("waku", 0), Capability("waku", 1)), 0, PUBLIC)
    expected = "f87505a1" + "78" * 33 + "cec68477616b7580c68477616b750180b840" + PUBLIC.hex()
    assert hello.encode().hex() == expected
    assert Hello.parse(bytes.fromhex(expected)) == hello


def test_the_hello_of_eip_8_has_another_version_and_more_items() -> None:
    hello = Hello.parse(bytes.fromhex(load("eip8")["hello of version 22 with more items"]))
    assert (hello.version, hello.client_id, hello.port) == (55, "kneth/v0.91/plan9", 9999)
    assert hello.capabilities == (Capability("eth", 61), Capability("mork", 22))
    assert hello.public.hex()[:8] == "fda1cff6"
    assert Hello.parse(rlp.encode([5, b"\xffx", [[b"\xfe", 1]], 0, PUBLIC])).client_id == "\ufffdx"  # no UTF-8


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ([5, b"x", [], 0], Reason.BREACH, "at least five items, not 4"),
        ([b"\0", b"x", [], 0, PUBLIC], Reason.BREACH, "leading zero"),
        ([b"\1" * 9, b"x", [], 0, PUBLIC], Reason.BREACH, "64 bits"),
        ([5, b"x", b"", 0, PUBLIC], Reason.BREACH, "list is expected"),
        ([5, b"x", [[b"waku", 1, 2]], 0, PUBLIC], Reason.BREACH, "2 items"),
        ([5, b"x", [[b"waku", []]], 0, PUBLIC], Reason.BREACH, "number is expected"),
        ([5, b"x", [], 0, []], Reason.BREACH, "string is expected"),
        *(
            ([5, b"x", [], 0, public], Reason.NULL_IDENTITY, "without a public key")
            for public in (b"", bytes(64), b"\1" * 63, b"\1" * 65)
        ),
    ],
)
def test_an_invalid_hello_is_refused(fields: list[rlp.Encodable], code: Reason, text: str) -> None:
    with pytest.raises(PeerError, match=text) as caught:
        Hello.parse(rlp.encode(fields))
    assert caught.value.code == code


def test_a_node_that_dials_itself_receives_the_reason_in_place_of_a_hello() -> None:
    """A bare byte, which is what geth reads there (p2p/transport.go:167-169)."""
    rlpx = Rlpx.initiator(B, B.public, Seeded(1))
    us = listening()
    (event,) = us.receive_data(rlpx.data_to_send(), 0.0)
    assert event == Disconnected(Reason.SELF_CONNECTION, "the peer is this node itself")
    assert rlpx.receive_data(us.data_to_send()) == [b"\1\x0a"]
    assert us.closed


@pytest.mark.parametrize(
    ("theirs", "shared"),
    [("waku/0 waku/1", True), ("waku/0", True), ("shh/6 les/2 waku/1 eth/63", True), ("waku/1 waku/1", True)]
    + [("waku/10", False), ("eth/1", False), ("", False)],
)
def test_a_peer_needs_our_capability_and_its_others_do_not_move_the_ids(theirs: str, shared: bool) -> None:
    capabilities = [capability.split("/") for capability in theirs.split()]
    hello = hello_of(capabilities=tuple(Capability(name, int(version)) for name, version in capabilities))
    events = Bare().say(hello, b"\x10" + compress(b"\xc0"))
    if shared:
        assert events[1:] == [Packet(0, b"\xc0")]
    else:
        assert_refused(events, Reason.USELESS_PEER, "no capability is shared")


packets = st.lists(st.tuples(st.integers(0, 127), st.binary(max_size=300)), max_size=8)


@given(packets, packets, st.lists(st.integers(0, 5000), max_size=30), st.sampled_from([4, 5]))
def test_packets_arrive_as_they_were_sent_however_the_stream_is_split(
    ours: list[tuple[int, bytes]], theirs: list[tuple[int, bytes]], cuts: list[int], version: int
) -> None:
    hello = msgspec.structs.replace(HELLO_A, version=version)
    pair = Pair(hello, cuts).carry()
    assert (pair.to_a, pair.to_b) == ([Connected(HELLO_B)], [Connected(hello)])
    pair.connected()
    for code, payload in ours:
        pair.a.send(code, payload)
        pair.a.send_pieces(code, b"head", memoryview(payload * 100))
    for code, payload in theirs:
        pair.b.send(code, payload, compressed=compress(payload))
    pair.carry()
    assert pair.to_b == [Packet(code, sent) for code, payload in ours for sent in (payload, b"head" + payload * 100)]
    assert pair.to_a == [Packet(code, payload) for code, payload in theirs]
    assert (pair.a.closed, pair.b.closed) == (False, False)


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


def test_nothing_is_sent_before_hello_nor_with_an_invalid_code_or_capability() -> None:
    with pytest.raises(Misuse, match="waku"):
        Pair(Hello("a", (Capability("eth", 63),), 0, A.public))
    pair = Pair()
    with pytest.raises(Misuse, match="Hello has not arrived"):
        pair.a.send(1, b"early")
    pair.carry()
    for code in (-17, -1, 128, 1000):
        with pytest.raises(Misuse, match=f"code {code}"):
            pair.a.send(code, b"payload")


def test_an_invalid_or_unassigned_message_id_is_a_breach() -> None:
    for frame in (b"\x81\x90\0", b"\x82\1\0\0", b"\x81\x11\0", b"\x81", b"\0\0", b"\xc0\0"):
        assert_refused(Bare().connected().say(frame), Reason.BREACH, "message id")


def test_other_messages_of_devp2p_are_ignored() -> None:
    bare = Bare().connected()
    for frame in (b"\x80" + HELLO_A.encode(), b"\3\xc0", b"\3", *(bytes([code, 7]) for code in range(4, 16))):
        assert bare.say(frame, b"\x10" + compress(b"after")) == [Packet(0, b"after")]
        assert bare.frames == []


@pytest.mark.parametrize(
    ("version", "payload", "text"),
    [
        (4, bytes(101), "a packet has 101 bytes"),
        (5, compress(bytes(101)), "101 bytes uncompressed"),
        (5, b"\5abc", "not valid Snappy"),
    ],
)
def test_a_packet_that_is_too_large_or_not_compressed_is_a_breach(version: int, payload: bytes, text: str) -> None:
    bare = Bare(HELLO_B, SessionLimits(packet=100))
    bare.say(hello_of(version=version))
    largest = compress(bytes(100)) if version == 5 else bytes(100)
    assert bare.say(b"\x10" + largest) == [Packet(0, bytes(100))]
    assert_refused(bare.say(b"\x10" + payload), Reason.BREACH, text)
    listed = Reason.BREACH.encode_as_list()
    assert bare.frames == [b"\1" + (compress(listed) if version == 5 else listed)]


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4), st.lists(st.integers(0, 800), max_size=5))
def test_any_frames_are_read_without_an_exception(frames: list[bytes], cuts: list[int]) -> None:
    bare = Bare().connected()
    wire = b"".join(map(bare.rlpx.seal, frames))
    events = [event for part in cut(wire, cuts) for event in bare.peer.receive_data(part, 1.0)]
    assert all(isinstance(event, Packet) for event in events[:-1])
    assert bare.peer.closed is (bool(events) and isinstance(events[-1], Disconnected))


@pytest.mark.parametrize("reason", Reason)
def test_a_disconnect_is_the_last_thing_that_is_sent_and_read(reason: Reason) -> None:
    pair = Pair().connected()
    pair.a.disconnect(reason)
    pair.a.send(1, b"late")
    pair.a.disconnect(Reason.REQUESTED)
    pair.b.send(1, b"crossing")
    pair.carry()
    assert pair.to_b == [Disconnected(reason, f"the peer said {reason.name}")]
    assert pair.to_a == []
    assert pair.a.closed
    assert pair.b.closed
    assert pair.a.next_timeout() is None
    assert pair.a.handle_timeout(1e9) == []


def test_a_disconnect_is_understood_in_every_form() -> None:
    for payload in (b"\xc1\4", b"\4", compress(b"\xc1\4"), compress(b"\4")):
        for bare in (Bare(), Bare().connected()):
            (event,) = bare.say(b"\1" + payload, b"\x10" + compress(b"late"), b"\xff")
            assert event == Disconnected(Reason.TOO_MANY_PEERS, "the peer said TOO_MANY_PEERS")
            assert bare.frames == []


def test_before_the_handshake_is_done_a_disconnect_only_closes() -> None:
    us = listening()
    us.disconnect(Reason.TOO_MANY_PEERS)
    assert (us.data_to_send(), us.closed) == (b"", True)
    us = listening()
    assert_refused(us.receive_data(b"\4" * 2 + b"\7" * 305, 0.0), Reason.BREACH, "before EIP-8")
    assert (us.data_to_send(), us.closed) == (b"", True)
    bare = Bare()  # that knows our Hello
    bare.peer.disconnect(Reason.TOO_MANY_PEERS)
    bare.say()
    assert bare.frames == [b"\1" + compress(b"\xc1\4")]


def test_a_reason_is_read_in_every_form_and_written_as_a_list_or_bare() -> None:
    assert (Reason.USELESS_PEER.encode_as_list(), Reason.REQUESTED.encode_as_list()) == (b"\xc1\3", b"\xc1\x80")
    assert (Reason.USELESS_PEER.encode_as_byte(), Reason.REQUESTED.encode_as_byte()) == (b"\3", b"\0")
    assert Reason.parse(b"\x10") is Reason.SUBPROTOCOL
    for hexadecimal in ("c20405", "c2c104", "04ffff", "820004"):
        assert Reason.parse(bytes.fromhex(hexadecimal)) is Reason.TOO_MANY_PEERS
    for hexadecimal in ("c100", "80", "", "c1c0", "0c", "c3", "ffffffffffffffffff"):
        assert Reason.parse(bytes.fromhex(hexadecimal)) is Reason.REQUESTED


def test_a_ping_is_answered() -> None:
    for payload in (compress(b"\xc0"), b"\xc0", b"", b"anything"):
        bare = Bare().connected()
        assert bare.say(b"\2" + payload) == []
        assert bare.frames == [b"\3\1\0\xc0"]


def test_a_peer_that_sends_no_hello_in_time_is_given_up() -> None:
    us = Devp2p(Rlpx.recipient(B, Seeded(2)), HELLO_B, 100.0)
    assert us.next_timeout() == 105.0
    assert us.handle_timeout(104.9) == []
    assert us.handle_timeout(105.0) == [Disconnected(Reason.PING_TIMEOUT, "no Hello arrived in time")]
    assert (us.data_to_send(), us.closed) == (b"", True)
    pair = Pair()  # a handshake does not extend the time
    pair.b.receive_data(pair.a.data_to_send(), 4.0)
    assert pair.b.next_timeout() == 5.0
    pair.b.handle_timeout(5.0)
    assert pair.a.receive_data(pair.b.data_to_send(), 5.0) == [
        Connected(HELLO_B),
        Disconnected(Reason.PING_TIMEOUT, "the peer said PING_TIMEOUT"),
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
    assert event == Disconnected(Reason.PING_TIMEOUT, "the peer did not answer a Ping")
    assert bare.rlpx.receive_data(bare.peer.data_to_send()) == [b"\1" + compress(b"\xc1\x0b")]


def test_a_peer_that_answers_pings_is_never_given_up() -> None:
    pair = Pair().connected()
    for _ in range(10):
        pair.now += 15.0
        assert pair.a.next_timeout() == pair.now
        assert pair.a.handle_timeout(pair.now) == []
        pair.carry()
    assert (pair.to_a, pair.to_b) == ([], [])


def test_a_frame_that_never_ends_counts_as_silence() -> None:
    """Else a byte now and then would hold what a large frame takes, for ever."""
    pair = Pair().carry()
    pair.a.send(1, b"slow")
    for number, byte in enumerate(pair.a.data_to_send()[:-1]):
        pair.b.receive_data(bytes([byte]), float(number))
    assert pair.b.next_timeout() == 15.0


payloads = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 99)
)


@given(payloads)
def test_what_was_compressed_is_decompressed_unless_it_is_too_large(payload: bytes) -> None:
    assert decompress(compress(payload), len(payload)) == payload
    if payload:
        with pytest.raises(PeerError, match=f"{len(payload)} bytes uncompressed"):
            decompress(compress(payload), len(payload) - 1)


def test_the_block_format_is_that_of_geth() -> None:
    for payload, compressed in (("c0", "0100c0"), ("c103", "0204c103"), ("", "00")):
        assert compress(bytes.fromhex(payload)).hex() == compressed
    for size in (1, 60, 127, 128, 255, 256, 65536, 65537, 1 << 20):
        assert decompress(literal_head(size) + bytes(size), size) == bytes(size)
        assert decompress(compress(bytes(size)), size) == bytes(size)


def test_bytes_that_are_not_compressed_or_declare_a_false_size_are_refused() -> None:
    bad = ("", "80", "05", "0561", "ffffffffffffffffff7f", "ff" * 12, "0101", "010061ff", "05fe0100")
    for compressed in bad:
        with pytest.raises(PeerError):
            decompress(bytes.fromhex(compressed), 1000)
    sizes = {1000: "e807", 1 << 20: "808040", 1 << 20 | 1: "818040", 1 << 31: "8080808008", 2**32 - 1: "ffffffff0f"}
    for size, head in sizes.items():
        with pytest.raises(PeerError, match=f"declares {size} bytes"):
            decompress(bytes.fromhex(head) + b"\0a", 1 << 20)


@given(st.binary(max_size=100) | mutated(payloads.map(compress)))
def test_decompression_raises_nothing_but_peer_errors(compressed: bytes) -> None:
    try:
        payload = decompress(compressed, 500)
    except PeerError:
        return
    assert len(payload) <= 500


EIP8 = load("eip8")
EIP8_A, EIP8_B = (Key(bytes.fromhex(EIP8[f"static key {name}"])) for name in "AB")
EPHEMERAL_A, EPHEMERAL_B = (Key(bytes.fromhex(EIP8[f"ephemeral key {name}"])) for name in "AB")
NONCE_A, NONCE_B = (bytes.fromhex(EIP8[f"nonce {name}"]) for name in "AB")
AUTHS = {name: bytes.fromhex(packet) for name, packet in EIP8["auth"].items() if name != "before EIP-8"}
ACKS = {name: bytes.fromhex(packet) for name, packet in EIP8["ack"].items() if name != "before EIP-8"}
AUTH, ACK = AUTHS["version 4"], ACKS["version 4"]


def packet(remote: Key, plain: bytes) -> bytes:
    size = (len(plain) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    return size + ecies.encrypt(remote.public, plain, ephemeral=EPHEMERAL_A, iv=bytes(16), authenticated=size)


def test_the_packets_of_the_vectors_are_read() -> None:
    for auth in AUTHS.values():
        assert rlpx.handshake_size(auth[:PREFIX_BYTES]) == len(auth) - 2
        assert rlpx.read_auth(EIP8_B, auth) == (EIP8_A.public, EPHEMERAL_A.public, NONCE_A)
    for ack in ACKS.values():
        assert rlpx.handshake_size(ack[:PREFIX_BYTES]) == len(ack) - 2
        assert rlpx.read_ack(EIP8_A, ack) == (EPHEMERAL_B.public, NONCE_B)


def test_both_come_to_the_secrets_of_the_vectors() -> None:
    ours = rlpx.finish_handshake(EIP8_A, rlpx.SentAuth(AUTH, EPHEMERAL_A, NONCE_A), ACK)
    remote, answer, theirs = rlpx.answer_handshake(EIP8_B, AUTH, Fixed([EPHEMERAL_B.secret, NONCE_B]))
    assert remote == EIP8_A.public
    assert rlpx.read_ack(EIP8_A, answer) == (EPHEMERAL_B.public, NONCE_B)
    for secrets, running in ((ours, ours.egress), (theirs, theirs.ingress)):
        assert (secrets.aes.hex(), secrets.mac.hex()) == (EIP8["aes secret"], EIP8["mac secret"])
        running.update(b"foo")
        assert running.digest().hex() == EIP8["ingress MAC of B after foo"]


def test_packets_of_two_handshakes_have_nothing_in_common_and_differ_in_size() -> None:
    dice = Seeded(1)
    proposals = [rlpx.start_handshake(EIP8_A, EIP8_B.public, dice) for _ in range(40)]
    assert len({proposal.nonce for proposal in proposals}) == 40
    assert len({proposal.ephemeral.public for proposal in proposals}) == 40
    assert not any(proposal.ephemeral.public in proposal.packet for proposal in proposals)
    sizes = {len(proposal.packet) for proposal in proposals}
    assert len(sizes) > 10
    assert 2 + 65 + 16 + 32 + 194 - 25 + 100 <= min(sizes) < max(sizes) <= 600


def test_a_packet_of_the_format_before_eip_8_or_of_a_wrong_size_is_refused_at_its_size() -> None:
    for kind in ("auth", "ack"):
        with pytest.raises(PeerError, match="before EIP-8"):
            rlpx.handshake_size(bytes.fromhex(EIP8[kind]["before EIP-8"])[:PREFIX_BYTES])
    for size in (0, 113, 2049, 0xFFFF):
        with pytest.raises(PeerError, match="114 to 2048 bytes"):
            rlpx.handshake_size(size.to_bytes(2, "big") + b"\4")
    for size in (114, 0x401, 2048):
        assert rlpx.handshake_size(size.to_bytes(2, "big") + b"\4") == size


def test_an_invalid_auth_or_ack_is_refused() -> None:
    signature, proposal = EPHEMERAL_A.sign(bytes(32)), rlpx.SentAuth(AUTH, EPHEMERAL_A, NONCE_A)
    auths: tuple[tuple[list[Any], str], ...] = (
        ([signature, EIP8_A.public, NONCE_A], "at least 4 items, not 3"),
        ([signature[1:], EIP8_A.public, NONCE_A, 4], "65 bytes"),
        ([signature, EIP8_A.public[1:], NONCE_A, 4], "64 bytes"),
        ([signature, bytes(64), NONCE_A, 4], "not on the curve"),
        ([signature, EIP8_A.public, NONCE_A[1:], 4], "32 bytes"),
        ([signature, EIP8_A.public, [NONCE_A], 4], "string is expected"),
        ([signature[:64] + b"\2", EIP8_A.public, NONCE_A, 4], "0 or 1"),
        ([bytes(65), EIP8_A.public, NONCE_A, 4], "not valid"),
    )
    for fields, text in auths:
        with pytest.raises(PeerError, match=text):
            rlpx.read_auth(EIP8_B, packet(EIP8_B, rlp.encode(fields)))
    for fields, text in (
        ([EPHEMERAL_B.public, NONCE_B], "at least 3 items, not 2"),
        ([EPHEMERAL_B.public[1:], NONCE_B, 4], "64 bytes"),
        ([EPHEMERAL_B.public, NONCE_B + b"\0", 4], "32 bytes"),
        ([bytes(64), NONCE_B, 4], "not on the curve"),
    ):
        with pytest.raises(PeerError, match=text):
            rlpx.finish_handshake(EIP8_A, proposal, packet(EIP8_A, rlp.encode(fields)))


@given(mutated(st.sampled_from([AUTH[2:], ACK[2:]])) | st.binary(max_size=400))
def test_reading_raises_nothing_but_peer_errors(rest: bytes) -> None:
    if rest in {AUTH[2:], ACK[2:]}:
        return
    with pytest.raises(PeerError):
        rlpx.read_auth(EIP8_B, AUTH[:2] + rest)
    with pytest.raises(PeerError):
        rlpx.read_ack(EIP8_A, ACK[:2] + rest)


def begun(cap: int = 1 << 20) -> tuple[Rlpx, Rlpx]:
    a, b = Rlpx.initiator(A, B.public, Seeded(1), cap=cap), Rlpx.recipient(B, Seeded(2), cap=cap)
    b.receive_data(a.data_to_send())
    a.receive_data(b.data_to_send())
    assert (a.ready, a.remote, b.ready, b.remote) == (True, B.public, True, A.public)
    assert b.receive_data(a.seal(b"hello")) == [b"hello"]
    assert a.receive_data(b.seal(b"hello")) == [b"hello"]
    return a, b


def assert_broken(end: Rlpx, text: str) -> None:
    assert end.violation
    assert (end.violation.code, text in end.violation.text) == (2, True)


def test_a_header_is_what_status_go_was_seen_to_send() -> None:
    auth = Rlpx.initiator(A, B.public, Seeded(1)).data_to_send()
    _, _, secrets = rlpx.answer_handshake(B, auth, Seeded(2))
    b = Rlpx.recipient(B, Seeded(2))
    b.receive_data(auth)
    wire = b.seal(b"\7" * 0x78)
    stream = Cipher(algorithms.AES(secrets.aes), modes.CTR(bytes(16))).decryptor()
    assert stream.update(wire[:16]).hex() == "000078c28080" + "00" * 10
    assert stream.update(wire[32:-16]) == b"\7" * 0x78 + bytes(8)


@given(st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 4000), st.integers(1, 255))
def test_no_byte_of_a_frame_may_be_altered(cuts: list[int], at: int, flip: int) -> None:
    a, b = begun()
    before, altered, after = a.seal(b"before"), bytearray(a.seal(b"\7" * 300)), a.seal(b"after")
    altered[at % len(altered)] ^= flip
    wire = before + bytes(altered) + after
    assert [frame for part in cut(wire, cuts) for frame in b.receive_data(part)] == [b"before"]
    assert_broken(b, f"the MAC of a {'header' if at % len(altered) < 32 else 'frame'} is wrong")
    assert b.receive_data(after) == []


def test_reordered_or_repeated_frames_are_refused() -> None:
    for first, second, read in ((1, 0, []), (0, 0, [b"first"])):
        a, b = begun()
        frames_of_a = a.seal(b"first"), a.seal(b"second")
        assert b.receive_data(frames_of_a[first] + frames_of_a[second]) == read
        assert_broken(b, "MAC of a header")


def test_a_frame_that_is_empty_or_larger_than_the_cap_is_refused_at_its_header() -> None:
    for size in (0, 5001):
        a, b = begun(5000)
        assert b.receive_data(a.seal(bytes(5000))) == [bytes(5000)]
        b.receive_data(a.seal(bytes(size))[:32])
        assert_broken(b, f"a frame has 1 to 5000 bytes here, not {size}")


def test_the_cap_leaves_room_for_what_does_not_compress() -> None:
    assert max_frame_bytes(0) >= 34
    assert max_frame_bytes(10 * 1024 * 1024) > 10 * 1024 * 1024 * 7 // 6
    assert max_frame_bytes(1 << 24) == rlpx.MAX_FRAME_BYTES


def test_a_large_frame_in_small_pieces_is_not_copied_for_each() -> None:
    """A copy would stand beside what is copied, and memory for both be taken."""
    size = 1 << 20
    a, b = begun(size)
    wire = a.seal(bytes(size))
    pieces = [wire[at : at + 256] for at in range(0, len(wire), 256)]
    tracemalloc.start()
    for piece in pieces[:-1]:
        assert b.receive_data(piece) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert b.receive_data(pieces[-1]) == [bytes(size)]
    assert size < peak < size * 3 // 2


def test_an_auth_for_another_is_refused() -> None:
    auth = Rlpx.initiator(A, Key(b"\3" * 32).public, Seeded(1)).data_to_send()
    b = Rlpx.recipient(B, Seeded(2))
    b.receive_data(auth)
    assert_broken(b, "for another key")
    assert (b.remote, b.ready, b.data_to_send()) == (b"", False, b"")
    with pytest.raises(PeerError, match="not on the curve"):
        Rlpx.initiator(A, bytes(64), Seeded(1))


@given(st.binary(max_size=3000), st.booleans())
def test_any_bytes_are_read_without_an_exception(data: bytes, initiator: bool) -> None:
    end = Rlpx.initiator(A, B.public, Seeded(1)) if initiator else Rlpx.recipient(B, Seeded(1))
    assert end.receive_data(data) == []
    assert end.violation is None or end.violation.code == 2
