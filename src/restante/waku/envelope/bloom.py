"""Bloom filters over topics: a filter has 512 bits, a topic sets up to three of them (6/WAKU1 "Bloom Filter").

A filter is an int: bit n of byte b of the 64 bytes on the wire is bit 8b + n of the int. Implementations derive a
topic's bits in two ways. 6/WAKU1 and nim-waku set all three bits (`of`). status-go overwrites a byte if two of the
bits fall into it, so that only the last bit remains (waku/common/topic.go:45-60). This happens for one topic in 25.
`kept` returns the remaining bits, a subset of `of`. A filter that is sent is made with `of`, a topic that is matched
uses `kept`. So both kinds of peers receive what they ask for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

FILTER_BYTES: Final = 64
"""Size of a filter in bytes."""
ALL_BITS: Final = (1 << (FILTER_BYTES * 8)) - 1
"""The filter that passes every topic."""


def of(topics: Iterable[bytes]) -> int:
    """Return the filter that passes these topics."""
    found = 0
    for topic in topics:
        for place in _places(topic):
            found |= 1 << place
    return found


@lru_cache(maxsize=1 << 16)
def kept(topic: bytes) -> int:
    """Return the bits that a filter must have to pass this topic."""
    bytes_set: dict[int, int] = {}
    for place in _places(topic):
        bytes_set[place // 8] = place
    return sum(1 << place for place in bytes_set.values())


def _places(topic: bytes) -> list[int]:
    return [topic[n] + (256 if topic[3] >> n & 1 else 0) for n in range(3)]


def passes(bloom: int, topic: bytes) -> bool:
    """Return whether a filter passes a topic."""
    sample = kept(topic)
    return bloom & sample == sample


def read(wire: bytes) -> int:
    """Parse a filter of 64 bytes.

    An empty one is a full node's and passes every topic (waku/common/bloomfilter.go, IsFullNode).
    """
    return int.from_bytes(wire, "little") if wire else ALL_BITS


def write(bloom: int) -> bytes:
    """Encode a filter as 64 bytes."""
    return bloom.to_bytes(FILTER_BYTES, "little")
