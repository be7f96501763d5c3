"""Keys of the curve secp256k1: who a node is, and who signed.

A public key is written as the 64 bytes X ‖ Y, without the leading 04 that others put before it.
"""

from __future__ import annotations

from typing import Final

import coincurve

from restante.errors import PeerError
from restante.waku.keccak import keccak
from restante.waku.rlp import BREACH

SECRET: Final = 32
PUBLIC: Final = 64
SIGNATURE: Final = 65
"""Bytes of a signature r ‖ s ‖ v; v is 0 or 1 (7/WAKU-DATA says 27 or 28, which status-go refuses)."""


class Key:
    """A private key. Raises ValueError for 32 bytes that are none: 0, or not below the curve's order."""

    __slots__ = ("_key", "public")

    def __init__(self, secret: bytes) -> None:
        self._key = coincurve.PrivateKey(secret)
        self.public: Final = self._key.public_key.format(compressed=False)[1:]

    @property
    def secret(self) -> bytes:
        return self._key.secret

    def sign(self, digest: bytes) -> bytes:
        """Sign 32 bytes, which are not hashed again; who signed can be recovered."""
        return self._key.sign_recoverable(digest, hasher=None)

    def agree(self, public: bytes) -> bytes:
        """Give the X coordinate of the Diffie-Hellman point. Raises PeerError where `public` is no point."""
        return _point(public).multiply(self._key.secret).format(compressed=False)[1:33]


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
    if len(signature) != SIGNATURE or signature[64] > 1:
        raise PeerError(BREACH, "a signature is 65 bytes, the last of them 0 or 1")
    try:
        found = coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)
    except Exception:  # noqa: BLE001 - coincurve raises bare Exception where the library recovers nothing
        raise PeerError(BREACH, "a signature is not valid") from None
    return found.format(compressed=False)[1:]


def node_id(public: bytes) -> bytes:
    """Give the 32 bytes that a node is known by (devp2p, enode URL): the hash of its public key."""
    return keccak(public)
