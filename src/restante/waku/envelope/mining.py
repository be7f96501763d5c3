"""Mining: a nonce with which an envelope has as much work as peers ask for (6/WAKU1 "PoW Requirements").

    work = 2^(leading zero bits of the hash) / bytes of the envelope less its nonce / seconds it lives

So work of `least` takes `least x bytes x seconds` hashes, rounded up to a power of two, on average: twice the data or
twice the ttl is twice the work. At 2e-6, which status-go asks for, an envelope of 300 bytes that lives for a minute
takes one hash, one of 100 kB that lives for an hour takes 1,024.

Work divides by the very bytes that a peer will look at. status-go mines for 20 bytes and the data instead
(waku/common/envelope.go, powToFirstBit), which falls short of what it asks for where the fields take more.
"""

from __future__ import annotations

import math
from typing import Final

from restante.common.errors import Misuse
from restante.waku.envelope.envelope import U64, Envelope, make, work
from restante.waku.envelope.keccak import running

MAX_HASHES: Final = 1 << 22
"""Hashes that are tried: a few seconds of work."""

EXTRA_TTL_SECONDS: Final = 11
"""Seconds that are mined for beyond the ttl. A peer whose clock is behind by up to 10 takes the envelope and adds to
its ttl what it is ahead, and 1 (waku/waku.go:1280-1287)."""


class NotMined(Misuse):
    """The budget was spent. `best` has the most work that was found."""

    def __init__(self, words: str, best: Envelope) -> None:
        super().__init__(words)
        self.best = best


def hashes(envelope: Envelope, least: float, *, late: int = EXTRA_TTL_SECONDS) -> int:
    """Tell how many hashes it takes on average to find such a nonce; it can take ten times as many."""
    wanted = least * len(envelope.bare) * (envelope.ttl + late)
    return 1 << max(0, math.ceil(math.log2(wanted))) if wanted > 0 else 1


def mine(
    envelope: Envelope, least: float, *, start: int, budget: int = MAX_HASHES, late: int = EXTRA_TTL_SECONDS
) -> Envelope:
    """Find a nonce with which the envelope's `pow(late)` is at least so much, and so its `pow()` a little above.

    Nonces are tried from `start` on, which is chance: with 0 for all, equal envelopes would be the same envelope. The
    nonce that it has is not looked at. Raises NotMined after `budget` hashes, which take about 1 µs each.
    """
    prefix = envelope.bare
    absorbed = running(prefix)
    seconds = envelope.ttl + late
    best, found = b"\xff" * 33, start
    for nonce in range(start, start + budget):
        hasher = absorbed.copy()  # so a try costs the last block, however long the data
        hasher.update((nonce & U64).to_bytes(8, "big"))
        digest = hasher.digest()
        if digest < best:
            best, found = digest, nonce
            if work(digest, len(prefix), seconds) >= least:
                return _with(envelope, nonce)
    raise NotMined(
        f"no work of {least:g} in {budget} hashes, it takes {hashes(envelope, least, late=late)} on average:"
        " shorten the ttl or the data, or raise the budget",
        _with(envelope, found),
    )


def _with(envelope: Envelope, nonce: int) -> Envelope:
    return make(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, nonce & U64)
