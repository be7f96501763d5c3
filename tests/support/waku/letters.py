"""Envelopes and keys for tests, and the time they live in."""

from __future__ import annotations

from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import Key

EPOCH = 1_700_000_000
"""Now, until a test moves the clock."""

TOPIC = b"\1\2\3\4"

KEY = Key(bytes(range(1, 33)))
OTHER_KEY = Key(bytes(range(2, 34)))


def letter(
    number: int = 0, *, topic: bytes = TOPIC, ttl: int = 50, age: int = 0, size: int = 3, now: int = EPOCH
) -> Envelope:
    """Make an envelope that was sent `age` seconds ago; another number makes another one."""
    return make(now - age + ttl, ttl, topic, bytes(size), number)
