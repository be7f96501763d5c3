"""The table gaps as requests: which times and topics to fetch for a mailserver. No Spark is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from restante.common.errors import Misuse
from restante.pipeline.lake import data_files
from restante.pipeline.lake.lake import Lake
from restante.pipeline.query import Database
from restante.pipeline.schemas import ARCHIVED
from restante.pipeline.tables.envelopes import COVERAGE
from restante.pipeline.tables.gaps import GAPS
from restante.waku.files.missing_ranges import MAX_TOPICS, MissingRange

JOINED_SECONDS: Final = 3600
"""Gaps that are no further apart are fetched together. The rows of one topic are further apart, so this joins the
rows of different topics: one outage leaves rows of all topics, in which few envelopes fall between two rows."""

MAX_REQUESTS: Final = 100
"""Ranges that are returned. Each is a connection and a request of its own, and a Mailserver accepts 200 connections
at once from an address, then 60 a minute. Above this, gaps that are further apart are joined: then envelopes that
the mailserver has are fetched as well, which import leaves out."""

_ROWS: Final = """
SELECT day, substr(topic, 3), epoch_us("first") // 1000000, epoch_us("last") // 1000000, missing, holders FROM gaps
WHERE source = $mailserver AND day BETWEEN $first_day AND $last_day
"""
"""A topic is 0x and its digits. Envelopes are sent at whole seconds."""


class Gap(NamedTuple):
    """A row of the table."""

    day: date
    topic: str | None
    """Eight hexadecimal digits. None: all topics of the day that have no rows of their own."""
    first: int
    """In seconds since 1970; both ends are included."""
    last: int
    missing: int
    holders: frozenset[str]


class GapFilter(NamedTuple):
    """Which gaps to request."""

    lower: int
    """In seconds since 1970; both ends are included."""
    upper: int
    topics: frozenset[str] = frozenset()
    """Empty: all topics."""
    holder: str | None = None
    """Only gaps of which this source has envelopes. None: all."""


def read_gaps(lake: Lake, mailserver: str, gap_filter: GapFilter, scratch: Path) -> list[Gap]:
    """Return the gaps of a mailserver on the days of `gap_filter`. `scratch` is a folder for temporary files.

    Raises Misuse if the table was not built yet or the lake has no such mailserver or holder, StoreError if the lake
    is damaged.
    """
    table = lake.table(GAPS)
    if table.version is None and lake.table(ARCHIVED).version is None:
        raise Misuse(
            "the lake has no envelopes yet: run `restante pipeline run` with a Waku archive or envelope files"
        )
    if table.version is None:
        raise Misuse("the lake has no table gaps yet: run `restante pipeline build`")
    covered = data_files.existing_files(lake.table(COVERAGE).files())
    names = {source for file in covered for _, source in file.days_and_sources()}
    if mailserver not in names:
        others = f"it has {', '.join(sorted(names))}" if names else "it has none"
        raise Misuse(f"the lake has no Mailserver {mailserver}: {others} (--mailserver)")
    sources = {file.partition["source"] for file in lake.table(ARCHIVED).files()}
    if gap_filter.holder is not None and gap_filter.holder not in sources:
        raise Misuse(f"the lake has no envelopes from a source {gap_filter.holder} (--holder)")
    first_day, last_day = (datetime.fromtimestamp(end, UTC).date() for end in (gap_filter.lower, gap_filter.upper))
    with Database(lake, "", scratch, [GAPS]) as opened:
        rows = opened.fetch(_ROWS, {"mailserver": mailserver, "first_day": first_day, "last_day": last_day})
    sets: dict[str, frozenset[str]] = {}  # many rows have the same holders
    return [
        Gap(day, topic, first, last, missing, sets.setdefault(holders, frozenset(holders.split(","))))
        for day, topic, first, last, missing, holders in rows
    ]


class _JoinedGaps:
    """Gaps that are requested together."""

    def __init__(self, gap: Gap, lower: int, upper: int, topics: frozenset[str] | None) -> None:
        self.day, self.lower, self.upper, self.topics = gap.day, lower, upper, topics
        self.missing, self.holders = gap.missing, gap.holders

    def add(self, later: _JoinedGaps) -> None:
        self.day, self.upper = later.day, max(self.upper, later.upper)
        self.missing += later.missing
        self.holders |= later.holders
        # None: all topics, also if they are more than a request can name.
        topics = None if self.topics is None or later.topics is None else self.topics | later.topics
        self.topics = None if topics is not None and len(topics) > MAX_TOPICS else topics


def ranges_to_request(
    gaps: Collection[Gap], gap_filter: GapFilter, max_requests: int = MAX_REQUESTS
) -> list[MissingRange]:
    """Return the ranges to request, sorted by time, with at most MAX_TOPICS topics each.

    Gaps of a day that are no further apart than JOINED_SECONDS become one range, and so do successive ranges of
    several days if they have the same topics. `gap_filter` has at most MAX_TOPICS topics.
    """
    ranges = sorted(_select_gaps(gaps, gap_filter), key=lambda gap: (gap.lower, gap.upper))
    ranges = _joined(ranges, JOINED_SECONDS, lambda gaps: gaps.day)
    ranges = _joined(ranges, JOINED_SECONDS, lambda gaps: gaps.topics)
    apart = JOINED_SECONDS
    while len(ranges) > max_requests:
        ranges = _joined(ranges, apart, lambda _: None)
        apart *= 2
    return [
        MissingRange(
            lower=gaps.lower,
            upper=gaps.upper,
            topics=None if gaps.topics is None else tuple(sorted(gaps.topics)),
            missing=gaps.missing,
            holders=tuple(sorted(gaps.holders)),
        )
        for gaps in ranges
    ]


def _select_gaps(gaps: Collection[Gap], gap_filter: GapFilter) -> Iterable[_JoinedGaps]:
    named_topics: dict[date, set[str]] = defaultdict(set)
    for gap in gaps:
        if gap.topic is not None:
            named_topics[gap.day].add(gap.topic)
    for gap in gaps:
        lower, upper = max(gap.first, gap_filter.lower), min(gap.last, gap_filter.upper)
        if lower > upper or (gap_filter.holder is not None and gap_filter.holder not in gap.holders):
            continue
        if gap.topic is not None:
            topics: frozenset[str] | None = frozenset({gap.topic})
            if gap_filter.topics and gap.topic not in gap_filter.topics:
                continue
        elif gap_filter.topics:
            topics = gap_filter.topics - named_topics[gap.day]
            if not topics:
                continue
        else:
            topics = None
        yield _JoinedGaps(gap, lower, upper, topics)


def _joined(ranges: Iterable[_JoinedGaps], apart: int, key: Callable[[_JoinedGaps], object]) -> list[_JoinedGaps]:
    """Join each range with the one before it, if they have the same key and are no further apart.

    The ranges are sorted.
    """
    joined: list[_JoinedGaps] = []
    for later in ranges:
        if joined and later.lower <= joined[-1].upper + apart and key(joined[-1]) == key(later):
            joined[-1].add(later)
        else:
            joined.append(later)
    return joined
