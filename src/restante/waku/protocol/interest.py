"""What a peer wants, and the map from topics to the peers that want them.

A new envelope is pushed once, to those who want its topic; nobody ever walks the pool for every peer (status-go does,
every 300 ms: waku/v1/peer.go:573-629, which saturates it with a thousand idle peers).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from restante.waku.envelope import bloom

MAX_LISTED_TOPICS: Final = 256
"""Topics of an interest that are put into the map each; of more, a sorted list is looked into: 4 bytes a topic."""

REMEMBERED_TOPICS: Final = 4096
"""Topics of which it is remembered who wants them by filter. A peer that changes its mind costs a look at each."""


class Interest(msgspec.Struct, frozen=True):
    """Which envelopes a peer wants: by name where it names topics, else by filter."""

    topics: array[int] | None = None
    """Sorted; each is a topic's four bytes as a number."""
    bloom: int = bloom.ALL_BITS

    @classmethod
    def named(cls, topics: Iterable[bytes]) -> Interest:
        return cls(array("I", sorted(int.from_bytes(each, "big") for each in topics)))

    def wants(self, topic: bytes) -> bool:
        if self.topics is None:
            return bloom.passes(self.bloom, topic)
        wanted = int.from_bytes(topic, "big")
        place = bisect_left(self.topics, wanted)
        return place < len(self.topics) and self.topics[place] == wanted

    def few(self) -> list[bytes] | None:
        """Give the topics that it names; None where there are too many, or a filter."""
        if self.topics is None or len(self.topics) > MAX_LISTED_TOPICS:
            return None
        return [each.to_bytes(4, "big") for each in self.topics]

    def nothing(self) -> bool:
        return not self.topics if self.topics is not None else not self.bloom


WANTS_EVERYTHING: Final = Interest()
WANTS_NOTHING: Final = Interest.named(())

P = TypeVar("P")


class Interests(Generic[P]):
    """Who wants what. A peer is whatever the caller calls a peer."""

    def __init__(self) -> None:
        self._of: dict[P, Interest] = {}
        self._everything: set[P] = set()
        self._by_topic: dict[bytes, set[P]] = {}
        self._filters: dict[P, Interest] = {}
        self._passing: dict[bytes, set[P]] = {}
        """Those of `_filters` that want a topic, for the topics asked for lately."""

    def __len__(self) -> int:
        return len(self._of)

    def put(self, peer: P, interest: Interest) -> Interest | None:
        """Note what a peer wants from now on; gives what it wanted before."""
        before = self.drop(peer)
        self._of[peer] = interest
        few = interest.few()
        if interest == WANTS_EVERYTHING:
            self._everything.add(peer)
        elif few is not None:
            for topic in few:
                self._by_topic.setdefault(topic, set()).add(peer)
        elif not interest.nothing():
            self._filters[peer] = interest
            for topic, passing in self._passing.items():
                if interest.wants(topic):
                    passing.add(peer)
        return before

    def drop(self, peer: P) -> Interest | None:
        """Forget a peer; gives what it wanted."""
        interest = self._of.pop(peer, None)
        if interest is None:
            return None
        self._everything.discard(peer)
        if self._filters.pop(peer, None) is not None:
            for passing in self._passing.values():
                passing.discard(peer)
        for topic in interest.few() or ():
            wanting = self._by_topic[topic]
            wanting.discard(peer)
            if not wanting:
                del self._by_topic[topic]
        return interest

    def wanted(self, topic: bytes) -> bool:
        """Tell whether anybody wants a topic."""
        return bool(self._everything or topic in self._by_topic or (self._filters and self._filtered(topic)))

    def wanting(self, topic: bytes) -> Iterator[P]:
        """Give everybody who wants a topic, each once."""
        yield from self._everything
        yield from self._by_topic.get(topic, ())
        if self._filters:
            yield from self._filtered(topic)

    def _filtered(self, topic: bytes) -> set[P]:
        found = self._passing.get(topic)
        if found is None:
            if len(self._passing) >= REMEMBERED_TOPICS:
                del self._passing[next(iter(self._passing))]
            found = {peer for peer, interest in self._filters.items() if interest.wants(topic)}
            self._passing[topic] = found
        return found
