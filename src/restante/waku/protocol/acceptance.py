"""Which envelopes of a Messages packet are taken (waku/waku.go:1275-1365), and which of them we refuse beyond that.

The checks are in order of their cost: numbers, then the hash of the work; only which reason of several
is told depends on that. Unlike status-go we bound the ttl: whoever has the work for it could else date an envelope
back by decades, and `sent` is what an archive is asked by.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from restante.waku.envelope.envelope import U32, Envelope
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES, OTHER_ERROR, TIME_ERROR

MAX_CLOCK_AHEAD_SECONDS: Final = 10
"""Seconds that a sender's clock may be ahead of ours (waku/common/const.go, DefaultSyncAllowance)."""

EXPIRED_GRACE_SECONDS: Final = 20
"""Seconds after its expiry in which an envelope is dropped without a word: it was under way (waku/waku.go:1292)."""


class RefusalReason(NamedTuple):
    """Why an envelope is not taken."""

    name: str
    """For counters."""
    code: int
    """Of a Message Response. status-go calls every reason a time error, for its test for one is true of any error
    (waku/common/envelope.go, ErrorToEnvelopeError). Its own senders are told by that code that their clock is wrong,
    so what we say is what was meant."""
    words: str
    """For the sender; empty where it is told nothing."""


FUTURE: Final = RefusalReason("future", TIME_ERROR, "envelope from future")
OLD: Final = RefusalReason("old", TIME_ERROR, "very old envelope")
EXPIRED: Final = RefusalReason("expired", TIME_ERROR, "")
TOO_LONG: Final = RefusalReason("ttl", OTHER_ERROR, "the ttl is longer than this node takes")
TOO_LARGE: Final = RefusalReason("size", OTHER_ERROR, "the envelope is larger than this node takes")
TOO_CHEAP: Final = RefusalReason("pow", OTHER_ERROR, "the envelope has less work than this node asks for")


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this node takes; the defaults are those of a status-go mailserver (params/config.go), the ttl apart."""

    min_pow: float = 2e-6
    """The least work: leading zero bits for each byte and second."""
    max_size: int = 1 << 20
    """Bytes, as `Envelope.size` counts them; never more than a packet holds."""
    max_ttl: int = 7 * 24 * 60 * 60
    """Seconds."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What an envelope is found to be."""

    refusal: RefusalReason | None
    """None: it is taken."""
    pow: float
    """Its work, also as relaying counts it; 0 where a refusal was found before."""


def judge(envelope: Envelope, now: int, policy: Policy) -> Verdict:
    """Judge an envelope that is not known yet. `now` is seconds since 1970."""
    refusal, late = _timing(envelope, now)
    if refusal is None:
        refusal = _shape(envelope, policy)
    if refusal is not None:
        return Verdict(refusal, 0.0)
    pow_ = envelope.pow(late)
    return Verdict(None if pow_ >= policy.min_pow else TOO_CHEAP, pow_)


def _timing(envelope: Envelope, now: int) -> tuple[RefusalReason | None, int]:
    """Compare clocks, in 32 bits that wrap as in Go; also gives how many seconds beyond the ttl the work is for."""
    sent, expiry, late = envelope.sent, envelope.expiry, 0
    if sent > now:
        if (sent - MAX_CLOCK_AHEAD_SECONDS) & U32 > now:
            return FUTURE, 0
        late = sent - now + 1  # and one second for the way
    if expiry < now:
        return (OLD if (expiry + EXPIRED_GRACE_SECONDS) & U32 < now else EXPIRED), 0
    return None, late


def _shape(envelope: Envelope, policy: Policy) -> RefusalReason | None:
    if envelope.ttl > policy.max_ttl:
        return TOO_LONG
    # What no packet holds could be handed to nobody.
    return TOO_LARGE if envelope.size() > policy.max_size or len(envelope.raw) > MAX_ENVELOPE_BYTES else None
