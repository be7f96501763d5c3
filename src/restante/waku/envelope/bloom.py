"""Bloom filters over topics: a filter has 512 bits, a topic sets up to three of them (6/WAKU1 "Bloom Filter").

A filter is an int: bit n of byte b of the 64 bytes on the wire is bit 8b + n of the int. Implementations derive a
topic's bits in two ways. 6/WAKU1 and nim-waku set all three bits (`filter_of`). status-go overwrites a byte if two of
the bits fall into it, so that only the last bit remains (waku/common/topic.go:45-60). This happens for one topic in
25. `required_bits` returns the remaining bits, a subset of those of `filter_of`. A filter that is sent is made with
`filter_of`, a topic that is matched uses `required_bits`. So both kinds of peers receive what they ask for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

FILTER_BYTES: Final = 64
"""Size of a filter in bytes."""
ALL_BITS: Final = (1 << (FILTER_BYTES * 8)) - 1
"""The filter that passes every topic."""


def filter_of(topics: Iterable[bytes]) -> int:
    """Return the filter that passes these topics."""
    bits = 0
    for topic in topics:
        for bit in _bit_numbers(topic):
            bits |= 1 << bit
    return bits


@lru_cache(maxsize=1 << 16)
def required_bits(topic: bytes) -> int:
    """Return the bits that a filter must have to pass this topic."""
    bytes_set: dict[int, int] = {}
    for bit in _bit_numbers(topic):
        bytes_set[bit // 8] = bit
    return sum(1 << bit for bit in bytes_set.values())


def _bit_numbers(topic: bytes) -> list[int]:
    return [topic[n] + (256 if topic[3] >> n & 1 else 0) for n in range(3)]


def passes(bloom: int, topic: bytes) -> bool:
    """Return whether a filter passes a topic."""
    required = required_bits(topic)
    return bloom & required == required


def parse(wire: bytes) -> int:
    """Parse a filter of 64 bytes.

    An empty one is a full node's and passes every topic (waku/common/bloomfilter.go, IsFullNode).
    """
    return int.from_bytes(wire, "little") if wire else ALL_BITS


def encode(bloom: int) -> bytes:
    """Encode a filter as 64 bytes."""
    return bloom.to_bytes(FILTER_BYTES, "little")
