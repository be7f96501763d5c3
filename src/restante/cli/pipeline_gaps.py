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

from restante.cli.pipeline_options import DEFAULT_LAKE, LakeDir
from restante.common.errors import Misuse, StoreError, plain
from restante.common.plural import counted

if TYPE_CHECKING:
    from restante.pipeline.gaps import Clip
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
            help="Leave out envelopes sent more than DAYS days ago: the shorter retention of the two Mailservers;"
            " 0: none. Default: 30.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of the Mailserver: its topics and its retention are used if none are named.",
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

    clip = _clip(begin, end, topic or [], retention, config, int(time.time()), holder)
    with Lake.open(lake, write=False) as opened:
        found = table.requests(table.read(opened, mailserver, clip), clip)
    ranges = MissingRanges(mailserver=mailserver, missing=sum(each.missing for each in found), ranges=tuple(found))
    content = missing_ranges.write(ranges)
    if output is not None:
        _write(output, content)
    if output is None and not sys.stdout.isatty():
        sys.stdout.write(content.decode())
    else:
        for line in shown(ranges):
            print(line)


def _clip(
    begin: str | None,
    end: str | None,
    topics: list[str],
    retention: str | None,
    config: Path | None,
    now: int,
    holder: str | None,
) -> Clip:
    """Return which gaps are wanted. Raises Misuse."""
    from restante.cli.times import read_time
    from restante.common.settings import convert, resolve
    from restante.pipeline.gaps import Clip
    from restante.waku.files.missing_ranges import MAX_TOPICS
    from restante.waku.settings import SECONDS_PER_DAY, WAKU, read_topic

    days_type: Any = Annotated[float, Meta(ge=0, le=36525)]
    settings, _ = resolve(WAKU, {}, {}, config)
    days = settings.retention if retention is None else convert(retention, days_type, "--retention")
    lower = read_time(begin, now, "--from") if begin is not None else 0
    upper = read_time(end or "now", now, "--to")
    if days:
        lower = max(lower, now - int(days * SECONDS_PER_DAY))
    if lower > upper:
        raise Misuse("the first time is after the last: change --from, --to or --retention")
    wanted = frozenset(read_topic(each, "--topic").hex() for each in topics or settings.topics)
    if len(wanted) > MAX_TOPICS:
        most = counted(MAX_TOPICS, "topic")
        raise Misuse(f"there are more than {most}, which no request can name: name fewer with --topic")
    return Clip(lower, upper, wanted, holder)


def _write(output: Path, content: bytes) -> None:
    from restante.common.atomic_file import write_output

    try:
        write_output(output, content)
    except OSError as error:
        raise StoreError(f"cannot write {output}: {plain(error)} (-o)") from error


def shown(found: MissingRanges) -> Iterator[str]:
    """Yield lines for people: what is missing, and the first ranges."""
    if not found.ranges:
        yield f"{found.mailserver} lacks nothing of these times and topics"
        return
    yield f"{found.mailserver} lacks {counted(found.missing, 'envelope')}, in {counted(len(found.ranges), 'range')}"
    for each in found.ranges[:MAX_LINES]:
        yield f"  {_time(each.lower)} to {_time(each.upper)}: {_contents(each)}"
    if (more := len(found.ranges) - MAX_LINES) > 0:
        yield f"  and {counted(more, 'more range')}; -o writes all of them to a file"


def _contents(each: MissingRange) -> str:
    topics = "all topics" if each.topics is None else counted(len(each.topics), "topic")
    return f"{counted(each.missing, 'envelope')} of {topics}, held by {', '.join(each.holders)}"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ").removesuffix("+00:00")
