"""Describes the rows of a usage table that are read, and cleans them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from restante.pipeline.clean.rules import (
    MICROSECONDS_PER_DAY,
    ORIGIN_RULE,
    OWN_RULES,
    RULES,
    Fault,
    TimeLimits,
    blur_us,
    clean,
    digest,
)
from restante.pipeline.sources.source import DUPLICATE


class UsageScan(NamedTuple):
    """The rows to read and how to clean them; part of each task."""

    source: str
    table: str
    """Name of the lake's table."""
    copy: str
    path: str
    """The path of the original, for errors."""
    name: str
    """Name of the table in the copy."""
    columns: tuple[str, ...]
    """Columns in the copy: the id, the origin, those of the table's rules, then those of our own servers' rules."""
    limits: TimeLimits
    setting_us: int | None
    """The unit that the server floors times to now, in microseconds, for its own rows that do not record theirs."""
    duplicates: frozenset[str]
    """Origins whose rows another source has."""


def clean_rows(scan: UsageScan, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a row of the lake's table and its fault. A row with a fault has no other values."""
    rules, within, source = (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]), scan.limits, scan.source
    when = next(place for place, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    nothing = (None,) * (len(rules) + 1)  # one value for each rule, and one for the day
    for row_id, *row in found:
        if row[0] in scan.duplicates:
            fault: str = DUPLICATE
        else:
            values = clean(rules, row, within)
            if not isinstance(values, Fault):
                own = values[0] == ""  # another server wrote an imported row, with its own setting
                values[-1] = blur_us(values[-1], scan.setting_us if own else None, values[when])
                yield (row_id, *values, values[when] // MICROSECONDS_PER_DAY, source, None, None, None)
                continue
            fault = str(values)
        yield (row_id, *nothing, source, fault, str(row_id), digest(row))
