"""The inbox of history and live envelopes: it drops those of no interest and returns each envelope once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from restante.waku.envelope.envelope import Envelope
from restante.waku.protocol.interest import Interest

DEFAULT_MAX_HASHES: Final = 250_000
"""Hashes that are stored, which take some 40 MB. By default a server may send fewer envelopes (`max_envelopes`)."""


class Inbox:
    """An interest, and the hashes of envelopes that were handed over. The oldest hashes are removed first."""

    def __init__(self, interest: Interest, max_hashes: int = DEFAULT_MAX_HASHES) -> None:
        self._interest = interest
        self._max_hashes = max_hashes
        self._hashes: dict[bytes, None] = {}

    def mark_handed_over(self, hashes: Iterable[bytes]) -> None:
        """Treat these envelopes as handed over."""
        for envelope_hash in hashes:
            self._hashes[envelope_hash] = None
        while len(self._hashes) > self._max_hashes:
            del self._hashes[next(iter(self._hashes))]

    def filter_new(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """Return the envelopes of interest that were not handed over. From now on they count as handed over."""
        new_envelopes = []
        for envelope in envelopes:
            if envelope.hash not in self._hashes and self._interest.wants(envelope.topic):
                self.mark_handed_over([envelope.hash])
                new_envelopes.append(envelope)
        return new_envelopes
