"""`restante pipeline gaps`: what to fetch for a Mailserver that lacks envelopes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Meta

from restante.common.errors import Misuse, StoreError, plain
from restante.common.texts import counted
from restante.pipeline.cli.options import DEFAULT_LAKE, LakeDir

if TYPE_CHECKING:
    from restante.pipeline.gaps import GapFilter
    from restante.waku.files.missing_ranges import MissingRange, MissingRanges

app = typer.Typer()

MAX_LINES: Final = 20
"""Ranges that are shown. The file has all of them."""


@app.command()
def gaps(
    mailserver: Annotated[str, typer.Option(metavar="NAME", help="Mailserver, by its name in --source.")],
    lake: LakeDir = DEFAULT_LAKE,
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
        str | None,
        typer.Option(
            metavar="DAYS",
            help="Leave out envelopes sent more than DAYS days ago; 0: none. Default: 30, unless --config is given.",
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
    from restante.pipeline import gaps as table
    from restante.pipeline.lake.lake import Lake
    from restante.waku.files import missing_ranges
    from restante.waku.files.missing_ranges import MissingRanges

    clip, whole = _clips(begin, end, topic or [], retention, config or [], int(time.time()), holder)
    for_people = output is not None or sys.stdout.isatty()
    with Lake.open(lake, write=False) as opened:
        found = every = table.ranges_to_request(table.read_gaps(opened, mailserver, clip), clip)
        if for_people and whole != clip:
            every = table.ranges_to_request(table.read_gaps(opened, mailserver, whole), whole)
    ranges = MissingRanges(mailserver=mailserver, missing=sum(each.missing for each in found), ranges=tuple(found))
    content = missing_ranges.write(ranges)
    if output is not None:
        _write(output, content)
    if not for_people:
        sys.stdout.write(content.decode())
    else:
        for line in shown(ranges, holder, left_out=sum(each.missing for each in every) - ranges.missing):
            print(line)


def _clips(
    begin: str | None,
    end: str | None,
    topics: list[str],
    retention: str | None,
    configs: list[Path],
    now: int,
    holder: str | None,
) -> tuple[GapFilter, GapFilter]:
    """Return which gaps are wanted: what the options and all Mailservers of `configs` allow.

    The second one is the same without what retentions and lists of topics leave out. Raises Misuse.
    """
    from restante.cli.times import read_time
    from restante.common.settings import convert, resolve_settings
    from restante.pipeline.gaps import GapFilter
    from restante.waku.files.missing_ranges import MAX_TOPICS
    from restante.waku.settings import DEFAULT_RETENTION_DAYS, SECONDS_PER_DAY, WAKU, read_topic

    days_type: Any = Annotated[float, Meta(ge=0, le=36525)]
    configured = [resolve_settings(WAKU, {}, {}, each)[0] for each in configs]
    limits = [each.retention for each in configured]
    if retention is not None:
        limits.append(convert(retention, days_type, "--retention"))
    days = min((each for each in limits or [DEFAULT_RETENTION_DAYS] if each), default=0)  # 0: no limit
    first = lower = read_time(begin, now, "--from") if begin is not None else 0
    upper = read_time(end or "now", now, "--to")
    if first > upper:
        raise Misuse("the first time is after the last: change --from or --to")
    if days:
        lower = max(lower, now - int(days * SECONDS_PER_DAY))
    if lower > upper:
        raise Misuse("no time is left: change --from, --to, --retention or the retention in the files of --config")
    lists = [frozenset(read_topic(each, "--topic").hex() for each in topics)]
    lists += [frozenset(read_topic(topic, "topics").hex() for topic in each.topics) for each in configured]
    named = [each for each in lists if each]  # an empty list: all topics
    wanted = frozenset.intersection(*named) if named else frozenset()
    if named and not wanted:
        raise Misuse("no topic is in every list of topics: change --topic or the topics in the files of --config")
    if len(wanted) > MAX_TOPICS:
        most = counted(MAX_TOPICS, "topic")
        raise Misuse(f"there are more than {most}, which no request can name: name fewer with --topic")
    return GapFilter(lower, upper, wanted, holder), GapFilter(first, upper, holder=holder)


def _write(output: Path, content: bytes) -> None:
    from restante.common.atomic_file import write_output

    try:
        write_output(output, content)
    except OSError as error:
        raise StoreError(f"cannot write {output}: {plain(error)} (-o)") from error


def shown(found: MissingRanges, holder: str | None = None, *, left_out: int = 0) -> Iterator[str]:
    """Yield lines for people: what is missing, the first ranges, and how many envelopes the options leave out."""
    having = f" that {holder} has" if holder else ""
    if found.ranges:
        ranges = counted(len(found.ranges), "range")
        yield f"{found.mailserver} lacks {counted(found.missing, 'envelope')}{having}, in {ranges}"
    else:
        yield f"{found.mailserver} lacks nothing of these times and topics{having}"
    for each in found.ranges[:MAX_LINES]:
        yield f"  {_time(each.lower)} to {_time(each.upper)}: {_contents(each)}"
    if (more := len(found.ranges) - MAX_LINES) > 0:
        yield f"  and {counted(more, 'more range')}; -o writes all of them to a file"
    if left_out > 0:
        verb = "is" if left_out == 1 else "are"
        yield f"{counted(left_out, 'more envelope')}{having} {verb} too old, or of other topics"


def _contents(each: MissingRange) -> str:
    topics = "all topics" if each.topics is None else counted(len(each.topics), "topic")
    return f"{counted(each.missing, 'envelope')} of {topics}, held by {', '.join(each.holders)}"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ").removesuffix("+00:00")
