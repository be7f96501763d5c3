"""Which envelopes of a Messages packet are taken (waku/waku.go:1275-1365), and which of them we refuse beyond that.

The checks are in order of their cost: numbers, then the topic, then the hash of the work; only which flaw of several
is told depends on that. Unlike status-go we bound the ttl: whoever has the work for it could else date an envelope
back by decades, and `sent` is what an archive is asked by.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from restante.waku import bloom
from restante.waku.envelope import U32, Envelope

AHEAD: Final = 10
"""Seconds that a sender's clock may be ahead of ours (waku/common/const.go, DefaultSyncAllowance)."""

BEHIND: Final = 20
"""Seconds after its expiry in which an envelope is dropped without a word: it was under way (waku/waku.go:1292)."""

DAY: Final = 86400

TIME: Final = 21
OTHER: Final = 22
"""Codes that a Message Response gives. 6/WAKU1 says 1; Go's iota made them these (waku/common/const.go:57-58).
status-go means the first for clocks and the second for the rest, but says 21 of all, since its test for a time error
is true of every error (waku/common/envelope.go, ErrorToEnvelopeError). To a sender 21 means that its clock is wrong,
so we say what was meant."""


class Flaw(NamedTuple):
    """Why an envelope is not taken."""

    name: str
    """For counters."""
    code: int
    words: str
    """For the sender; empty where it is told nothing."""


FUTURE: Final = Flaw("future", TIME, "envelope from future")
VERY_OLD: Final = Flaw("very old", TIME, "very old envelope")
EXPIRED: Final = Flaw("expired", TIME, "")
TOO_LONG: Final = Flaw("ttl", OTHER, "the ttl is longer than this node takes")
TOO_LARGE: Final = Flaw("size", OTHER, "the envelope is larger than this node takes")
NOT_WANTED: Final = Flaw("topic", OTHER, "the topic is not one that this node asked for")
TOO_CHEAP: Final = Flaw("pow", OTHER, "the envelope has less work than this node asks for")


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this node takes; the defaults are those of a status-go mailserver (params/config.go), the ttl apart."""

    min_pow: float = 2e-6
    """The least work: leading zero bits for each byte and second."""
    tolerated_pow: float | None = None
    """What was asked for until just now, if that was less: not every peer may know yet (waku/waku.go, 10 s)."""
    max_size: int = 1 << 20
    """Bytes, as `Envelope.size` counts them."""
    max_ttl: int = 7 * DAY
    """Seconds."""
    topics: frozenset[bytes] | None = None
    """Only these, if they are named; stands above the filter."""
    bloom: int = bloom.FULL
    """Only what passes this filter."""

    def wants(self, topic: bytes) -> bool:
        """Tell whether envelopes of a topic are taken."""
        if self.topics is not None:
            return topic in self.topics
        return self.bloom == bloom.FULL or bloom.passes(self.bloom, topic)

    def least_pow(self) -> float:
        """Give the least work that is taken now."""
        return self.min_pow if self.tolerated_pow is None else min(self.min_pow, self.tolerated_pow)


class Verdict(NamedTuple):
    """What an envelope is found to be."""

    flaw: Flaw | None
    """None: it is taken."""
    pow: float
    """Its work, also as relaying counts it; 0 where a flaw was found before."""


def judge(envelope: Envelope, now: int, policy: Policy) -> Verdict:
    """Judge an envelope that is not known yet. `now` is seconds since 1970."""
    flaw, late = _timing(envelope, now)
    if flaw is None:
        flaw = _shape(envelope, policy)
    if flaw is not None:
        return Verdict(flaw, 0.0)
    pow_ = envelope.pow(late)
    return Verdict(None if pow_ >= policy.least_pow() else TOO_CHEAP, pow_)


def _timing(envelope: Envelope, now: int) -> tuple[Flaw | None, int]:
    """Compare clocks, in 32 bits that wrap as in Go; also gives how many seconds beyond the ttl the work is for."""
    sent, expiry, late = envelope.sent, envelope.expiry, 0
    if sent > now:
        if (sent - AHEAD) & U32 > now:
            return FUTURE, 0
        late = sent - now + 1  # and one second for the way
    if expiry < now:
        return (VERY_OLD if (expiry + BEHIND) & U32 < now else EXPIRED), 0
    return None, late


def _shape(envelope: Envelope, policy: Policy) -> Flaw | None:
    if envelope.ttl > policy.max_ttl:
        return TOO_LONG
    if envelope.size() > policy.max_size:
        return TOO_LARGE
    if not policy.wants(envelope.topic):
        return NOT_WANTED
    return None
