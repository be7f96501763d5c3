"""`restante pipeline gaps`: what to fetch for a Mailserver that lacks envelopes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import Meta

from restante.common.errors import Misuse, StoreError, plain
from restante.common.texts import counted
from restante.pipeline.cli.options import DEFAULT_LAKE, LakeAddress, number_option

if TYPE_CHECKING:
    from restante.pipeline.gaps import GapFilter
    from restante.waku.files.missing_ranges import MissingRange, MissingRanges

app = typer.Typer()

MAX_LINES: Final = 20
"""Ranges that are shown. The file has all of them."""


@app.command()
def gaps(
    mailserver: Annotated[str, typer.Option(metavar="NAME", help="Mailserver, by its name in --source.")],
    lake: LakeAddress = DEFAULT_LAKE,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write the ranges to, as JSON; it is replaced."),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="First time: 1700000000, 2026-11-21T13:00 (UTC), -24h or now."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Last time, written like that of --from. Default: now.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Topic to fetch, 8 hexadecimal digits; repeatable. Default: all topics."),
    ] = None,
    holder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only ranges of which this source has envelopes.")
    ] = None,
    retention: Annotated[
        float | None,
        number_option(
            "--retention",
            Annotated[float, Meta(ge=0, le=36525)],
            "Leave out envelopes sent more than DAYS days ago; 0: none. Default: 30, unless --config is given.",
            metavar="DAYS",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of a Mailserver, of this one or of one to fetch from: leave out what it does not keep or"
            " accept; repeatable.",
        ),
    ] = None,
) -> None:
    """List what to fetch for a Mailserver that lacks envelopes. Spark is not started.

    It reads the table gaps. Without -o the ranges are printed as JSON, and on a terminal for people.
    """
    from restante.pipeline.cli.output import lake_to_read

    for_people = output is not None or sys.stdout.isatty()
    with lake_to_read(lake) as (opened, temporary):
        from restante.pipeline import gaps as table
        from restante.waku.files import missing_ranges
        from restante.waku.files.missing_ranges import MissingRanges

        clip, unlimited = _clips(begin, end, topic or [], retention, config or [], int(time.time()), holder)
        all_gaps = table.read_gaps(opened, mailserver, unlimited if for_people else clip, temporary)
    requested_ranges = table.ranges_to_request(all_gaps, clip)
    missing = sum(range_.missing for range_ in requested_ranges)
    ranges = MissingRanges(mailserver=mailserver, missing=missing, ranges=tuple(requested_ranges))
    content = missing_ranges.write(ranges)
    if output is not None:
        _write_ranges(output, content)
    if not for_people:
        sys.stdout.write(content.decode())
    else:
        left_out = sum(range_.missing for range_ in table.ranges_to_request(all_gaps, unlimited)) - missing
        for line in text_lines(ranges, holder, left_out=left_out):
            print(line)


def _clips(
    begin: str | None,
    end: str | None,
    topics: list[str],
    retention: float | None,
    configs: list[Path],
    now: int,
    holder: str | None,
) -> tuple[GapFilter, GapFilter]:
    """Return which gaps to fetch: what the options and all Mailservers of `configs` allow.

    The second one is the same without what retentions and lists of topics leave out. Raises Misuse.
    """
    from restante.cli.times import read_time
    from restante.common.settings import resolve_settings
    from restante.pipeline.gaps import GapFilter
    from restante.waku.files.missing_ranges import MAX_TOPICS
    from restante.waku.settings import DEFAULT_RETENTION_DAYS, SECONDS_PER_DAY, WAKU, read_topic

    configured = [resolve_settings(WAKU, {}, {}, path)[0] for path in configs]
    limits = [settings.retention for settings in configured]
    if retention is not None:
        limits.append(retention)
    days = min((limit for limit in limits or [DEFAULT_RETENTION_DAYS] if limit), default=0)  # 0: no limit
    begin_time = lower = read_time(begin, now, "--from") if begin is not None else 0
    upper = read_time(end or "now", now, "--to")
    if begin_time > upper:
        raise Misuse("the first time is after the last: change --from or --to")
    if days:
        lower = max(lower, now - int(days * SECONDS_PER_DAY))
    if lower > upper:
        raise Misuse("no time is left: change --from, --to, --retention or the retention in the files of --config")
    lists = [frozenset(read_topic(topic, "--topic").hex() for topic in topics)]
    lists += [frozenset(read_topic(topic, "topics").hex() for topic in settings.topics) for settings in configured]
    topic_lists = [topic_list for topic_list in lists if topic_list]  # an empty list: all topics
    common_topics = frozenset.intersection(*topic_lists) if topic_lists else frozenset()
    if topic_lists and not common_topics:
        raise Misuse("no topic is in every list of topics: change --topic or the topics in the files of --config")
    if len(common_topics) > MAX_TOPICS:
        limit = counted(MAX_TOPICS, "topic")
        raise Misuse(f"there are more than {limit}, which no request can name: name fewer with --topic")
    return GapFilter(lower, upper, common_topics, holder), GapFilter(begin_time, upper, holder=holder)


def _write_ranges(path: Path, content: bytes) -> None:
    from restante.common.atomic_file import write_output

    try:
        write_output(path, content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {plain(error)} (-o)") from error


def text_lines(missing_ranges: MissingRanges, holder: str | None = None, *, left_out: int = 0) -> Iterator[str]:
    """Yield lines for people: what is missing, the first ranges, and how many envelopes the options leave out."""
    having = f" that {holder} has" if holder else ""
    if missing_ranges.ranges:
        ranges = counted(len(missing_ranges.ranges), "range")
        yield f"{missing_ranges.mailserver} lacks {counted(missing_ranges.missing, 'envelope')}{having}, in {ranges}"
    else:
        yield f"{missing_ranges.mailserver} lacks nothing of these times and topics{having}"
    for range_ in missing_ranges.ranges[:MAX_LINES]:
        yield f"  {_time(range_.lower)} to {_time(range_.upper)}: {_describe_range(range_)}"
    if (more := len(missing_ranges.ranges) - MAX_LINES) > 0:
        yield f"  and {counted(more, 'more range')}; -o writes all of them to a file"
    if left_out > 0:
        verb = "is" if left_out == 1 else "are"
        yield f"{counted(left_out, 'more envelope')}{having} {verb} too old, or of other topics"


def _describe_range(range_: MissingRange) -> str:
    topics = "all topics" if range_.topics is None else counted(len(range_.topics), "topic")
    return f"{counted(range_.missing, 'envelope')} of {topics}, held by {', '.join(range_.holders)}"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ").removesuffix("+00:00")
