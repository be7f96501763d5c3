"""Bloom filters over topics: 512 bits, three of them for a topic (6/WAKU1 "Bloom Filter").

A filter is an int here: bit n of byte b of the 64 on the wire is bit 8b + n. Two functions make the filter of a
topic. 6/WAKU1 and nim-waku set all three bits (`of`). status-go overwrites a byte where two of the bits meet in it
(waku/common/topic.go:45-60), which one topic in 25 has: `kept` gives what is left, a part of `of`. A filter that
is asked with is made with `of`, a topic that is matched with `kept`, and both sorts of peers get what they want.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

FILTER_BYTES: Final = 64
"""Bytes of a filter."""
ALL_BITS: Final = (1 << (FILTER_BYTES * 8)) - 1
"""Everything."""


def of(topics: Iterable[bytes]) -> int:
    """Make the filter that lets these topics through."""
    found = 0
    for topic in topics:
        for place in _places(topic):
            found |= 1 << place
    return found


@lru_cache(maxsize=1 << 16)
def kept(topic: bytes) -> int:
    """Make what a filter must have to let this topic through."""
    bytes_set: dict[int, int] = {}
    for place in _places(topic):
        bytes_set[place // 8] = place
    return sum(1 << place for place in bytes_set.values())


def _places(topic: bytes) -> list[int]:
    return [topic[n] + (256 if topic[3] >> n & 1 else 0) for n in range(3)]


def passes(bloom: int, topic: bytes) -> bool:
    """Tell whether a filter lets a topic through."""
    sample = kept(topic)
    return bloom & sample == sample


def read(wire: bytes) -> int:
    """Read a filter's 64 bytes; none at all is a full node's, everything (waku/common/bloomfilter.go, IsFullNode)."""
    return int.from_bytes(wire, "little") if wire else ALL_BITS


def write(bloom: int) -> bytes:
    """Write a filter as its 64 bytes."""
    return bloom.to_bytes(FILTER_BYTES, "little")
