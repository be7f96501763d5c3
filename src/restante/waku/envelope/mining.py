"""Mining: the search for a nonce that gives an envelope the work that peers require (6/WAKU1 "PoW Requirements").

    work = 2^(leading zero bits of the hash) / bytes of the envelope without its nonce / seconds it lives

Work of `min_pow` takes `min_pow x bytes x seconds` hashes on average, rounded up to a power of two: twice the data or
twice the ttl takes twice the work. At 2e-6, which status-go requires, an envelope of 300 bytes that lives for a
minute takes one hash, and an envelope of 100 kB that lives for an hour takes 1,024.

The divisor is the number of bytes that peers count. status-go mines for 20 bytes plus the data
(waku/common/envelope.go, powToFirstBit). If the fields take more than 20 bytes, its result is below its own
requirement.
"""

from __future__ import annotations

import math
from typing import Final

from restante.common.errors import Misuse
from restante.waku.envelope.envelope import U64, Envelope, make, work
from restante.waku.envelope.keccak import running_keccak

MAX_HASHES: Final = 1 << 22
"""Maximum number of hashes to try: a few seconds of work."""

EXTRA_TTL_SECONDS: Final = 11
"""Seconds added to the ttl for mining. A peer whose clock is up to 10 seconds behind accepts the envelope and adds
the difference and 1 second to its ttl (waku/waku.go:1280-1287)."""


class NotMined(Misuse):
    """The budget is spent. `best` has the most work that was found."""

    def __init__(self, text: str, best: Envelope) -> None:
        super().__init__(text)
        self.best = best


def average_hashes(envelope: Envelope, min_pow: float, *, late: int = EXTRA_TTL_SECONDS) -> int:
    """Return the average number of hashes that such a nonce takes. The search can take ten times as many."""
    average = min_pow * len(envelope.bare) * (envelope.ttl + late)
    return 1 << max(0, math.ceil(math.log2(average))) if average > 0 else 1


def mine(
    envelope: Envelope, min_pow: float, *, start: int, budget: int = MAX_HASHES, late: int = EXTRA_TTL_SECONDS
) -> Envelope:
    """Return the envelope with a nonce for which `pow(late)` is at least `min_pow`. `pow()` is then slightly higher.

    Nonces are tried from `start` on, which should be random: if every sender began at 0, equal envelopes would be
    identical. The envelope's present nonce is ignored. Raises NotMined after `budget` hashes of about 1 µs each.
    """
    prefix = envelope.bare
    absorbed_prefix = running_keccak(prefix)
    seconds = envelope.ttl + late
    lowest_digest, best_nonce = b"\xff" * 33, start
    for nonce in range(start, start + budget):
        hasher = absorbed_prefix.copy()  # so each try hashes only the last block, however long the data is
        hasher.update((nonce & U64).to_bytes(8, "big"))
        digest = hasher.digest()
        if digest < lowest_digest:
            lowest_digest, best_nonce = digest, nonce
            if work(digest, len(prefix), seconds) >= min_pow:
                return _with_nonce(envelope, nonce)
    average = average_hashes(envelope, min_pow, late=late)
    raise NotMined(
        f"no proof of work of {min_pow:g} found in {budget} hashes; it takes {average} on average: shorten the ttl or"
        " the data, or raise the budget",
        _with_nonce(envelope, best_nonce),
    )


def _with_nonce(envelope: Envelope, nonce: int) -> Envelope:
    return make(envelope.expiry, envelope.ttl, envelope.topic, envelope.data, nonce & U64)
