"""A peer's interest, and the map from topics to interested peers.

A new envelope is pushed once, to the peers that want its topic. The pool is never scanned for each peer. status-go
does that every 300 ms (waku/v1/peer.go:573-629), which saturates it with a thousand idle peers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from restante.waku.envelope.bloom import ALL_BITS, passes

MAX_LISTED_TOPICS: Final = 256
"""Maximum topics of an interest that are entered into the map. A longer list is a sorted array of 4 bytes per topic,
which is searched."""

MAX_CACHED_TOPICS: Final = 4096
"""Maximum topics whose peers that are not in the map are cached. If such a peer changes its interest, it is compared
with each."""


class Interest(msgspec.Struct, frozen=True):
    """Which envelopes a peer wants: by topic if it lists topics, otherwise by filter."""

    topics: array[int] | None = None
    """Sorted topics. Each is the topic's four bytes as a number."""
    bloom: int = ALL_BITS

    @classmethod
    def of_topics(cls, topics: Iterable[bytes]) -> Interest:
        """Return the interest in these topics, of four bytes each."""
        return cls(array("I", sorted(int.from_bytes(topic, "big") for topic in topics)))

    def wants(self, topic: bytes) -> bool:
        """Return whether envelopes of a topic are wanted. A filter also passes some other topics."""
        if self.topics is None:
            return passes(self.bloom, topic)
        number = int.from_bytes(topic, "big")
        index = bisect_left(self.topics, number)
        return index < len(self.topics) and self.topics[index] == number

    def listed_topics(self) -> list[bytes] | None:
        """Return the listed topics; None if there are too many or the interest is a filter."""
        if self.topics is None or len(self.topics) > MAX_LISTED_TOPICS:
            return None
        return [topic.to_bytes(4, "big") for topic in self.topics]

    def is_empty(self) -> bool:
        """Return whether no envelope is wanted."""
        return not self.topics if self.topics is not None else not self.bloom


WANTS_EVERYTHING: Final = Interest()
WANTS_NOTHING: Final = Interest.of_topics(())

P = TypeVar("P")


class Interests(Generic[P]):
    """The interests of all peers. `P` is any type that the caller uses for a peer."""

    def __init__(self) -> None:
        self._interests: dict[P, Interest] = {}
        self._everything: set[P] = set()
        self._by_topic: dict[bytes, set[P]] = {}
        self._unlisted: dict[P, Interest] = {}
        """The interests that are not in the fields above: filters, and long lists of topics."""
        self._unlisted_matches: dict[bytes, set[P]] = {}
        """The peers of `_unlisted` that want a topic, for the topics of the latest cache misses."""

    def __len__(self) -> int:
        return len(self._interests)

    def put(self, peer: P, interest: Interest) -> None:
        """Set a peer's interest."""
        self.drop(peer)
        self._interests[peer] = interest
        listed = interest.listed_topics()
        if interest == WANTS_EVERYTHING:
            self._everything.add(peer)
        elif listed is not None:
            for topic in listed:
                self._by_topic.setdefault(topic, set()).add(peer)
        elif not interest.is_empty():
            self._unlisted[peer] = interest
            for topic, matching in self._unlisted_matches.items():
                if interest.wants(topic):
                    matching.add(peer)

    def drop(self, peer: P) -> None:
        """Remove a peer."""
        interest = self._interests.pop(peer, None)
        if interest is None:
            return
        self._everything.discard(peer)
        if self._unlisted.pop(peer, None) is not None:
            for matching in self._unlisted_matches.values():
                matching.discard(peer)
        for topic in interest.listed_topics() or ():
            peers = self._by_topic[topic]
            peers.discard(peer)
            if not peers:
                del self._by_topic[topic]

    def any_peer_wants(self, topic: bytes) -> bool:
        """Return whether any peer wants a topic."""
        return bool(self._everything or topic in self._by_topic or (self._unlisted and self._unlisted_peers(topic)))

    def peers_wanting(self, topic: bytes) -> Iterator[P]:
        """Yield each peer that wants a topic, once."""
        yield from self._everything
        yield from self._by_topic.get(topic, ())
        if self._unlisted:
            yield from self._unlisted_peers(topic)

    def _unlisted_peers(self, topic: bytes) -> set[P]:
        peers = self._unlisted_matches.get(topic)
        if peers is None:
            if len(self._unlisted_matches) >= MAX_CACHED_TOPICS:
                del self._unlisted_matches[next(iter(self._unlisted_matches))]  # the earliest entry
            peers = {peer for peer, interest in self._unlisted.items() if interest.wants(topic)}
            self._unlisted_matches[topic] = peers
        return peers
