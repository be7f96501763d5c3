"""The table gaps as requests: which times and topics to fetch for a mailserver. No Spark is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.common.errors import Misuse, StoreError
from restante.pipeline.lake import data_files
from restante.pipeline.lake.lake import Lake
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


_COLUMNS: Final = ["day", "topic", "first", "last", "missing", "holders"]


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


class Clip(NamedTuple):
    """Which gaps are wanted."""

    lower: int
    """In seconds since 1970; both ends are included."""
    upper: int
    topics: frozenset[str] = frozenset()
    """Empty: all topics."""
    holder: str | None = None
    """Only gaps of which this source has envelopes. None: all."""


def read(lake: Lake, mailserver: str, clip: Clip) -> list[Gap]:
    """Return the gaps of a mailserver on the days of `clip`.

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
        known = f"it has {', '.join(sorted(names))}" if names else "it has none"
        raise Misuse(f"the lake has no Mailserver {mailserver}: {known} (--mailserver)")
    sources = {file.partition["source"] for file in lake.table(ARCHIVED).files()}
    if clip.holder is not None and clip.holder not in sources:
        raise Misuse(f"the lake has no envelopes from a source {clip.holder} (--holder)")
    first, last = (datetime.fromtimestamp(end, UTC).date() for end in (clip.lower, clip.upper))
    wanted = (pc.field("source") == mailserver) & (pc.field("day") >= first) & (pc.field("day") <= last)
    found: list[Gap] = []
    for file in data_files.existing_files(table.files({"source": {mailserver}})):
        if file.first_day > last.isoformat() or (file.last_day or first.isoformat()) < first.isoformat():
            continue
        try:
            # From a path, pyarrow would take columns, too.
            with data_files.native_file(file.path) as opened:
                rows = pq.read_table(opened, columns=_COLUMNS, filters=wanted)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                f"the lake is damaged: {file.path} cannot be read: restore it from a backup,"
                " or remove the folder of the table gaps and run build again"
            ) from error
        found += _gaps(rows)
    return found


def _gaps(rows: pa.Table) -> Iterable[Gap]:
    # Envelopes are sent at whole seconds.
    first, last = (
        pc.cast(rows[name], pa.timestamp("s", "UTC"), safe=False).cast(pa.int64()).to_pylist()
        for name in ("first", "last")
    )
    others = (rows[name].to_pylist() for name in ("day", "topic", "missing", "holders"))
    names: dict[str, frozenset[str]] = {}  # many rows have the same holders
    for lower, upper, day, topic, missing, holders in zip(first, last, *others, strict=True):
        each = names.setdefault(holders, frozenset(holders.split(",")))
        yield Gap(day, topic and topic.removeprefix("0x"), lower, upper, missing, each)


class _Request:
    """A range that grows."""

    def __init__(self, gap: Gap, lower: int, upper: int, topics: frozenset[str] | None) -> None:
        self.day, self.lower, self.upper, self.topics = gap.day, lower, upper, topics
        self.missing, self.holders = gap.missing, gap.holders

    def add(self, other: _Request) -> None:
        self.day, self.upper = other.day, max(self.upper, other.upper)
        self.topics = _union(self.topics, other.topics)
        self.missing += other.missing
        self.holders |= other.holders


def _union(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return both sets of topics. None, all topics, also if they are more than a request can name."""
    both = None if one is None or other is None else one | other
    return None if both is not None and len(both) > MAX_TOPICS else both


def requests(gaps: Collection[Gap], clip: Clip, max_requests: int = MAX_REQUESTS) -> list[MissingRange]:
    """Return the ranges to request, sorted by time, with at most MAX_TOPICS topics each.

    Gaps of a day that are no further apart than JOINED_SECONDS become one range, and so do successive ranges of
    several days if they have the same topics. `clip` has at most MAX_TOPICS topics.
    """
    found = _joined(
        sorted(_clipped(gaps, clip), key=lambda each: (each.lower, each.upper)), JOINED_SECONDS, _same_day
    )
    found = _joined(found, JOINED_SECONDS, _same_topics)
    apart = JOINED_SECONDS
    while len(found) > max_requests:
        found = _joined(found, apart, _always)
        apart *= 2
    return [
        MissingRange(
            lower=each.lower,
            upper=each.upper,
            topics=None if each.topics is None else tuple(sorted(each.topics)),
            missing=each.missing,
            holders=tuple(sorted(each.holders)),
        )
        for each in found
    ]


def _clipped(gaps: Collection[Gap], clip: Clip) -> Iterable[_Request]:
    named: dict[date, set[str]] = defaultdict(set)
    for gap in gaps:
        if gap.topic is not None:
            named[gap.day].add(gap.topic)
    for gap in gaps:
        lower, upper = max(gap.first, clip.lower), min(gap.last, clip.upper)
        if lower > upper or (clip.holder is not None and clip.holder not in gap.holders):
            continue
        if gap.topic is not None:
            topics: frozenset[str] | None = frozenset({gap.topic})
            if clip.topics and gap.topic not in clip.topics:
                continue
        elif clip.topics:
            topics = clip.topics - named[gap.day]
            if not topics:
                continue
        else:
            topics = None
        yield _Request(gap, lower, upper, topics)


def _joined(parts: Iterable[_Request], apart: int, alike: Callable[[_Request, _Request], bool]) -> list[_Request]:
    """Join each part with the one before it, if they are alike and no further apart. The parts are sorted."""
    found: list[_Request] = []
    for each in parts:
        if found and each.lower <= found[-1].upper + apart and alike(found[-1], each):
            found[-1].add(each)
        else:
            found.append(each)
    return found


def _same_day(one: _Request, other: _Request) -> bool:
    return one.day == other.day


def _same_topics(one: _Request, other: _Request) -> bool:
    return one.topics == other.topics


def _always(_one: _Request, _other: _Request) -> bool:
    return True
