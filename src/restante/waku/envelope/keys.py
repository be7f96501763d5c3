"""Keys of the curve secp256k1: who a node is, and who signed.

A public key is written as the 64 bytes X ‖ Y, without the leading 04 that others put before it.
"""

from __future__ import annotations

from typing import Final, Protocol

import coincurve

from restante.common.errors import PeerError
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.rlp import BREACH

SECRET_BYTES: Final = 32
PUBLIC_BYTES: Final = 64
SIGNATURE_BYTES: Final = 65
"""Bytes of a signature r ‖ s ‖ v; v is 0 or 1 (7/WAKU-DATA says 27 or 28, which status-go refuses)."""


class Key:
    """A private key. Raises ValueError for what is none: not 32 bytes, 0, or not below the curve's order."""

    __slots__ = ("_signer", "public", "secret")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a private key has {SECRET_BYTES} bytes, not {len(secret)}")
        self.public: Final = coincurve.PublicKey.from_secret(secret).format(compressed=False)[1:]
        self.secret: Final = secret
        # coincurve's private key computes its public key twice; keys of one handshake mostly sign nothing.
        self._signer: coincurve.PrivateKey | None = None

    def sign(self, digest: bytes) -> bytes:
        """Sign 32 bytes, which are not hashed again; who signed can be recovered."""
        if self._signer is None:
            self._signer = coincurve.PrivateKey(self.secret)
        return self._signer.sign_recoverable(digest, hasher=None)

    def agree(self, public: bytes) -> bytes:
        """Give the X coordinate of the Diffie-Hellman point. Raises PeerError where `public` is no point."""
        return _point(public).multiply(self.secret).format(compressed=False)[1:33]


def _point(public: bytes) -> coincurve.PublicKey:
    try:
        return coincurve.PublicKey(b"\4" + public)
    except ValueError:
        raise PeerError(BREACH, "a public key is not on the curve") from None


def check(public: bytes) -> None:
    """Raise PeerError where these 64 bytes are no public key."""
    _point(public)


def recover(digest: bytes, signature: bytes) -> bytes:
    """Tell who signed a digest, as a public key. Raises PeerError where nobody can have."""
    if len(signature) != SIGNATURE_BYTES or signature[64] > 1:
        raise PeerError(BREACH, "a signature is 65 bytes, the last of them 0 or 1")
    try:
        found = coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)
    except Exception:  # noqa: BLE001 - coincurve raises bare Exception where the library recovers nothing
        raise PeerError(BREACH, "a signature is not valid") from None
    return found.format(compressed=False)[1:]


def node_id(public: bytes) -> bytes:
    """Give the 32 bytes that a node is known by (devp2p, enode URL): the hash of its public key."""
    return keccak(public)


class Dice(Protocol):
    """A source of keys and bytes that nobody can guess, as an argument."""

    def key(self) -> Key:
        """Make a key that nobody has had."""

    def draw(self, size: int) -> bytes:
        """Return so many bytes."""
