"""RLPx: the vectors of EIP-8, both roles joined by a pipe that cuts bytes anywhere, and peers that break rules."""

from __future__ import annotations

import tracemalloc

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.devp2p import frames, handshake
from restante.waku.devp2p.handshake import PREFIX_BYTES
from restante.waku.devp2p.rlpx import Rlpx, max_frame_bytes
from restante.waku.envelope import ecies, rlp
from restante.waku.envelope.keys import Key
from support.dice import Fixed, Seeded
from support.mutation import mutated
from support.vectors import load
from waku.test_devp2p import A, B, cut

EIP8 = load("eip8")
EIP8_A, EIP8_B = (Key(bytes.fromhex(EIP8[f"static key {name}"])) for name in "AB")
EPHEMERAL_A, EPHEMERAL_B = (Key(bytes.fromhex(EIP8[f"ephemeral key {name}"])) for name in "AB")
NONCE_A, NONCE_B = (bytes.fromhex(EIP8[f"nonce {name}"]) for name in "AB")
AUTHS = {name: bytes.fromhex(packet) for name, packet in EIP8["auth"].items() if name != "before EIP-8"}
ACKS = {name: bytes.fromhex(packet) for name, packet in EIP8["ack"].items() if name != "before EIP-8"}
AUTH, ACK = AUTHS["version 4"], ACKS["version 4"]


