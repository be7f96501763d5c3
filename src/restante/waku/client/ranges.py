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

HashText = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
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

    def state_keys(self) -> list[str]:
        """Return the query's keys in a `FetchState`: one for each topic, or one for the bloom filter."""
        if self.topics:
            return sorted(topic.hex() for topic in self.topics)
        return [f"bloom {self.bloom:0128x}"]

    def matches(self, envelope: Envelope) -> bool:
        """Return whether an envelope matches the query."""
        if not self.lower <= envelope.sent <= self.upper:
            return False
        if self.topics:
            return envelope.topic in self.topics
        assert self.bloom is not None
        return bloom.passes(self.bloom, envelope.topic)


class FetchState(msgspec.Struct, forbid_unknown_fields=True):
    """What a requester keeps from one run to the next."""

    known: dict[str, list[Range]] = msgspec.field(default_factory=dict)
    """By key: the times of which every envelope was handed over and none can arrive late."""
    recent: dict[str, dict[HashText, int]] = msgspec.field(default_factory=dict)
    """By key: envelopes that were handed over, of times that will be requested again. Hash and sending time."""

    def missing(self, query: HistoryQuery) -> list[Range]:
        """Return the ranges to request until the whole query is known."""
        missing_ranges: list[Range] = []
        for key in query.state_keys():
            for missing_range in subtract_ranges([(query.lower, query.upper)], self.known.get(key, ())):
                missing_ranges = add_range(missing_ranges, missing_range)
        return missing_ranges

    def learn(self, query: HistoryQuery, known_range: Range) -> None:
        """Record that everything of the query is known for these times."""
        for key in query.state_keys():
            self.known[key] = add_range(self.known.get(key, ()), known_range)

    def remember(self, query: HistoryQuery, envelope: Envelope) -> None:
        """Record an envelope that was handed over and will be requested again."""
        key = envelope.topic.hex() if query.topics else query.state_keys()[0]
        self.recent.setdefault(key, {})[envelope.hash.hex()] = envelope.sent

    def also(self, other: FetchState) -> None:
        """Add the recent envelopes of another state."""
        for key, hashes in other.recent.items():
            self.recent.setdefault(key, {}).update(hashes)

    def forget(self, query: HistoryQuery) -> None:
        """Remove the recent envelopes of known times, which are not requested again."""
        for key in query.state_keys():
            known_ranges = self.known.get(key, ())
            recent = self.recent.pop(key, {})
            unknown = {
                digest: sent for digest, sent in recent.items() if subtract_ranges([(sent, sent)], known_ranges)
            }
            if unknown:
                self.recent[key] = unknown

    def copy(self) -> FetchState:
        """Return a copy that can be changed independently."""
        return FetchState(
            {key: list(ranges) for key, ranges in self.known.items()},
            {key: dict(hashes) for key, hashes in self.recent.items()},
        )


def add_range(ranges: Iterable[Range], added: Range) -> list[Range]:
    """Return the ranges with one more, merged with those that it overlaps or touches."""
    lower, upper = added
    separate = []
    for begin, end in ranges:
        if end + 1 < lower or upper + 1 < begin:
            separate.append((begin, end))
        else:
            lower, upper = min(lower, begin), max(upper, end)
    return sorted([*separate, (lower, upper)])


def subtract_ranges(ranges: Iterable[Range], subtracted: Iterable[Range]) -> list[Range]:
    """Return the times of the ranges that are in none of the subtracted ones."""
    remaining = list(ranges)
    for lower, upper in subtracted:
        remaining = [
            (begin, end)
            for old_begin, old_end in remaining
            for begin, end in ((old_begin, min(old_end, lower - 1)), (max(old_begin, upper + 1), old_end))
            if begin <= end
        ]
    return remaining
