"""Payload compression of EIP-706: snappy's block format, which begins with the uncompressed size."""

from __future__ import annotations

from typing import Final

from cramjam import DecompressionError, snappy

from restante.common.errors import PeerError
from restante.waku.envelope.rlp import BREACH

_MAX_COPY_RATIO: Final = (3, 64)
"""Maximum expansion: 3 compressed bytes produce at most 64 bytes (snappy format_description.txt, section 2.2.2)."""


_LITERAL_TAG: Final = 62 << 2
"""The tag of a literal whose length is in the next three bytes."""


def compress(payload: bytes) -> bytes:
    """Return the compressed payload."""
    return bytes(snappy.compress_raw(payload))


def literal_head(size: int) -> bytes:
    """Return the head of an uncompressed payload of `size` bytes, at least 1, as one literal.

    Sealed data cannot be compressed, and compressing it would copy it (snappy format_description.txt, sections 1 and
    2.1: the size in digits of seven bits, the lowest first; then a literal whose length has three bytes).
    """
    digits = [size >> shift & 0x7F | 0x80 for shift in range(0, max(size.bit_length(), 1), 7)]
    digits[-1] &= 0x7F
    return bytes((*digits, _LITERAL_TAG)) + (size - 1).to_bytes(3, "little")


def decompress(compressed: bytes, max_bytes: int) -> bytes:
    """Return the decompressed payload. Raises PeerError if it would have more than `max_bytes` or is not valid."""
    try:
        size = snappy.decompress_raw_len(compressed)
        # The size is checked before memory is allocated. A size that so few bytes cannot produce is false.
        if size > max_bytes or size * _MAX_COPY_RATIO[0] > len(compressed) * _MAX_COPY_RATIO[1]:
            raise PeerError(BREACH, f"a packet declares {size} bytes uncompressed, which is too many or impossible")
        return bytes(snappy.decompress_raw(compressed))
    except DecompressionError:
        raise PeerError(BREACH, "a packet is not valid Snappy data") from None
