"""What is derived from the key that SPAKE2 agrees on, and how messages are sealed with it."""

from __future__ import annotations

import hashlib
from typing import Final

from nacl.bindings import (
    crypto_secretbox_easy,
    crypto_secretbox_MACBYTES,
    crypto_secretbox_NONCEBYTES,
    crypto_secretbox_open,
)
from nacl.exceptions import CryptoError

from restante.client.arguments import is_integer, is_text
from restante.client.protocol.hkdf import MAX_DERIVED_BYTES, hkdf, hkdf_expand, hkdf_extract
from restante.common.errors import Misuse

KEY_BYTES: Final = 32
NONCE_BYTES: Final = crypto_secretbox_NONCEBYTES
OVERHEAD_BYTES: Final = crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES
"""Bytes that sealing adds: the nonce before the ciphertext, and its authenticator."""


class MessageKeys:
    """The keys of the messages of a wormhole: each side and phase has its own (magic-wormhole: _key.py:20)."""

    def __init__(self, key: bytes) -> None:
        self._extracted = hkdf_extract(key)  # once, and not again for each message
        self._sides: dict[str, bytes] = {}

    def key(self, side: str, phase: str) -> bytes:
        """Return the key of a message."""
        prefix = self._sides.get(side)
        if prefix is None:
            prefix = self._sides[side] = b"wormhole:phase:" + _hash(side)
        return hkdf_expand(self._extracted, prefix + _hash(phase), KEY_BYTES)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


def verifier(key: bytes) -> bytes:
    """Return 32 bytes that both sides can compare over another channel (_key.py, `derive_key`)."""
    return hkdf(key, b"wormhole:verifier", KEY_BYTES)


def check_derivable(purpose: str, size: int) -> None:
    """Raise Misuse if no key can be derived for a purpose, or none of this size."""
    if not is_text(purpose):
        raise Misuse(f"the purpose of a key is a text like 'example.com/files', not {purpose!r}")
    if not is_integer(size, 1, MAX_DERIVED_BYTES):
        raise Misuse(f"a key has 1 to {MAX_DERIVED_BYTES} bytes, not {size!r}")


def seal(key: bytes, plaintext: bytes, nonce: bytes) -> bytes:
    """Return the nonce and the ciphertext. A nonce must never be used twice with a key."""
    return nonce + crypto_secretbox_easy(plaintext, nonce, key)


def open_sealed(key: bytes, sealed: bytes) -> bytes:
    """Return the plaintext. Raises ValueError if it was sealed with another key, was altered, or is too short."""
    if len(sealed) < OVERHEAD_BYTES:
        raise ValueError("shorter than a sealed message")
    try:
        return crypto_secretbox_open(sealed[NONCE_BYTES:], sealed[:NONCE_BYTES], key)
    except CryptoError as error:
        raise ValueError("sealed with another key, or altered") from error
