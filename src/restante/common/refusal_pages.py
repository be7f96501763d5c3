"""What the admin port of a server shows of its limits and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from restante.common.last_hour import LastHour
from restante.common.refusals import RefusalCounts, RefusalKind, times_by_reason

MAX_REFUSED_ADDRESSES: Final = 10
"""Addresses with the most refusals that are shown."""


def most_refused(counts: RefusalCounts) -> list[dict[str, Any]]:
    """Return the addresses that were refused most in this minute and the last one."""
    return [
        {"address_id": address_id, "reason": reason, "times": times}
        for (reason, address_id), times in counts.lately.most_common(MAX_REFUSED_ADDRESSES)
    ]


def limits_page(
    kinds: Mapping[str, RefusalKind], limits: msgspec.Struct, used: Mapping[str, float], counts: RefusalCounts
) -> dict[str, Any]:
    """Return each limit, how much of it is `used` if it is one of the whole server, and its refusals."""
    times = times_by_reason(kinds, counts.since_start)
    reasons: dict[str, list[str]] = {}
    for kind in kinds.values():
        for name in kind.limits:
            reasons.setdefault(name, []).append(kind.reason)
    return {
        "limits": {
            name: {
                "value": value,
                "used": used.get(name),
                "refusals": {reason: times[reason] for reason in reasons.get(name, ())},
            }
            for name, value in msgspec.structs.asdict(limits).items()
        },
    }


class RefusalsLastHour:
    """The reasons of refusals in the last hour."""

    def __init__(self, kinds: Mapping[str, RefusalKind], counts: RefusalCounts, clock: Callable[[], float]) -> None:
        self._kinds = kinds
        self._counts = counts
        self._last_hour = LastHour(clock, counts.since_start)

    def remember(self) -> None:
        """Remember the counts of this moment. Call this every second."""
        self._last_hour.remember(self._counts.since_start)

    def rows(self, limits: msgspec.Struct) -> list[dict[str, Any]]:
        """Return the reasons, the most frequent first, with their limits."""
        since_start = times_by_reason(self._kinds, self._counts.since_start)
        growth = self._last_hour.growth(dict(self._counts.since_start))
        rows = [
            {
                "reason": reason,
                "limits": ", ".join(f"{name} {getattr(limits, name):,g}" for name in self._kinds[reason].limits),
                "last_hour": times,
                "since_start": since_start[reason],
            }
            for reason, times in times_by_reason(self._kinds, growth).items()
            if times
        ]
        return sorted(rows, key=lambda row: row["last_hour"], reverse=True)