def packet(remote: Key, plain: bytes) -> bytes:
    """A packet of any content, sealed as it must be."""
    size = (len(plain) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    return size + ecies.encrypt(remote.public, plain, ephemeral=EPHEMERAL_A, iv=bytes(16), authenticated=size)


def test_the_packets_of_the_vectors_are_read() -> None:
    for auth in AUTHS.values():
        assert handshake.size(auth[:PREFIX_BYTES]) == len(auth) - 2
        assert handshake.read_auth(EIP8_B, auth) == (EIP8_A.public, EPHEMERAL_A.public, NONCE_A)
    for ack in ACKS.values():
        assert handshake.size(ack[:PREFIX_BYTES]) == len(ack) - 2
        assert handshake.read_ack(EIP8_A, ack) == (EPHEMERAL_B.public, NONCE_B)


def test_both_come_to_the_secrets_of_the_vectors() -> None:
    """B's ingress MAC is A's egress MAC."""
    ours = handshake.conclude(EIP8_A, handshake.Proposal(AUTH, EPHEMERAL_A, NONCE_A), ACK)
    remote, answer, theirs = handshake.accept(EIP8_B, AUTH, Fixed([EPHEMERAL_B.secret, NONCE_B]))
    assert remote == EIP8_A.public
    assert handshake.read_ack(EIP8_A, answer) == (EPHEMERAL_B.public, NONCE_B)
    for secrets, running in ((ours, ours.egress), (theirs, theirs.ingress)):
        assert (secrets.aes.hex(), secrets.mac.hex()) == (EIP8["aes secret"], EIP8["mac secret"])
        running.update(b"foo")
        assert running.digest().hex() == EIP8["ingress MAC of B after foo"]


def test_packets_of_two_handshakes_have_nothing_in_common_and_differ_in_size() -> None:
    dice = Seeded(1)
    proposals = [handshake.propose(EIP8_A, EIP8_B.public, dice) for _ in range(40)]
    assert len({proposal.nonce for proposal in proposals}) == 40
    assert len({proposal.ephemeral.public for proposal in proposals}) == 40
    assert not any(proposal.ephemeral.public in proposal.packet for proposal in proposals)
    sizes = {len(proposal.packet) for proposal in proposals}
    assert len(sizes) > 10
    assert 2 + 65 + 16 + 32 + 194 - 25 + 100 <= min(sizes) < max(sizes) <= 600


def test_a_packet_of_the_format_before_eip_8_or_of_a_wrong_size_is_refused_at_its_size() -> None:
    for kind in ("auth", "ack"):
        with pytest.raises(PeerError, match="before EIP-8"):
            handshake.size(bytes.fromhex(EIP8[kind]["before EIP-8"])[:PREFIX_BYTES])
    for size in (0, 113, 2049, 0xFFFF):
        with pytest.raises(PeerError, match="114 to 2048 bytes"):
            handshake.size(size.to_bytes(2, "big") + b"\4")
    for size in (114, 0x401, 2048):
        assert handshake.size(size.to_bytes(2, "big") + b"\4") == size


SIGNATURE = EPHEMERAL_A.sign(bytes(32))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([SIGNATURE, EIP8_A.public, NONCE_A], "at least 4 items, not 3"),
        ([SIGNATURE[1:], EIP8_A.public, NONCE_A, 4], "65 bytes"),
        ([SIGNATURE, EIP8_A.public[1:], NONCE_A, 4], "64 bytes"),
        ([SIGNATURE, bytes(64), NONCE_A, 4], "not on the curve"),
        ([SIGNATURE, EIP8_A.public, NONCE_A[1:], 4], "32 bytes"),
        ([SIGNATURE, EIP8_A.public, [NONCE_A], 4], "string is expected"),
        ([SIGNATURE[:64] + b"\2", EIP8_A.public, NONCE_A, 4], "0 or 1"),
        ([bytes(65), EIP8_A.public, NONCE_A, 4], "not valid"),
    ],
)
def test_an_invalid_auth_is_refused(fields: list[rlp.Encodable], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        handshake.read_auth(EIP8_B, packet(EIP8_B, rlp.encode(fields)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([EPHEMERAL_B.public, NONCE_B], "at least 3 items, not 2"),
        ([EPHEMERAL_B.public[1:], NONCE_B, 4], "64 bytes"),
        ([EPHEMERAL_B.public, NONCE_B + b"\0", 4], "32 bytes"),
        ([bytes(64), NONCE_B, 4], "not on the curve"),
    ],
)
def test_an_invalid_ack_is_refused(fields: list[rlp.Encodable], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        handshake.conclude(EIP8_A, handshake.Proposal(AUTH, EPHEMERAL_A, NONCE_A), packet(EIP8_A, rlp.encode(fields)))


@given(mutated(st.sampled_from([AUTH[2:], ACK[2:]])) | st.binary(max_size=400))
def test_reading_raises_nothing_but_peer_errors(rest: bytes) -> None:
    """And reads nothing else than what was sealed, under the size it was sealed with."""
    if rest in {AUTH[2:], ACK[2:]}:
        return
    with pytest.raises(PeerError):
        handshake.read_auth(EIP8_B, AUTH[:2] + rest)
    with pytest.raises(PeerError):
        handshake.read_ack(EIP8_A, ACK[:2] + rest)


def pair(cap: int = 1 << 20) -> tuple[Rlpx, Rlpx]:
    """Two who have shaken hands."""
    a, b = Rlpx.initiator(A, B.public, Seeded(1), cap=cap), Rlpx.recipient(B, Seeded(2), cap=cap)
    b.receive_data(a.data_to_send())
    a.receive_data(b.data_to_send())
    assert (a.ready, a.remote, b.ready, b.remote) == (True, B.public, True, A.public)
    return a, b


def begun(cap: int = 1 << 20) -> tuple[Rlpx, Rlpx]:
    """Two who have said Hello, as far as frames go."""
    a, b = pair(cap)
    assert b.receive_data(a.seal(b"hello")) == [b"hello"]
    assert a.receive_data(b.seal(b"hello")) == [b"hello"]
    return a, b


def assert_broken(end: Rlpx, text: str) -> None:
    assert end.broken
    assert end.broken.code == 2
    assert text in end.broken.words


def test_a_frame_of_two_pieces_is_the_same_on_the_wire() -> None:
    """And so are the frames behind it, for which both have gone on with cipher and hash."""
    frame = bytes(range(256)) * 400
    (one, _), (other, receiver) = begun(), begun()
    for size in (1, 15, 16, 17, 100_000):
        for cut_at in (0, 1, size // 2):
            wire = one.seal(frame[:size])
            assert other.seal_whole(frame[:cut_at], memoryview(frame)[cut_at:size]) == wire
            assert receiver.receive_data(wire) == [frame[:size]]


def test_a_header_is_what_status_go_was_seen_to_send() -> None:
    auth = Rlpx.initiator(A, B.public, Seeded(1)).data_to_send()
    _, _, secrets = handshake.accept(B, auth, Seeded(2))
    b = Rlpx.recipient(B, Seeded(2))
    b.receive_data(auth)
    wire = b.seal(b"\7" * 0x78)
    stream = Cipher(algorithms.AES(secrets.aes), modes.CTR(bytes(16))).decryptor()
    assert stream.update(wire[:16]).hex() == "000078c28080" + "00" * 10
    assert stream.update(wire[32:-16]) == b"\7" * 0x78 + bytes(8)


payloads = st.lists(st.binary(min_size=1, max_size=700), min_size=1, max_size=6)


@given(payloads, payloads, st.lists(st.integers(0, 5000), max_size=30))
def test_a_stream_may_be_split_anywhere(ours: list[bytes], theirs: list[bytes], places: list[int]) -> None:
    a, b = Rlpx.initiator(A, B.public, Seeded(1)), Rlpx.recipient(B, Seeded(2))
    for part in cut(a.data_to_send(), places):
        assert b.receive_data(part) == []
    answer = b.data_to_send() + b"".join(map(b.seal, theirs))
    found = [frame for part in cut(answer, places) for frame in a.receive_data(part)]
    assert found == theirs
    wire = b"".join(map(a.seal, ours))
    assert [frame for part in cut(wire, places) for frame in b.receive_data(part)] == ours
    assert a.broken is b.broken is None


@given(st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 4000), st.integers(1, 255))
def test_no_byte_of_a_frame_may_be_altered(places: list[int], at: int, flip: int) -> None:
    """What came before it is given, however it is cut; what comes after it is not read."""
    a, b = begun()
    before, altered, after = a.seal(b"before"), bytearray(a.seal(b"\7" * 300)), a.seal(b"after")
    altered[at % len(altered)] ^= flip
    wire = before + bytes(altered) + after
    assert [frame for part in cut(wire, places) for frame in b.receive_data(part)] == [b"before"]
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
    assert max_frame_bytes(1 << 24) == frames.MAX_FRAME_BYTES


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
    assert end.broken is None or end.broken.code == 2
