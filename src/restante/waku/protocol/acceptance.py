"""Which envelopes of a Messages packet are accepted (waku/waku.go:1275-1365), with stricter limits of our own.

The checks run in the order of their cost: numbers first, then the hash of the proof of work. The order only decides
which of several reasons is reported. Unlike status-go, this node limits the ttl. Otherwise a sender with enough work
could backdate an envelope by decades, and requests select from the archive by `sent`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from restante.waku.envelope.envelope import U32, Envelope
from restante.waku.protocol.packets import MAX_ENVELOPE_BYTES, OTHER_ERROR, TIME_ERROR
from restante.waku.protocol.policy import MAX_ENVELOPE_SIZE, MAX_TTL_SECONDS, MIN_POW

MAX_CLOCK_AHEAD_SECONDS: Final = 10
"""Maximum seconds that a sender's clock may be ahead of ours (waku/common/const.go, DefaultSyncAllowance)."""

EXPIRED_GRACE_SECONDS: Final = 20
"""Seconds after its expiry in which an envelope is refused and not counted against its sender: it may have expired in
transit. status-go drops it without an error, so its sender takes it as sent (waku/waku.go:1292)."""


class RefusalReason(NamedTuple):
    """Why an envelope is refused."""

    name: str
    """Its name in the log of a minute."""
    code: int
    """The code in the Message Response. status-go reports every reason as a time error, because its check for one is
    true of any error (waku/common/envelope.go, ErrorToEnvelopeError). Its own senders conclude from that code that
    their clock is wrong, so this node sends the code that fits."""
    words: str
    """The reason for the sender."""


FUTURE: Final = RefusalReason("future", TIME_ERROR, "envelope from future")
OLD: Final = RefusalReason("old", TIME_ERROR, "very old envelope")
EXPIRED: Final = RefusalReason("expired", TIME_ERROR, "the envelope has expired; its sender's clock may be slow")
TOO_LONG: Final = RefusalReason("ttl", OTHER_ERROR, "the ttl is longer than this node takes")
TOO_LARGE: Final = RefusalReason("size", OTHER_ERROR, "the envelope is larger than this node takes")
TOO_CHEAP: Final = RefusalReason("pow", OTHER_ERROR, "the envelope has less work than this node asks for")
REFUSAL_REASONS: Final = (FUTURE, OLD, EXPIRED, TOO_LONG, TOO_LARGE, TOO_CHEAP)


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this node accepts."""

    min_pow: float = MIN_POW
    """Minimum proof of work: 2^(leading zero bits) per byte and second."""
    max_size: int = MAX_ENVELOPE_SIZE
    """Maximum size in bytes, as `Envelope.size` counts it. An envelope must also fit into a packet."""
    max_ttl: int = MAX_TTL_SECONDS
    """Maximum ttl in seconds."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The result of the checks."""

    refusal: RefusalReason | None
    """None: the envelope is accepted."""
    pow: float
    """The proof of work, also for relaying; 0 if an earlier check refused the envelope."""


def judge(envelope: Envelope, now: int, policy: Policy) -> Verdict:
    """Return the verdict on an envelope that is not known yet. `now` is seconds since 1970."""
    refusal, late = _check_times(envelope, now)
    if refusal is None:
        refusal = _check_limits(envelope, policy)
    if refusal is not None:
        return Verdict(refusal, 0.0)
    pow_ = envelope.pow(late)
    return Verdict(None if pow_ >= policy.min_pow else TOO_CHEAP, pow_)


def _check_times(envelope: Envelope, now: int) -> tuple[RefusalReason | None, int]:
    """Check the times in 32 bits that wrap, as in Go.

    Also return the seconds to add to the ttl for the proof of work.
    """
    sent, expiry, late = envelope.sent, envelope.expiry, 0
    if sent > now:
        if (sent - MAX_CLOCK_AHEAD_SECONDS) & U32 > now:
            return FUTURE, 0
        late = sent - now + 1  # and one second for the transit
    if expiry < now:
        return (OLD if (expiry + EXPIRED_GRACE_SECONDS) & U32 < now else EXPIRED), 0
    return None, late


def _check_limits(envelope: Envelope, policy: Policy) -> RefusalReason | None:
    if envelope.ttl > policy.max_ttl:
        return TOO_LONG
    # An envelope that no packet can hold could not be relayed.
    return TOO_LARGE if envelope.size() > policy.max_size or len(envelope.raw) > MAX_ENVELOPE_BYTES else None
