"""Payloads compressed as EIP-706 has it: snappy's block form, which begins with the size before compression."""

from __future__ import annotations

from typing import Final

from cramjam import DecompressionError, snappy

from restante.errors import PeerError
from restante.waku.rlp import BREACH

_COPY: Final = (3, 64)
"""So many bytes can make so many, and no others more (snappy format_description.txt, section 2.2.2)."""


def pack(payload: bytes) -> bytes:
    """Compress."""
    return bytes(snappy.compress_raw(payload))


def unpack(packed: bytes, most: int) -> bytes:
    """Inflate what has at most `most` bytes then. Raises PeerError."""
    try:
        size = snappy.decompress_raw_len(packed)
        # Looked at before anything is set aside for it; a size that so few bytes cannot make is a lie.
        if size > most or size * _COPY[0] > len(packed) * _COPY[1]:
            raise PeerError(BREACH, f"a packet says that it has {size} bytes when inflated")
        return bytes(snappy.decompress_raw(packed))
    except DecompressionError:
        raise PeerError(BREACH, "a packet is not compressed as it must be") from None
