"""The inbox of history and live envelopes: it drops unwanted ones and returns each envelope once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.interest import Interest

REMEMBERED_HASHES: Final = 250_000
"""Hashes that are remembered, which take some 40 MB. A query may bring fewer envelopes by default (`Budgets`)."""


class Inbox:
    """Filters, and the hashes of envelopes that were handed over. The oldest hashes are forgotten first."""

    def __init__(self, filters: Iterable[Interest], remembered: int = REMEMBERED_HASHES) -> None:
        self.filters = list(filters)
        self._remembered = remembered
        self._seen: dict[bytes, None] = {}

    def know(self, hashes: Iterable[bytes]) -> None:
        """Treat these envelopes as handed over."""
        for each in hashes:
            self._seen[each] = None
        while len(self._seen) > self._remembered:
            del self._seen[next(iter(self._seen))]

    def accept(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """Return the envelopes that are wanted and were not handed over. From now on they count as handed over."""
        found = []
        for each in envelopes:
            if each.hash not in self._seen and any(wants.wants(each.topic) for wants in self.filters):
                self.know([each.hash])
                found.append(each)
        return found
