"""The ids of envelopes, and topics as numbers.

    id = sent(32) ‖ first 31 bits of the hash

Two envelopes of the same second whose hashes begin with the same 31 bits would have the same id. The one saved later
gets the next lower free id of that second. Ids move down because pruning moves up: it removes the moved envelopes
first. So every id between an envelope's home and its actual id is taken as long as the envelope is stored. A lookup
walks down from the home to the first free id, and either finds the envelope or shows that it is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from restante.waku.envelope.envelope import TOPIC, Envelope

BITS: Final = 31
"""Bits of an id that come from the hash. With the 32 bits of `sent` they fill a signed 64-bit integer."""

HASH_MASK: Final = (1 << BITS) - 1
"""Mask of these bits."""

MAX_ID: Final = (1 << 63) - 1
"""The highest id."""

PROBES: Final = 1024
"""Maximum ids that are tried. To fill that many in a row, an attacker must compute about 2^41 hashes. Then only
envelopes of that second with these hash prefixes are left out. It does not happen by chance."""


def home(envelope: Envelope) -> int:
    """Return the id that an envelope has if no other envelope has it."""
    return home_of(envelope.sent, envelope.hash)


def home_of(sent: int, digest: bytes) -> int:
    """Return the home id of an envelope with this time of sending and this hash."""
    return sent << BITS | int.from_bytes(digest[:4]) >> 1


def lowest_id(sent: int) -> int:
    """Return the lowest id of a second."""
    return sent << BITS


def find_free_id(home_id: int, raw: bytes, read_raw: Callable[[int], bytes | None]) -> int | None:
    """Return the free id for an envelope whose home id is `home_id`. None: it is stored already, or no id is free.

    `read_raw` returns the RLP that is stored at an id.
    """
    for candidate in range(home_id, max(home_id - PROBES, lowest_id(home_id >> BITS) - 1), -1):
        stored = read_raw(candidate)
        if stored is None:
            return candidate
        if stored == raw:
            return None
    return None


def topic_number(topic: bytes) -> int:
    """Return a topic as a number. SQLite stores it in four bytes."""
    return int.from_bytes(topic, signed=True)


def topic_numbers(topics: Iterable[bytes]) -> tuple[int, ...]:
    """Return topics as numbers, in one pass. Strings that do not have the size of a topic are left out."""
    valid = [topic for topic in topics if len(topic) == TOPIC]
    return struct.unpack(f">{len(valid)}i", b"".join(valid))


def number_topic(number: int) -> bytes:
    """Return the topic of a number."""
    return number.to_bytes(TOPIC, signed=True)
