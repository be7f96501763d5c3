"""The one place that history and live envelopes come through: wanted or not, and each handed over once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.interest import Interest

REMEMBERED_HASHES: Final = 250_000
"""Hashes that are remembered, some 40 MB of them: more than the envelopes that a query may bring by default."""


class Inbox:
    """Filters, and a memory of what was handed over; what came longest ago is forgotten first."""

    def __init__(self, filters: Iterable[Interest], remembered: int = REMEMBERED_HASHES) -> None:
        self.filters = list(filters)
        self._remembered = remembered
        self._seen: dict[bytes, None] = {}

    def know(self, hashes: Iterable[bytes]) -> None:
        """Take these for handed over."""
        for each in hashes:
            self._seen[each] = None
        while len(self._seen) > self._remembered:
            del self._seen[next(iter(self._seen))]

    def accept(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """Return those that are wanted and were not handed over; they count as handed over from now on."""
        found = []
        for each in envelopes:
            if each.hash not in self._seen and any(wants.wants(each.topic) for wants in self.filters):
                self.know([each.hash])
                found.append(each)
        return found
