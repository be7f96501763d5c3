"""The handshake of RLPx: two packets that agree on the secrets of a connection (EIP-8; devp2p, rlpx.md).

    auth = size(2) ‖ ECIES(recipient's key, [signature(65), initiator's key(64), nonce(32), version] ‖ padding)
    ack  = size(2) ‖ ECIES(initiator's key, [recipient's ephemeral key(64), nonce(32), version] ‖ padding)

The size is big-endian and is authenticated with what it counts. The signature is made with the initiator's ephemeral
key over (static shared secret ⊕ nonce), and so that key is recovered from it and nowhere written. Only the form of
EIP-8 is spoken, as go-ethereum does (p2p/rlpx/rlpx.go:597-622). Further items of a list, what follows the list, and
a version other than 4 are ignored: EIP-8 demands that.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from restante.common.errors import PeerError
from restante.waku.envelope import ecies, keys, rlp
from restante.waku.envelope.keccak import Keccak, keccak, running
from restante.waku.envelope.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Dice, Key
from restante.waku.envelope.rlp import BREACH

HANDSHAKE_VERSION: Final = 4
NONCE_BYTES: Final = 32

PREFIX_BYTES: Final = 3
"""Bytes from which the size and the form of a packet are told: the size, and the 04 that every point begins with."""

MAX_HANDSHAKE_BYTES: Final = 2048
"""Bytes of a packet, without its size; there is no trust yet, and EIP-8 advises at most 300 of padding, which makes
about 600. As much as a Hello may have."""

_MIN_PADDING_BYTES: Final = 100
"""Least bytes of padding; up to as many more (EIP-8)."""


class Auth(NamedTuple):
    """What the initiator says."""

    remote: bytes
    """Its public key, proven by the signature only together with the frames that follow."""
    ephemeral: bytes
    nonce: bytes


class Ack(NamedTuple):
    """What the recipient says."""

    ephemeral: bytes
    nonce: bytes


class Secrets(NamedTuple):
    """What both have when the handshake is done."""

    aes: bytes
    mac: bytes
    egress: Keccak
    ingress: Keccak


class Proposal(NamedTuple):
    """What an initiator keeps until the ack is there."""

    packet: bytes
    ephemeral: Key
    nonce: bytes


def size(prefix: bytes) -> int:
    """Give the bytes of a packet that follow its size. Raises PeerError: the old form, or a size that cannot be."""
    # Before EIP-8 a packet was ECIES alone: 04 and a random X. With the size in front the 04 is the third byte.
    if prefix[0] == 4 and prefix[2] != 4:
        raise PeerError(BREACH, "the handshake is of the form before EIP-8, which is not spoken here")
    found = int.from_bytes(prefix[:2], "big")
    if not ecies.OVERHEAD_BYTES < found <= MAX_HANDSHAKE_BYTES:
        raise PeerError(
            BREACH, f"a handshake packet has {ecies.OVERHEAD_BYTES + 1} to {MAX_HANDSHAKE_BYTES} bytes, not {found}"
        )
    return found


# ── the initiator ────────────────────────────────────────────────────────────────────────────────


def propose(key: Key, remote: bytes, dice: Dice) -> Proposal:
    """Make the auth packet for the recipient who has this public key. Raises PeerError where that is no key."""
    ephemeral, nonce = dice.key(), dice.draw(NONCE_BYTES)
    signature = ephemeral.sign(_xor(key.agree(remote), nonce))
    packet = _seal(remote, [signature, key.public, nonce, HANDSHAKE_VERSION], dice)
    return Proposal(packet, ephemeral, nonce)


def conclude(key: Key, proposal: Proposal, packet: bytes) -> Secrets:
    """Read the ack to what we proposed. Raises PeerError."""
    ack = read_ack(key, packet)
    shared = proposal.ephemeral.agree(ack.ephemeral)
    aes, mac = derive(shared, proposal.nonce, ack.nonce)
    egress = running(_xor(mac, ack.nonce) + proposal.packet)
    ingress = running(_xor(mac, proposal.nonce) + packet)
    return Secrets(aes, mac, egress, ingress)


def read_ack(key: Key, packet: bytes) -> Ack:
    """Open an ack packet, its size included. Raises PeerError."""
    fields = _open(key, packet, 3)
    return Ack(rlp.string(fields[0], PUBLIC_BYTES), rlp.string(fields[1], NONCE_BYTES))


# ── the recipient ────────────────────────────────────────────────────────────────────────────────


def accept(key: Key, packet: bytes, dice: Dice) -> tuple[bytes, bytes, Secrets]:
    """Read an auth packet; give the initiator's public key, our ack packet, and the secrets. Raises PeerError."""
    auth = read_auth(key, packet)
    ephemeral, nonce = dice.key(), dice.draw(NONCE_BYTES)
    answer = _seal(auth.remote, [ephemeral.public, nonce, HANDSHAKE_VERSION], dice)
    aes, mac = derive(ephemeral.agree(auth.ephemeral), auth.nonce, nonce)
    egress = running(_xor(mac, auth.nonce) + answer)
    ingress = running(_xor(mac, nonce) + packet)
    return auth.remote, answer, Secrets(aes, mac, egress, ingress)


def read_auth(key: Key, packet: bytes) -> Auth:
    """Open an auth packet, its size included. Raises PeerError."""
    fields = _open(key, packet, 4)
    signature, remote = rlp.string(fields[0], SIGNATURE_BYTES), rlp.string(fields[1], PUBLIC_BYTES)
    nonce = rlp.string(fields[2], NONCE_BYTES)
    return Auth(remote, keys.recover(_xor(key.agree(remote), nonce), signature), nonce)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


def derive(shared: bytes, initiator: bytes, recipient: bytes) -> tuple[bytes, bytes]:
    """Make the AES and the MAC secret of the shared ephemeral secret and both nonces (rlpx.md, "Handshake")."""
    session = keccak(shared + keccak(recipient + initiator))
    aes = keccak(shared + session)
    return aes, keccak(shared + aes)


def _seal(remote: bytes, fields: list[bytes | int], dice: Dice) -> bytes:
    plain = rlp.encode(fields) + bytes(_MIN_PADDING_BYTES + dice.draw(1)[0] % _MIN_PADDING_BYTES)
    prefix = (len(plain) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    return prefix + ecies.encrypt(
        remote, plain, ephemeral=dice.key(), iv=dice.draw(ecies.IV_BYTES), authenticated=prefix
    )


def _open(key: Key, packet: bytes, least: int) -> list[rlp.Item]:
    fields = rlp.items(rlp.decode(ecies.decrypt(key, packet[2:], packet[:2]), tail=True))
    if len(fields) < least:
        raise PeerError(BREACH, f"a handshake packet has at least {least} items, not {len(fields)}")
    return fields


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
