"""Keccak-256 as Ethereum uses it: the padding from before SHA-3 was a standard, so not hashlib's sha3_256."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import sha3


class Keccak(Protocol):
    """A running hash: `digest` may be taken at any time, and more absorbed after it."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Absorb."""

    def digest(self) -> bytes:
        """Give the 32 bytes of what was absorbed up to here."""

    def copy(self) -> Keccak:
        """Fork."""


def running(data: bytes = b"") -> Keccak:
    """Begin a running hash."""
    hasher: Keccak = sha3.keccak_256(data)
    return hasher


def keccak(data: bytes | memoryview) -> bytes:
    """Hash to 32 bytes."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest


def keccaks(each: Iterable[bytes | memoryview]) -> list[bytes]:
    """Hash many, each to 32 bytes."""
    begin = sha3.keccak_256
    return [begin(data).digest() for data in each]
