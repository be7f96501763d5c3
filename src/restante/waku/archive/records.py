"""What the archive returns: envelopes as they are stored, and totals."""

from __future__ import annotations

import msgspec

from restante.waku.envelope.envelope import Envelope, parse


class Counts(msgspec.Struct, frozen=True):
    """Totals of an archive. Times are seconds since 1970, None if the archive is empty."""

    envelopes: int = 0
    bytes: int = 0
    """Bytes of all envelopes' RLP. The database needs more."""
    topics: int = 0
    """Number of different topics."""
    oldest: int | None = None
    """Time at which the oldest envelope was sent."""
    newest: int | None = None
    next_arrival: int = 0
    """The arrival number of the next envelope to be saved. All stored envelopes have lower ones."""


class Archived(msgspec.Struct, frozen=True, gc=False):
    """An envelope as the archive stores it."""

    arrival: int
    """Its number in the order of commits, from 1. Numbers are never reused, so those of pruned envelopes are
    missing."""
    arrived: int
    """Time at which it was saved, in seconds since 1970."""
    raw: bytes
    """Its exact RLP."""

    def envelope(self) -> Envelope:
        """Return the parsed envelope. Raises RlpError if the archive is damaged."""
        return parse(self.raw)


class TopicCount(msgspec.Struct, frozen=True, gc=False):
    """The envelopes of one topic in an archive."""

    topic: bytes
    count: int
    first: int
    """Time at which its oldest envelope was sent."""
    last: int
    """Time at which its newest envelope was sent."""
