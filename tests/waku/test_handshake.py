"""The handshake: the vectors of EIP-8, both roles with each other, and packets that were tampered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.devp2p import handshake
from restante.waku.devp2p.handshake import PREFIX_BYTES
from restante.waku.envelope import ecies, rlp
from restante.waku.envelope.keys import Key
from support.dice import Fixed, Seeded
from support.mutation import mutated
from support.vectors import load

EIP8 = load("eip8")
A, B = (Key(bytes.fromhex(EIP8[f"static key {name}"])) for name in "AB")
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
        assert handshake.read_auth(B, auth) == (A.public, EPHEMERAL_A.public, NONCE_A)
    for ack in ACKS.values():
        assert handshake.size(ack[:PREFIX_BYTES]) == len(ack) - 2
        assert handshake.read_ack(A, ack) == (EPHEMERAL_B.public, NONCE_B)


def test_both_come_to_the_secrets_of_the_vectors() -> None:
    """B's ingress MAC is A's egress MAC."""
    ours = handshake.conclude(A, handshake.Proposal(AUTH, EPHEMERAL_A, NONCE_A), ACK)
    remote, answer, theirs = handshake.accept(B, AUTH, Fixed([EPHEMERAL_B.secret, NONCE_B]))
    assert remote == A.public
    assert handshake.read_ack(A, answer) == (EPHEMERAL_B.public, NONCE_B)
    for secrets, running in ((ours, ours.egress), (theirs, theirs.ingress)):
        assert (secrets.aes.hex(), secrets.mac.hex()) == (EIP8["aes secret"], EIP8["mac secret"])
        running.update(b"foo")
        assert running.digest().hex() == EIP8["ingress MAC of B after foo"]


def test_packets_of_two_handshakes_have_nothing_in_common_and_differ_in_size() -> None:
    dice = Seeded(1)
    proposals = [handshake.propose(A, B.public, dice) for _ in range(40)]
    assert (
        len({proposal.nonce for proposal in proposals})
        == len({proposal.ephemeral.public for proposal in proposals})
        == 40
    )
    assert not any(proposal.ephemeral.public in proposal.packet for proposal in proposals)
    sizes = {len(proposal.packet) for proposal in proposals}
    assert len(sizes) > 10
    assert min(sizes) >= 2 + 65 + 16 + 32 + 194 - 25 + 100
    assert max(sizes) <= 600


@given(st.integers(), st.integers())
def test_both_come_to_the_same_secrets(one: int, other: int) -> None:
    proposal = handshake.propose(A, B.public, Seeded(one))
    remote, answer, theirs = handshake.accept(B, proposal.packet, Seeded(other))
    ours = handshake.conclude(A, proposal, answer)
    assert remote == A.public
    assert (ours.aes, ours.mac) == (theirs.aes, theirs.mac)
    assert ours.egress.digest() == theirs.ingress.digest() != ours.ingress.digest() == theirs.egress.digest()


@pytest.mark.parametrize("kind", ["auth", "ack"])
def test_the_format_before_eip_8_is_recognised_and_refused(kind: str) -> None:
    old = bytes.fromhex(EIP8[kind]["before EIP-8"])
    with pytest.raises(PeerError, match="before EIP-8"):
        handshake.size(old[:PREFIX_BYTES])


def test_a_packet_that_is_too_short_or_too_long_is_refused_at_its_size() -> None:
    for size in (0, 113, 2049, 0xFFFF):
        with pytest.raises(PeerError, match="114 to 2048 bytes"):
            handshake.size(size.to_bytes(2, "big") + b"\4")
    for size in (114, 0x401, 2048):
        assert handshake.size(size.to_bytes(2, "big") + b"\4") == size


SIGNATURE = EPHEMERAL_A.sign(bytes(32))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([SIGNATURE, A.public, NONCE_A], "at least 4 items, not 3"),
        ([SIGNATURE[1:], A.public, NONCE_A, 4], "65 bytes"),
        ([SIGNATURE, A.public[1:], NONCE_A, 4], "64 bytes"),
        ([SIGNATURE, bytes(64), NONCE_A, 4], "not on the curve"),
        ([SIGNATURE, A.public, NONCE_A[1:], 4], "32 bytes"),
        ([SIGNATURE, A.public, [NONCE_A], 4], "string is expected"),
        ([SIGNATURE[:64] + b"\2", A.public, NONCE_A, 4], "0 or 1"),
        ([bytes(65), A.public, NONCE_A, 4], "not valid"),
    ],
)
def test_an_invalid_auth_is_refused(fields: list[rlp.Encodable], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        handshake.read_auth(B, packet(B, rlp.encode(fields)))


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
        handshake.conclude(A, handshake.Proposal(AUTH, EPHEMERAL_A, NONCE_A), packet(A, rlp.encode(fields)))


@given(mutated(st.sampled_from([AUTH[2:], ACK[2:]])) | st.binary(max_size=400))
def test_reading_raises_nothing_but_peer_errors(rest: bytes) -> None:
    """And reads nothing else than what was sealed, under the size it was sealed with."""
    if rest in {AUTH[2:], ACK[2:]}:
        return
    with pytest.raises(PeerError):
        handshake.read_auth(B, AUTH[:2] + rest)
    with pytest.raises(PeerError):
        handshake.read_ack(A, ACK[:2] + rest)
