"""What is to be read of a usage table, and what becomes of each of its rows. Pure."""

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
    """What is to be read, and how: a part of each task."""

    source: str
    table: str
    """Of the lake."""
    copy: str
    path: str
    """What that is a copy of, for the operator."""
    name: str
    """Of the table in the copy."""
    columns: tuple[str, ...]
    """In the copy: the id, the origin, then those of the table's rules, and of our own servers' rules."""
    limits: TimeLimits
    setting_us: int | None
    """What the server floors times to now, for its own rows that do not say what theirs were floored to."""
    duplicates: frozenset[str]
    """Origins whose rows another source has."""


def clean_rows(scan: UsageScan, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Clean rows: each becomes one of the lake's table, and what is wrong with it; with a fault it has no content."""
    rules, within, source = (ORIGIN_RULE, *RULES[scan.table], *OWN_RULES[scan.table]), scan.limits, scan.source
    when = next(place for place, rule in enumerate(rules) if rule.column in {"started", "connect_time"})
    nothing = (None,) * (len(rules) + 1)  # and day
    for row_id, *row in found:
        if row[0] in scan.duplicates:
            fault: str = DUPLICATE
        else:
            values = clean(rules, row, within)
            if not isinstance(values, Fault):
                own = values[0] == ""  # what was imported was written by another server, with its setting
                values[-1] = blur_us(values[-1], scan.setting_us if own else None, values[when])
                yield (row_id, *values, values[when] // MICROSECONDS_PER_DAY, source, None, None, None)
                continue
            fault = str(values)
        yield (row_id, *nothing, source, fault, str(row_id), digest(row))
