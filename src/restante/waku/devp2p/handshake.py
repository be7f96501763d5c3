"""The RLPx handshake: two packets that agree on the secrets of a connection (EIP-8; devp2p, rlpx.md).

    auth = size(2) ‖ ECIES(recipient's key, [signature(65), initiator's key(64), nonce(32), version] ‖ padding)
    ack  = size(2) ‖ ECIES(initiator's key, [recipient's ephemeral key(64), nonce(32), version] ‖ padding)

The size is big-endian and is authenticated with the ciphertext that it counts. The initiator signs (static shared
secret ⊕ nonce) with its ephemeral key. The recipient recovers that key from the signature, so the packet does not
contain it. Only the EIP-8 form is supported, as in go-ethereum (p2p/rlpx/rlpx.go:597-622). As EIP-8 requires, further
items of the list, bytes after the list, and a version other than 4 are ignored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.waku.envelope import ecies, keys, rlp
from restante.waku.envelope.keccak import Keccak, keccak, running
from restante.waku.envelope.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Key, new_key
from restante.waku.envelope.rlp import BREACH

HANDSHAKE_VERSION: Final = 4
NONCE_BYTES: Final = 32

PREFIX_BYTES: Final = 3
"""Bytes that determine the size and the form of a packet: the size, and the 04 with which every point begins."""

MAX_HANDSHAKE_BYTES: Final = 2048
"""Maximum size of a packet in bytes, without its size field. The peer is not authenticated yet. EIP-8 recommends at
most 300 bytes of padding, which makes packets of about 600. The limit is that of a Hello."""

_MIN_PADDING_BYTES: Final = 100
"""Minimum padding in bytes. A random number of bytes, less than this minimum, is added (EIP-8)."""


class Auth(NamedTuple):
    """The initiator's packet."""

    remote: bytes
    """The initiator's public key. The signature alone does not prove it; the frames that follow do."""
    ephemeral: bytes
    nonce: bytes


class Ack(NamedTuple):
    """The recipient's packet."""

    ephemeral: bytes
    nonce: bytes


class Secrets(NamedTuple):
    """The secrets that both ends have after the handshake."""

    aes: bytes
    mac: bytes
    egress: Keccak
    ingress: Keccak


class Proposal(NamedTuple):
    """What an initiator keeps until the ack arrives."""

    packet: bytes
    ephemeral: Key
    nonce: bytes


def size(prefix: bytes) -> int:
    """Return the number of bytes that follow a packet's size field.

    Raises PeerError if the packet has the form from before EIP-8, or if the size is out of range.
    """
    # Before EIP-8 a packet was ECIES only: 04, then a random X. In the EIP-8 form 04 is the third byte, after the
    # size.
    if prefix[0] == 4 and prefix[2] != 4:
        raise PeerError(BREACH, "the handshake has the format from before EIP-8, which is not supported")
    found = int.from_bytes(prefix[:2], "big")
    if not ecies.OVERHEAD_BYTES < found <= MAX_HANDSHAKE_BYTES:
        raise PeerError(
            BREACH, f"a handshake packet has {ecies.OVERHEAD_BYTES + 1} to {MAX_HANDSHAKE_BYTES} bytes, not {found}"
        )
    return found


# ── the initiator ────────────────────────────────────────────────────────────────────────────────


def propose(key: Key, remote: bytes, dice: Dice) -> Proposal:
    """Return the auth packet for the recipient with this public key. Raises PeerError if it is not a public key."""
    ephemeral, nonce = new_key(dice), dice.draw(NONCE_BYTES)
    signature = ephemeral.sign(_xor(key.agree(remote), nonce))
    packet = _seal(remote, [signature, key.public, nonce, HANDSHAKE_VERSION], dice)
    return Proposal(packet, ephemeral, nonce)


def conclude(key: Key, proposal: Proposal, packet: bytes) -> Secrets:
    """Read the recipient's ack and return the secrets. Raises PeerError."""
    ack = read_ack(key, packet)
    shared = proposal.ephemeral.agree(ack.ephemeral)
    aes, mac = derive(shared, proposal.nonce, ack.nonce)
    egress = running(_xor(mac, ack.nonce) + proposal.packet)
    ingress = running(_xor(mac, proposal.nonce) + packet)
    return Secrets(aes, mac, egress, ingress)


def read_ack(key: Key, packet: bytes) -> Ack:
    """Parse an ack packet, including its size field. Raises PeerError."""
    fields = _open(key, packet, 3)
    return Ack(rlp.string(fields[0], PUBLIC_BYTES), rlp.string(fields[1], NONCE_BYTES))


# ── the recipient ────────────────────────────────────────────────────────────────────────────────


def accept(key: Key, packet: bytes, dice: Dice) -> tuple[bytes, bytes, Secrets]:
    """Read an auth packet. Return the initiator's public key, our ack packet and the secrets. Raises PeerError."""
    auth = read_auth(key, packet)
    ephemeral, nonce = new_key(dice), dice.draw(NONCE_BYTES)
    answer = _seal(auth.remote, [ephemeral.public, nonce, HANDSHAKE_VERSION], dice)
    aes, mac = derive(ephemeral.agree(auth.ephemeral), auth.nonce, nonce)
    egress = running(_xor(mac, auth.nonce) + answer)
    ingress = running(_xor(mac, nonce) + packet)
    return auth.remote, answer, Secrets(aes, mac, egress, ingress)


def read_auth(key: Key, packet: bytes) -> Auth:
    """Parse an auth packet, including its size field. Raises PeerError."""
    fields = _open(key, packet, 4)
    signature, remote = rlp.string(fields[0], SIGNATURE_BYTES), rlp.string(fields[1], PUBLIC_BYTES)
    nonce = rlp.string(fields[2], NONCE_BYTES)
    return Auth(remote, keys.recover(_xor(key.agree(remote), nonce), signature), nonce)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


def derive(shared: bytes, initiator: bytes, recipient: bytes) -> tuple[bytes, bytes]:
    """Derive the AES and the MAC secret from the ephemeral shared secret and both nonces (rlpx.md, "Handshake")."""
    session = keccak(shared + keccak(recipient + initiator))
    aes = keccak(shared + session)
    return aes, keccak(shared + aes)


def _seal(remote: bytes, fields: list[bytes | int], dice: Dice) -> bytes:
    plain = rlp.encode(fields) + bytes(_MIN_PADDING_BYTES + dice.draw(1)[0] % _MIN_PADDING_BYTES)
    prefix = (len(plain) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    return prefix + ecies.encrypt(
        remote, plain, ephemeral=new_key(dice), iv=dice.draw(ecies.IV_BYTES), authenticated=prefix
    )


def _open(key: Key, packet: bytes, least: int) -> list[rlp.Item]:
    fields = rlp.items(rlp.decode(ecies.decrypt(key, packet[2:], packet[:2]), tail=True))
    if len(fields) < least:
        raise PeerError(BREACH, f"a handshake packet has at least {least} items, not {len(fields)}")
    return fields


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
