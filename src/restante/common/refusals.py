"""Refusals of a server: their kinds, and how often each occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, final

import msgspec

from restante.common.errors import PeerError

MAX_REFUSAL_COUNTERS: Final = 10_000
"""Maximum number of pairs of reason and address whose refusals are counted separately in a minute."""


@final
class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The answer to what is not carried out."""

    message: str
    """The `error` of the answer. Programs may compare it: it never varies."""
    reason: str = ""
    """The reason of its kind. Empty: it is a mistake of the client, which is not counted."""
    hint: str = ""
    """What the client can do about it."""


class RefusalKind(msgspec.Struct, frozen=True):
    """A kind of refusals for lack of permission or room."""

    reason: str
    """Its label in metrics."""
    message: str
    """The text for the client or the log."""
    limits: tuple[str, ...] = ()
    """The fields of the server's limits that cause it."""

    def refusal(self, hint: str) -> Refusal:
        """Return a refusal of this kind."""
        return Refusal(self.message, self.reason, hint)

    def error(self, code: int, hint: str) -> PeerError:
        """Return the error that ends a connection with a close code (RFC 6455 section 7.4.1)."""
        return PeerError(code, self.message, hint=hint, reason=self.reason)


def kinds_by_reason(*kinds: RefusalKind) -> Mapping[str, RefusalKind]:
    """Return the kinds of a server by their reasons."""
    return {kind.reason: kind for kind in kinds}


def times_by_reason(kinds: Mapping[str, RefusalKind], refusals: Mapping[str, int]) -> dict[str, int]:
    """Return how often each reason occurs in counts by reason. Those that never occur have 0."""
    return {reason: refusals.get(reason, 0) for reason in kinds}


class RefusalCounts:
    """How often a server has refused something, by reason, and by reason and address id."""

    def __init__(self) -> None:
        self.since_start: Counter[str] = Counter()
        """Refusals since the start, by reason."""
        self.this_minute: Counter[tuple[str, str | None]] = Counter()
        """Refusals by reason and address id. `end_minute` clears them."""
        self.lately: Counter[tuple[str, str | None]] = Counter()
        """The same of this minute and the last whole one."""

    def count(self, reason: str, address_id: str | None) -> None:
        """Count a refusal. Beyond MAX_REFUSAL_COUNTERS, new pairs of reason and address count without an address."""
        self.since_start[reason] += 1
        key: tuple[str, str | None] = reason, address_id
        if key not in self.this_minute and len(self.this_minute) >= MAX_REFUSAL_COUNTERS:
            key = reason, None
        self.this_minute[key] += 1
        self.lately[key] += 1

    def end_minute(self) -> Counter[tuple[str, str | None]]:
        """Return the refusals of the minute that has ended, and begin another one."""
        ended, self.this_minute, self.lately = self.this_minute, Counter(), self.this_minute.copy()
        return ended
