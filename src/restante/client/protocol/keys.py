"""What is derived from the key that SPAKE2 agrees on, and how messages are sealed with it."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from nacl.bindings import (
    crypto_secretbox_easy,
    crypto_secretbox_MACBYTES,
    crypto_secretbox_NONCEBYTES,
    crypto_secretbox_open,
)
from nacl.exceptions import CryptoError

from restante.client.protocol.spake2 import hkdf

KEY_BYTES: Final = 32
MAX_DERIVED_BYTES: Final = 255 * 32
"""Bytes of a derived key: HKDF has no more (RFC 5869 section 2.3)."""
NONCE_BYTES: Final = crypto_secretbox_NONCEBYTES
OVERHEAD_BYTES: Final = crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES
"""Bytes that sealing adds: the nonce before the ciphertext, and its authenticator."""

_SHA256: Final = SHA256()


class UndecryptableError(ValueError):
    """A message was sealed with another key, or altered."""


class MessageKeys:
    """The keys of the messages of a wormhole: each side and phase has its own (magic-wormhole: _key.py:20)."""

    def __init__(self, key: bytes) -> None:
        self._extracted = HKDF.extract(_SHA256, None, key)  # once, and not again for each message
        self._sides: dict[str, bytes] = {}

    def of(self, side: str, phase: str) -> bytes:
        """Return the key of a message."""
        beginning = self._sides.get(side)
        if beginning is None:
            beginning = self._sides[side] = b"wormhole:phase:" + _hash(side)
        return HKDFExpand(_SHA256, KEY_BYTES, beginning + _hash(phase)).derive(self._extracted)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


def verifier(key: bytes) -> bytes:
    """Return 32 bytes that both sides can compare over another channel (_key.py, `derive_key`)."""
    return hkdf(key, b"wormhole:verifier", KEY_BYTES)


def application_key(key: bytes, purpose: str, size: int = KEY_BYTES) -> bytes:
    """Return a key for the application's own use."""
    return hkdf(key, purpose.encode(), size)


def seal(key: bytes, plaintext: bytes, nonce: bytes) -> bytes:
    """Return the nonce and the ciphertext. A nonce must never be used twice with a key."""
    return nonce + crypto_secretbox_easy(plaintext, nonce, key)


def open_sealed(key: bytes, sealed: bytes) -> bytes:
    """Return the plaintext.

    Raises:
        UndecryptableError: it was sealed with another key, or altered, or is too short to be sealed.

    """
    if len(sealed) < OVERHEAD_BYTES:
        raise UndecryptableError("shorter than a sealed message")
    try:
        return crypto_secretbox_open(sealed[NONCE_BYTES:], sealed[:NONCE_BYTES], key)
    except CryptoError as error:
        raise UndecryptableError("sealed with another key, or altered") from error
