"""Keccak-256 as Ethereum uses it. Its padding predates the SHA-3 standard, so hashlib's sha3_256 differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import sha3


class Keccak(Protocol):
    """A running hash. `digest` may be called at any time, and `update` after it."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add data to the hash."""

    def digest(self) -> bytes:
        """Return the 32-byte hash of the data added so far."""

    def copy(self) -> Keccak:
        """Return an independent copy of the hash's state."""


def running_keccak(data: bytes = b"") -> Keccak:
    """Return a running hash that begins with `data`."""
    hasher: Keccak = sha3.keccak_256(data)
    return hasher


def keccak(data: bytes | memoryview) -> bytes:
    """Return the 32-byte hash."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest


def keccaks(items: Iterable[bytes | memoryview]) -> list[bytes]:
    """Return the 32-byte hash of each item."""
    new_hash = sha3.keccak_256
    return [new_hash(data).digest() for data in items]
