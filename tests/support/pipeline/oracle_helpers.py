"""What the oracles of built tables share."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from restante.pipeline.tables import buckets
from restante.pipeline.tables.top_n import MAX_NAMES
from support.pipeline.tables import dicts as named

Inputs = Mapping[str, Sequence[tuple[Any, ...]]]
Rows = Counter[tuple[Any, ...]]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
HOUR = 3_600_000_000
EDGES = buckets.edges()


def dicts(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    return named(name, inputs.get(name, ()))


def bucket(us: int | None) -> tuple[int | None, int | None]:
    if us is None:
        return None, None
    if us <= 0:
        return buckets.ZERO_BUCKET, 0
    number = bisect_right(EDGES, us) - 1
    return number + buckets.ZERO_BUCKET + 1, EDGES[number]


def renamed(weights: Counter[tuple[Any, ...]]) -> Callable[[Any, Any, Any], Any]:
    """Name what is not among the commonest of its source and day: weights by (source, day, name)."""
    by_day = defaultdict(list)
    for (source, day, name), weight in weights.items():
        by_day[source, day].append((-weight, [(part is not None, part or "") for part in name], name))
    kept = {(*key, name) for key, names in by_day.items() for _, _, name in sorted(names, key=str_key)[:MAX_NAMES]}
    return lambda source, day, name: name if (source, day, name) in kept else ("other",) * len(name)


def str_key(item: tuple[int, list[tuple[bool, str]], Any]) -> tuple[int, list[tuple[bool, bytes]]]:
    return item[0], [(there, text.encode()) for there, text in item[1]]


def ended(inputs: Inputs) -> Iterable[tuple[str, dict[str, Any]]]:
    for row in dicts(inputs, "nameplates"):
        yield "nameplate", row
    for row in dicts(inputs, "mailboxes"):
        yield "claimed" if row["for_nameplate"] else "opened", row


def apps(inputs: Inputs) -> Callable[[Any, Any, Any], Any]:
    return renamed(Counter((row["source"], row["day"], (row["app_id"],)) for _, row in ended(inputs)))


def us_of(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def known(row: Mapping[str, Any]) -> bool:
    return row["blur_us"] is None or row["blur_us"] <= HOUR
