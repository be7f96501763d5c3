"""Keys that are derived from others: HKDF with SHA-256 and without salt (RFC 5869)."""

from __future__ import annotations

import hmac
from typing import Final

HASH: Final = "sha256"
HASH_BYTES: Final = 32
NO_SALT: Final = bytes(HASH_BYTES)

MAX_DERIVED_BYTES: Final = 255 * HASH_BYTES
"""Bytes of a derived key: HKDF has no more (section 2.3)."""


def hkdf(key: bytes, purpose: bytes, size: int) -> bytes:
    """Return `size` bytes that are derived from a key. Raises ValueError if nobody can derive so many."""
    return hkdf_expand(hkdf_extract(key), purpose, size)


def hkdf_extract(key: bytes) -> bytes:
    """Return what `hkdf_expand` needs. It is the same for every purpose."""
    return hmac.digest(NO_SALT, key, HASH)


def hkdf_expand(extracted: bytes, purpose: bytes, size: int) -> bytes:
    """Return `size` bytes for a purpose. Raises ValueError if nobody can derive so many."""
    if not 0 < size <= MAX_DERIVED_BYTES:
        raise ValueError(f"a derived key has 1 to {MAX_DERIVED_BYTES} bytes, not {size}")
    derived = block = b""
    for number in range(1, -(-size // HASH_BYTES) + 1):
        block = hmac.digest(extracted, block + purpose + bytes((number,)), HASH)
        derived += block
    return derived[:size]
