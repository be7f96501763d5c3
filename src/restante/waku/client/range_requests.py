"""`restante waku request --ranges`: fetches the envelopes that a Mailserver lacks from others, range by range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from restante.waku.client.fetch import OnState, RequestOptions, Subscriber
from restante.waku.client.history import Destination, carry_out, take_all
from restante.waku.client.ranges import FetchState, HistoryQuery
from restante.waku.client.requester import Budgets
from restante.waku.client.streams import fetch_query
from restante.waku.client.subscribe import OnFailure
from restante.waku.devp2p.enode import Enode
from restante.waku.envelope import bloom
from restante.waku.envelope.envelope import Envelope
from restante.waku.files.missing_ranges import MissingRange

MAX_FAILURES: Final = 3
"""Ranges in a row that a server does not answer, after which it is not asked any more. A server that is down costs a
minute for each range."""


class RangeResult(msgspec.Struct, frozen=True):
    """What became of a range."""

    range: MissingRange
    envelopes: int
    """Different envelopes that were fetched. The range may be of envelopes that its Mailserver has, too."""
    answered: bool
    """Whether a server answered for all of its times."""


def run_ranges(
    servers: Sequence[Enode],
    ranges: Sequence[MissingRange],
    options: RequestOptions,
    destination: Destination,
    budgets: Budgets,
    on_failure: OnFailure,
) -> list[RangeResult]:
    """Ask every server for every range, because each may have other envelopes of it.

    Each envelope of a range is written once. `budgets` limit what a server may cost for one range. `on_failure` is
    called once for each reason for which a server did not answer. Raises Misuse, and StoreError if writing fails.
    """

    async def run(subscriber: Subscriber, _state: FetchState, _keep: OnState) -> list[RangeResult]:
        asked = {number: _Server(each) for number, each in enumerate(servers)}
        return [await _fetch_range(each, asked, subscriber) for each in ranges]

    async def _fetch_range(wanted: MissingRange, asked: dict[int, _Server], subscriber: Subscriber) -> RangeResult:
        seen: set[bytes] = set()

        def take_new(envelopes: list[Envelope]) -> None:
            new = [each for each in envelopes if each.hash not in seen]
            subscriber(new)
            seen.update(each.hash for each in new)

        answered = False
        for number, server in asked.items():
            if server.failures >= MAX_FAILURES:
                continue
            stream = fetch_query([server.enode], query_of(wanted), options, budgets=budgets)
            report = await take_all(stream, take_new)
            server.failures = server.failures + 1 if report.missing else 0
            answered |= not report.missing
            for words in report.failures.values():
                if words not in server.words:
                    server.words.add(words)
                    on_failure(number, words)
        return RangeResult(wanted, len(seen), answered)

    return carry_out(run, destination)


class _Server:
    def __init__(self, enode: Enode) -> None:
        self.enode = enode
        self.failures = 0
        """Ranges in a row that it did not answer."""
        self.words: set[str] = set()
        """The reasons that were reported."""


def query_of(wanted: MissingRange) -> HistoryQuery:
    """Return the query for a range."""
    if wanted.topics is None:
        return HistoryQuery(wanted.lower, wanted.upper, bloom=bloom.ALL_BITS)
    return HistoryQuery(wanted.lower, wanted.upper, frozenset(map(bytes.fromhex, wanted.topics)))


def sentences(results: Sequence[RangeResult], max_sentences: int) -> list[str]:
    """Return a sentence for each range that stays open, and one for those above `max_sentences`."""
    found = [
        f"{each.range.shown()}: "
        + (
            "no Mailserver has envelopes of it; it stays open"
            if each.answered
            else "no Mailserver answered for all of it; it stays open: try again later, or name another Mailserver"
        )
        for each in results
        if is_open(each)
    ]
    if (more := len(found) - max_sentences) > 0:
        found[max_sentences:] = [f"{more:,} more ranges stay open" if more > 1 else "1 more range stays open"]
    return found


def is_open(result: RangeResult) -> bool:
    """Return whether a range stays open: nothing came, or not all of it was answered for."""
    return not result.envelopes or not result.answered
