"""Where an envelope's row is: ids, and topics as numbers.

    id = sent(32) ‖ first 31 bits of the hash

Two envelopes of one second whose hashes begin alike would have the same id: whoever comes second gets the next lower
one that is free, in the same second. Downward, because pruning goes upward: of such envelopes the ones that had to
move go first, so everything between an envelope and where it would be is taken for as long as it is there, and to
find it, or to know that it is not there, is to walk down from where it would be to the first free id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from restante.waku.envelope.envelope import TOPIC, Envelope

BITS: Final = 31
"""Of an id, for the hash: with 32 of `sent` that is what a signed 64-bit integer holds."""

HASH_MASK: Final = (1 << BITS) - 1
"""The bits of an id that come from the hash."""

MAX_ID: Final = (1 << 63) - 1
"""The highest id."""

PROBES: Final = 1024
"""Ids that are tried. To fill as many in a row takes some 2^41 hashes of one's own making, and whoever did it has
his next envelope in that place and second left out; by chance it does not happen."""


def home(envelope: Envelope) -> int:
    """Give the id that an envelope has where nothing is in its way."""
    return named(envelope.sent, envelope.hash)


def named(sent: int, name: bytes) -> int:
    """Give that id from when it was sent, and its hash."""
    return sent << BITS | int.from_bytes(name[:4]) >> 1


def floor(sent: int) -> int:
    """Give the lowest id of a second."""
    return sent << BITS


def place(at: int, raw: bytes, there: Callable[[int], bytes | None]) -> int | None:
    """Find the free id for an envelope whose home is `at`; None where it is there already, or there is no room.

    `there` gives the RLP that an id has.
    """
    for tried in range(at, max(at - PROBES, floor(at >> BITS) - 1), -1):
        found = there(tried)
        if found is None:
            return tried
        if found == raw:
            return None
    return None


def number(topic: bytes) -> int:
    """Write a topic as a number: a small one for SQLite, which stores it in four bytes."""
    return int.from_bytes(topic, signed=True)


def numbers(topics: Iterable[bytes]) -> tuple[int, ...]:
    """Write many, at once; what is not as long as a topic is none."""
    found = [topic for topic in topics if len(topic) == TOPIC]
    return struct.unpack(f">{len(found)}i", b"".join(found))


def topic(written: int) -> bytes:
    """Read a topic's number."""
    return written.to_bytes(TOPIC, signed=True)
