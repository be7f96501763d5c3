"""Arguments of pipeline commands: --source, --keep, --from and --to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from restante.common.errors import Misuse
from restante.pipeline.sources.source import parse

if TYPE_CHECKING:
    from restante.pipeline.build.freshness import DayRange


def check_names(sources: Sequence[str] | None) -> Sequence[str]:
    """Return the sources. Raises Misuse if there is none, or if two have the same name."""
    if not sources:
        raise Misuse("there is nothing to read: name a source with --source NAME=PATH")
    names = [parse(each).name for each in sources]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Misuse(f"--source: two sources have the name {min(twice)}; rename one of them")
    return sources


def read_keep(keep: Sequence[str] | None, tables: Mapping[str, object]) -> dict[str, int]:
    """Return for how many days --keep keeps each table. Raises Misuse."""
    found: dict[str, int] = {}
    for each in keep or ():
        table, _, days = each.rpartition("=")
        if table and table not in tables:
            raise Misuse(f"--keep {each}: this command writes no table {table}; it writes {', '.join(tables)}")
        if not days.isascii() or not days.isdigit() or not 0 < int(days) <= 36525:
            raise Misuse(f"--keep {each}: '{days}' is not a number of days from 1 to 36525")
        found |= dict.fromkeys([table] if table else tables, int(days))
    return found


def read_days(first: str | None, last: str | None) -> DayRange | None:
    """Return the days from --from to --to, or None if neither is given. Raises Misuse."""
    from restante.pipeline.build.freshness import DayRange  # imports pyspark

    if first is None and last is None:
        return None
    days = DayRange(read_day("--from", first) if first else date.min, read_day("--to", last) if last else date.max)
    if days.first > days.last:
        raise Misuse(f"--from {first} is after --to {last}")
    return days


def read_day(flag: str, said: str) -> date:
    """Return the day that a flag names. Raises Misuse."""
    try:
        return date.fromisoformat(said)
    except ValueError as error:
        raise Misuse(f"{flag} {said}: this is not a day; write it like 2026-11-21") from error
