"""What the built tables should be, in plain Python: slow, and written another way."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from restante.pipeline.tables import buckets
from restante.pipeline.tables.commonest import KEPT

from .tables import TABLES

Inputs = Mapping[str, Sequence[tuple[Any, ...]]]
Rows = Counter[tuple[Any, ...]]

RESULTS = ("happy", "lonely", "errory", "scary", "pruney", "crowded")
EDGES = buckets.edges()


def dicts(inputs: Inputs, name: str) -> Iterator[dict[str, Any]]:
    names = [column.name for column in TABLES[name].columns]
    return (dict(zip(names, row, strict=True)) for row in inputs.get(name, ()))


def bucket(us: int | None) -> tuple[int | None, int | None]:
    if us is None:
        return None, None
    if us <= 0:
        return buckets.ZERO, 0
    number = bisect_right(EDGES, us) - 1
    return number + buckets.ZERO + 1, EDGES[number]


def renamed(weights: Counter[tuple[Any, ...]]) -> Callable[[Any, Any, Any], Any]:
    """Name what is not among the commonest of its source and day: weights by (source, day, name)."""
    by_day = defaultdict(list)
    for (source, day, name), weight in weights.items():
        by_day[source, day].append((-weight, [(part is not None, part or "") for part in name], name))
    kept = {(*key, name) for key, names in by_day.items() for _, _, name in sorted(names, key=str_key)[:KEPT]}
    return lambda source, day, name: name if (source, day, name) in kept else ("other",) * len(name)


def str_key(item: tuple[int, list[tuple[bool, str]], Any]) -> tuple[int, list[tuple[bool, bytes]]]:
    return item[0], [(there, text.encode()) for there, text in item[1]]


def ended(inputs: Inputs) -> Iterable[tuple[str, dict[str, Any]]]:
    for row in dicts(inputs, "nameplates"):
        yield "nameplate", row
    for row in dicts(inputs, "mailboxes"):
        yield "claimed" if row["for_nameplate"] else "opened", row


def _apps(inputs: Inputs) -> Callable[[Any, Any, Any], Any]:
    return renamed(Counter((row["source"], row["day"], (row["app_id"],)) for _, row in ended(inputs)))


def outcomes(inputs: Inputs) -> Rows:
    app = _apps(inputs)
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for kind, row in ended(inputs):
        key = (*app(row["source"], row["day"], (row["app_id"],)), kind, row["day"], row["source"])
        counts[key][row["result"]] += 1
    return Counter(
        (*key[:2], of.total(), *(of[result] for result in RESULTS), *key[2:]) for key, of in counts.items()
    )


def durations(inputs: Inputs) -> Rows:
    app = _apps(inputs)
    counts: Counter[Any] = Counter()
    for kind, row in ended(inputs):
        name = app(row["source"], row["day"], (row["app_id"],))
        for measure in ("waiting", "total"):
            counts[*name, kind, measure, *bucket(row[f"{measure}_us"]), row["day"], row["source"]] += 1
    return Counter((*key[:5], count, *key[5:]) for key, count in counts.items())


ORACLES: Mapping[str, Callable[[Inputs], Rows]] = {"outcomes": outcomes, "durations": durations}
