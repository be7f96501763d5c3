"""`restante waku request --ranges`: fetch the envelopes that a Mailserver lacks from others, range by range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from restante.waku.client.fetch import OnState, RequestOptions, Subscriber, fetch
from restante.waku.client.history import Destination, write_history
from restante.waku.client.inbox import Inbox
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.subscribe import OnFailure
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import bloom
from restante.waku.files.missing_ranges import MissingRange
from restante.waku.protocol.interest import WANTS_EVERYTHING

MAX_FAILURES: Final = 3
"""Ranges in a row that a server does not answer, after which it is not asked any more. A server that is down costs a
minute for each range."""


class RangeResult(msgspec.Struct, frozen=True):
    """The result of requesting a range from every server."""

    range: MissingRange
    envelopes: int
    """Different envelopes that were fetched. The range may be of envelopes that its Mailserver has, too."""
    answered: bool
    """Whether a server answered for all of its times."""


class _ServerFailures:
    def __init__(self) -> None:
        self.in_a_row = 0
        """Ranges in a row that the server did not answer."""
        self.reasons: set[str] = set()
        """The reasons that were reported."""


def run_ranges(
    servers: Sequence[Enode],
    ranges: Sequence[MissingRange],
    options: RequestOptions,
    destination: Destination,
    on_failure: OnFailure,
) -> list[RangeResult]:
    """Ask every server for every range, because each may have other envelopes of it.

    Each envelope of a range is written once. The budgets of `options` limit what a server may cost for one range.
    `on_failure` is called once for each reason for which a server did not answer. Raises Misuse, and StoreError if
    writing fails.
    """

    async def run(subscriber: Subscriber, _state: FetchState, _keep: OnState) -> list[RangeResult]:
        failures = [_ServerFailures() for _ in servers]
        return [await fetch_range(missing_range, failures, subscriber) for missing_range in ranges]

    async def fetch_range(
        missing_range: MissingRange, failures: list[_ServerFailures], subscriber: Subscriber
    ) -> RangeResult:
        inbox = Inbox(WANTS_EVERYTHING, len(servers) * options.budgets.envelopes)
        envelopes, answered = 0, False
        for number, enode in enumerate(servers):
            server = failures[number]
            if server.in_a_row >= MAX_FAILURES:
                continue
            report = await fetch([enode], query_for_range(missing_range), options, subscriber, inbox=inbox)
            envelopes += report.counts["handed over"]
            server.in_a_row = server.in_a_row + 1 if report.missing else 0
            answered |= not report.missing
            for reason in report.failures.values():
                if reason not in server.reasons:
                    server.reasons.add(reason)
                    on_failure(number, reason)
        return RangeResult(missing_range, envelopes, answered)

    return write_history(run, destination)


def query_for_range(missing_range: MissingRange) -> HistoryQuery:
    """Return the query for a range."""
    lower, upper, topics = missing_range.lower, missing_range.upper, missing_range.topics
    if topics is None:
        return HistoryQuery(lower, upper, bloom=bloom.ALL_BITS)
    return HistoryQuery(lower, upper, frozenset(map(bytes.fromhex, topics)))


def open_range_sentences(results: Sequence[RangeResult], max_sentences: int) -> list[str]:
    """Return a sentence for each range that stays open, and one for those above `max_sentences`."""
    sentences = [
        f"{result.range.describe()}: "
        + (
            "no Mailserver has envelopes of it; it stays open"
            if result.answered
            else "no Mailserver answered for all of it; it stays open: try again later, or name another Mailserver"
        )
        for result in results
        if is_open(result)
    ]
    if (more := len(sentences) - max_sentences) > 0:
        sentences[max_sentences:] = [f"{more:,} more ranges stay open" if more > 1 else "1 more range stays open"]
    return sentences


def is_open(result: RangeResult) -> bool:
    """Return whether a range stays open: it brought no envelopes, or not all of it was answered for."""
    return not result.envelopes or not result.answered
