"""Which times are known, of which topics, and so which are still to be asked for.

A range of times has both its ends in it, in seconds since 1970. A list of ranges is sorted; none touches the next.
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
"""An envelope's, in a state: hexadecimal."""


class HistoryQuery(msgspec.Struct, frozen=True):
    """What is to be found: envelopes sent from `lower` to `upper`, of these topics, or of those a bloom lets through.

    Raises Misuse where that is nothing, or cannot be asked for.
    """

    lower: int
    upper: int
    topics: frozenset[bytes] = frozenset()
    bloom: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper <= U32 or not self.upper:  # an upper end of 0 means now, on the wire
            raise Misuse("a query is about times from 1970 on, the first not after the last")
        if not self.topics and self.bloom is None:
            raise Misuse("a query is about topics, or has a bloom filter")
        if len(self.topics) > MAX_REQUEST_TOPICS:
            raise Misuse(f"a query has at most {MAX_REQUEST_TOPICS} topics")

    def names(self) -> list[str]:
        """Give what the map calls that which is asked for: each topic, or the filter."""
        if self.topics:
            return sorted(each.hex() for each in self.topics)
        return [f"bloom {self.bloom:0128x}"]

    def mismatch(self, envelope: Envelope) -> str:
        """Tell why an envelope is not what was asked for; empty where it is."""
        if not self.lower <= envelope.sent <= self.upper:
            return "out of range"
        if self.topics:
            return "" if envelope.topic in self.topics else "of another topic"
        assert self.bloom is not None
        return "" if bloom.passes(self.bloom, envelope.topic) else "of another topic"


class FetchState(msgspec.Struct):
    """What a requester keeps from one run to the next."""

    known: dict[str, list[Range]] = msgspec.field(default_factory=dict)
    """By what is asked for, the times of which all was handed over, and nothing can come late any more."""
    recent: dict[str, dict[Hash, int]] = msgspec.field(default_factory=dict)
    """Likewise, envelopes that were handed over, of times that are to be asked for again: hash, and when sent."""

    def missing(self, query: HistoryQuery) -> list[Range]:
        """Give what is to be asked for, that the whole query be known."""
        found: list[Range] = []
        for name in query.names():
            for part in without([(query.lower, query.upper)], self.known.get(name, ())):
                found = including(found, part)
        return found

    def learn(self, query: HistoryQuery, known: Range) -> None:
        """Note that all of the query is known for these times."""
        for name in query.names():
            self.known[name] = including(self.known.get(name, ()), known)

    def remember(self, query: HistoryQuery, envelope: Envelope) -> None:
        """Note an envelope that was handed over, and will be found again."""
        name = envelope.topic.hex() if query.topics else query.names()[0]
        self.recent.setdefault(name, {})[envelope.hash.hex()] = envelope.sent

    def also(self, other: FetchState) -> None:
        """Note the envelopes, too, that another state has noted."""
        for name, hashes in other.recent.items():
            self.recent.setdefault(name, {}).update(hashes)

    def forget(self, query: HistoryQuery) -> None:
        """Forget the envelopes of times that are known now: those are asked for no more."""
        for name in query.names():
            known = self.known.get(name, ())
            recent = self.recent.pop(name, {})
            kept = {digest: sent for digest, sent in recent.items() if without([(sent, sent)], known)}
            if kept:
                self.recent[name] = kept

    def copy(self) -> FetchState:
        """Give one that can be changed without changing this one."""
        return FetchState(
            {name: list(ranges) for name, ranges in self.known.items()},
            {name: dict(recent) for name, recent in self.recent.items()},
        )


def including(ranges: Iterable[Range], more: Range) -> list[Range]:
    """Add a range."""
    lower, upper = more
    found = []
    for each in ranges:
        if each[1] + 1 < lower or upper + 1 < each[0]:
            found.append(each)
        else:
            lower, upper = min(lower, each[0]), max(upper, each[1])
    return sorted([*found, (lower, upper)])


def without(ranges: Iterable[Range], less: Iterable[Range]) -> list[Range]:
    """Take ranges away."""
    found = list(ranges)
    for lower, upper in less:
        found = [
            part
            for each in found
            for part in ((each[0], min(each[1], lower - 1)), (max(each[0], upper + 1), each[1]))
            if part[0] <= part[1]
        ]
    return found
