"""What the command line says of days and of sources: --keep, --from, --to, --source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from restante.common.errors import Misuse
from restante.pipeline.sources.source import parse

if TYPE_CHECKING:
    from restante.pipeline.build.freshness import DayRange


def check_names(sources: Sequence[str] | None) -> Sequence[str]:
    """Return what --source says, if there is a source, and each has a name of its own. Raises Misuse."""
    if not sources:
        raise Misuse("nothing to read: name a source, --source NAME=PATH")
    names = [parse(each).name for each in sources]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Misuse(f"--source: {min(twice)} is named twice; every source needs a name of its own")
    return sources


def read_keep(keep: Sequence[str] | None, tables: Mapping[str, object]) -> dict[str, int]:
    """Read --keep: for how many days each table is kept. Raises Misuse."""
    found: dict[str, int] = {}
    for each in keep or ():
        table, _, days = each.rpartition("=")
        if table and table not in tables:
            raise Misuse(f"--keep {each}: there is no table {table} here: there are {', '.join(tables)}")
        if not days.isascii() or not days.isdigit() or not 0 < int(days) <= 36525:
            raise Misuse(f"--keep {each}: a number of days, from 1 to 36525")
        found |= dict.fromkeys([table] if table else tables, int(days))
    return found


def read_days(first: str | None, last: str | None) -> DayRange | None:
    """Read --from and --to. Raises Misuse."""
    from restante.pipeline.build.freshness import DayRange  # and pyspark

    if first is None and last is None:
        return None
    days = DayRange(_day("--from", first) if first else date.min, _day("--to", last) if last else date.max)
    if days.first > days.last:
        raise Misuse(f"--from {first} is after --to {last}")
    return days


def _day(flag: str, said: str) -> date:
    try:
        return date.fromisoformat(said)
    except ValueError as error:
        raise Misuse(f"{flag} {said}: a day looks like 2026-11-21") from error
