"""Options that commands of the pipeline share, and how their values are read."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

import typer

from restante.common.errors import Misuse

if TYPE_CHECKING:
    from restante.pipeline.build.freshness import DayRange
    from restante.pipeline.lake.url_path import LakePath

LakeAddress = Annotated[
    str,
    typer.Option(
        "--lake",
        metavar="DIR",
        envvar="RESTANTE_LAKE",
        help="Folder of the lake, in which the tables are, or its URL, like s3://BUCKET/PATH.",
    ),
]
DEFAULT_LAKE = "restante-lake"

MIN_MEMORY_MIB: Final = 512
"""Memory with which Spark starts: it refuses less than 450 MiB, and Java keeps some of it for itself."""


def _memory(size: str) -> str:
    """Return a size of memory as Java reads it. Raises Misuse."""
    match = re.fullmatch(r"(\d{1,9})([mg])", size, re.ASCII | re.IGNORECASE)
    if match is None:
        raise Misuse(f"--memory: '{size}' is not a size like 512m or 4g")
    if int(match[1]) * (1 if match[2].lower() == "m" else 1024) < MIN_MEMORY_MIB:
        raise Misuse(f"--memory: '{size}' is less than {MIN_MEMORY_MIB}m, without which Spark does not start")
    return size


Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", callback=_memory, help="Memory of Spark's Java process on this machine, like 512m or 4g."
    ),
]
DEFAULT_MEMORY = "1g"
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's own log messages.")]


class RunOptions(NamedTuple):
    """Options of all commands that write to the lake with Spark."""

    lake: LakeAddress = DEFAULT_LAKE
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TABLE=]DAYS",
            help="Afterwards delete older days from every table that the command writes, or from one table;"
            " repeatable.",
        ),
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="Only print what would be done; Spark is not started.")] = False
    master: Annotated[
        str,
        typer.Option(metavar="URL", help="Spark master: local[N], spark://… or yarn; k8s://… has not been tried."),
    ] = "local[*]"
    remote: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark Connect server to use instead of --master: sc://HOST:PORT."),
    ] = None
    memory: Memory = DEFAULT_MEMORY
    packages: Annotated[
        str | None,
        typer.Option(
            metavar="COORDINATES",
            help="Maven packages that Spark on this machine loads, such as the connector for a lake at a URL; commas"
            " separate them.",
        ),
    ] = None
    verbose: Verbose = False


def with_run_options(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the RunOptions, which it takes as its first argument, behind its own options."""
    _, *own_options = inspect.signature(run, eval_str=True).parameters.values()
    types = get_type_hints(RunOptions, include_extras=True)

    @functools.wraps(run)
    def command(**values: Any) -> None:
        run(RunOptions(**{name: values.pop(name) for name in RunOptions._fields}), **values)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        own_options
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
            for name, default in RunOptions._field_defaults.items()
        ]
    )
    return command


_UNUSABLE: Final = re.compile(r"[*?\[\]{}\\%\x00-\x1f\x7f]")
"""Characters of a path that Spark reads as a pattern or decodes."""


def read_extracts(text: str | None) -> LakePath | None:
    """Return the folder or the URL that --extracts names. Raises Misuse if Spark cannot read it, StoreError."""
    from restante.pipeline.lake.url_path import url_path

    if text is None:
        return None
    if not text:
        raise Misuse("--extracts '': name a folder")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Misuse("--extracts: the path is not UTF-8: rename the folder") from error
    if "://" in text:
        return url_path(text, "--extracts")
    if character := _UNUSABLE.search(text):
        raise Misuse(f"--extracts {text}: Spark misreads {character[0]!r} in a path: rename the folder")
    return Path(text).absolute()


def check_names(sources: Sequence[str] | None, extracts: LakePath | None = None) -> Sequence[str]:
    """Return the sources. Raises Misuse if there is nothing to read, or if two have the same name."""
    from restante.pipeline.sources.source import parse_spec

    if extracts is None and not sources:
        raise Misuse("there is nothing to read: name a source with --source NAME=PATH, or a folder with --extracts")
    sources = sources or ()
    names = [parse_spec(source).name for source in sources]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Misuse(f"--source: two sources have the name {min(repeated)}; rename one of them")
    return sources


def read_keep(keep: Sequence[str] | None, tables: Mapping[str, object]) -> dict[str, int]:
    """Return for how many days --keep keeps each table. Raises Misuse."""
    keep_days: dict[str, int] = {}
    for option in keep or ():
        table, _, days = option.rpartition("=")
        if table and table not in tables:
            raise Misuse(f"--keep {option}: this command writes no table {table}; it writes {', '.join(tables)}")
        if not days.isascii() or not days.isdigit() or not 0 < int(days) <= 36525:
            raise Misuse(f"--keep {option}: '{days}' is not a number of days from 1 to 36525")
        keep_days |= dict.fromkeys([table] if table else tables, int(days))
    return keep_days


def read_days(from_day: date | None, to_day: date | None) -> DayRange | None:
    """Return the days from --from to --to, or None if neither is given. Raises Misuse."""
    from restante.pipeline.build.freshness import DayRange  # imports pyspark

    if from_day is None and to_day is None:
        return None
    days = DayRange(from_day or date.min, to_day or date.max)
    if days.first > days.last:
        raise Misuse(f"--from {from_day} is after --to {to_day}")
    return days


def day_option(flag: str, meaning: str) -> Any:
    """Return an option whose value is a day. Its parser raises Misuse for any other text."""

    def read(text: str) -> date:
        try:
            return date.fromisoformat(text)
        except ValueError as error:
            raise Misuse(f"{flag} {text!r}: this is not a day; write it like 2026-11-21") from error

    return typer.Option(flag, metavar="DAY", parser=read, help=meaning)


def number_option(flag: str, type_: Any, meaning: str, *, metavar: str = "N") -> Any:
    """Return an option whose value is a number, perhaps with bounds. Its parser raises Misuse for any other text."""

    def read(text: str) -> Any:
        from restante.common.settings import convert

        return convert(text, type_, flag)

    return typer.Option(flag, metavar=metavar, parser=read, help=meaning)
