"""Payloads compressed as EIP-706 has it: snappy's block form, which begins with the size before compression."""

from __future__ import annotations

from typing import Final

from cramjam import DecompressionError, snappy

from restante.common.errors import PeerError
from restante.waku.envelope.rlp import BREACH

_MAX_COPY_RATIO: Final = (3, 64)
"""So many bytes can make so many, and no others more (snappy format_description.txt, section 2.2.2)."""


_LITERAL_TAG: Final = 62 << 2
"""The tag of a literal whose length is in the next three bytes."""


def compress(payload: bytes) -> bytes:
    """Compress."""
    return bytes(snappy.compress_raw(payload))


def literal_head(size: int) -> bytes:
    """Give what stands before a payload of so many bytes, from 1 on, that is said as it is, in one piece.

    What is sealed cannot be compressed, and to try takes a copy of it (snappy format_description.txt, sections 1 and
    2.1: the size in digits of seven bits, the lowest first; then a literal whose length has three bytes).
    """
    digits = [size >> shift & 0x7F | 0x80 for shift in range(0, max(size.bit_length(), 1), 7)]
    digits[-1] &= 0x7F
    return bytes((*digits, _LITERAL_TAG)) + (size - 1).to_bytes(3, "little")


def decompress(compressed: bytes, most: int) -> bytes:
    """Inflate what has at most `most` bytes then. Raises PeerError."""
    try:
        size = snappy.decompress_raw_len(compressed)
        # Looked at before anything is set aside for it; a size that so few bytes cannot make is a lie.
        if size > most or size * _MAX_COPY_RATIO[0] > len(compressed) * _MAX_COPY_RATIO[1]:
            raise PeerError(BREACH, f"a packet says that it has {size} bytes when inflated")
        return bytes(snappy.decompress_raw(compressed))
    except DecompressionError:
        raise PeerError(BREACH, "a packet is not compressed as it must be") from None
