"""Ranges of times: which times of which topics are known, and which are missing.

A range includes both of its ends, in seconds since 1970. A list of ranges is sorted, and no two of them touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import U32, Envelope
from restante.waku.protocol.request import MAX_REQUEST_TOPICS

Range = tuple[int, int]

Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""The hash of an envelope in a state file, in hexadecimal."""


class HistoryQuery(msgspec.Struct, frozen=True):
    """A query for envelopes sent from `lower` to `upper`, of these topics or of those that a bloom filter passes.

    Raises Misuse if the query is empty, or if a request cannot express it.
    """

    lower: int
    upper: int
    topics: frozenset[bytes] = frozenset()
    bloom: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper <= U32 or not self.upper:  # on the wire, an upper end of 0 means now
            raise Misuse("a query's first time must not be after its last, and its times are from 1970 to 2106")
        if not self.topics and self.bloom is None:
            raise Misuse("a query has either topics or a bloom filter")
        if len(self.topics) > MAX_REQUEST_TOPICS:
            raise Misuse(f"a query has at most {MAX_REQUEST_TOPICS} topics")

    def names(self) -> list[str]:
        """Return the query's keys in a `FetchState`: one for each topic, or one for the bloom filter."""
        if self.topics:
            return sorted(each.hex() for each in self.topics)
        return [f"bloom {self.bloom:0128x}"]

    def mismatch(self, envelope: Envelope) -> str:
        """Return why an envelope does not match the query, or an empty text if it does."""
        if not self.lower <= envelope.sent <= self.upper:
            return "out of range"
        if self.topics:
            return "" if envelope.topic in self.topics else "of another topic"
        assert self.bloom is not None
        return "" if bloom.passes(self.bloom, envelope.topic) else "of another topic"


class FetchState(msgspec.Struct, forbid_unknown_fields=True):
    """What a requester keeps from one run to the next."""

    known: dict[str, list[Range]] = msgspec.field(default_factory=dict)
    """By key: the times of which every envelope was handed over and none can arrive late."""
    recent: dict[str, dict[Hash, int]] = msgspec.field(default_factory=dict)
    """By key: envelopes that were handed over, of times that will be requested again. Hash and sending time."""

    def missing(self, query: HistoryQuery) -> list[Range]:
        """Return the ranges to request until the whole query is known."""
        found: list[Range] = []
        for name in query.names():
            for part in without([(query.lower, query.upper)], self.known.get(name, ())):
                found = including(found, part)
        return found

    def learn(self, query: HistoryQuery, known: Range) -> None:
        """Record that everything of the query is known for these times."""
        for name in query.names():
            self.known[name] = including(self.known.get(name, ()), known)

    def remember(self, query: HistoryQuery, envelope: Envelope) -> None:
        """Record an envelope that was handed over and will be found again."""
        name = envelope.topic.hex() if query.topics else query.names()[0]
        self.recent.setdefault(name, {})[envelope.hash.hex()] = envelope.sent

    def also(self, other: FetchState) -> None:
        """Add the recent envelopes of another state."""
        for name, hashes in other.recent.items():
            self.recent.setdefault(name, {}).update(hashes)

    def forget(self, query: HistoryQuery) -> None:
        """Forget the recent envelopes of known times, which are not requested again."""
        for name in query.names():
            known = self.known.get(name, ())
            recent = self.recent.pop(name, {})
            kept = {digest: sent for digest, sent in recent.items() if without([(sent, sent)], known)}
            if kept:
                self.recent[name] = kept

    def copy(self) -> FetchState:
        """Return a copy that can be changed independently."""
        return FetchState(
            {name: list(ranges) for name, ranges in self.known.items()},
            {name: dict(recent) for name, recent in self.recent.items()},
        )


def including(ranges: Iterable[Range], more: Range) -> list[Range]:
    """Return the ranges with one more, merged with those that it overlaps or touches."""
    lower, upper = more
    found = []
    for each in ranges:
        if each[1] + 1 < lower or upper + 1 < each[0]:
            found.append(each)
        else:
            lower, upper = min(lower, each[0]), max(upper, each[1])
    return sorted([*found, (lower, upper)])


def without(ranges: Iterable[Range], less: Iterable[Range]) -> list[Range]:
    """Return what is left of the ranges without these."""
    found = list(ranges)
    for lower, upper in less:
        found = [
            part
            for each in found
            for part in ((each[0], min(each[1], lower - 1)), (max(each[0], upper + 1), each[1]))
            if part[0] <= part[1]
        ]
    return found
