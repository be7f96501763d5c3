"""Keys of the curve secp256k1, for node identities and signatures.

A public key is the 64 bytes X ‖ Y, without the leading 04 of the usual uncompressed form.
"""

from __future__ import annotations

from typing import Final

import coincurve

from restante.common.dice import Dice
from restante.common.errors import PeerError
from restante.waku.envelope.keccak import keccak
from restante.waku.envelope.rlp import BREACH

SECRET_BYTES: Final = 32
PUBLIC_BYTES: Final = 64
SIGNATURE_BYTES: Final = 65
"""Size of a signature r ‖ s ‖ v in bytes. v is 0 or 1 (7/WAKU-DATA says 27 or 28, which status-go refuses)."""


class Key:
    """A private key. Raises ValueError if it is not 32 bytes, is 0, or is not below the curve's order."""

    __slots__ = ("_signer", "public", "secret")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a private key has {SECRET_BYTES} bytes, not {len(secret)}")
        self.public: Final = coincurve.PublicKey.from_secret(secret).format(compressed=False)[1:]
        self.secret: Final = secret
        # coincurve's PrivateKey computes the public key again, and most keys of handshakes sign nothing.
        self._signer: coincurve.PrivateKey | None = None

    def sign(self, digest: bytes) -> bytes:
        """Sign 32 bytes without hashing them again. The signer's public key can be recovered from the signature."""
        if self._signer is None:
            self._signer = coincurve.PrivateKey(self.secret)
        return self._signer.sign_recoverable(digest, hasher=None)

    def agree(self, public: bytes) -> bytes:
        """Return the X coordinate of the Diffie-Hellman point.

        Raises PeerError if `public` is not a point of the curve.
        """
        return _point(public).multiply(self.secret).format(compressed=False)[1:33]


def _point(public: bytes) -> coincurve.PublicKey:
    try:
        return coincurve.PublicKey(b"\4" + public)
    except ValueError:
        raise PeerError(BREACH, "a public key is not on the curve") from None


def check(public: bytes) -> None:
    """Raise PeerError if these 64 bytes are not a public key."""
    _point(public)


def recover(digest: bytes, signature: bytes) -> bytes:
    """Return the public key that signed a digest. Raises PeerError if the signature is not valid."""
    if len(signature) != SIGNATURE_BYTES or signature[64] > 1:
        raise PeerError(BREACH, "a signature is 65 bytes, the last of them 0 or 1")
    try:
        signer = coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)
    except Exception:  # noqa: BLE001 - coincurve raises bare Exception if the library cannot recover a key
        raise PeerError(BREACH, "a signature is not valid") from None
    return signer.format(compressed=False)[1:]


def node_id(public: bytes) -> bytes:
    """Return the 32 bytes that identify a node (devp2p, enode URL): the hash of its public key."""
    return keccak(public)


def new_key(dice: Dice) -> Key:
    """Return a new random key."""
    while True:
        try:
            return Key(dice.draw(SECRET_BYTES))
        except ValueError:  # with probability 2^-128: not a key of the curve
            continue
