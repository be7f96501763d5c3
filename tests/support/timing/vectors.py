"""The shared vectors of timing and deliveries (tests/vectors), and the rows that Python computes of a log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from restante.timing.logs import Event, TraceLine, read_event, read_line
from restante.timing.model.exchanges import day_of, pair_exchanges, to_us
from restante.timing.model.offsets import estimate_offsets
from restante.timing.model.phases import split_phases
from support.vectors import load

VECTORS: Sequence[Mapping[str, Any]] = load("timing")
"""Each has a name, a client's log, the server's trace (null: none is known), and the rows."""

DELIVERY_VECTORS: Sequence[Mapping[str, Any]] = load("deliveries")
"""Each has a name, clients' logs, the server's trace (null: unknown), and the rows of deliveries and transfers."""

TimingRow = tuple[int, str, str, int | None, int | None, int | None]
"""Index of the event, what, phase, us, error_us, and offset_us of the event's day."""


def timing_rows(events: Sequence[Event], lines: Iterable[TraceLine]) -> list[TimingRow]:
    paired = pair_exchanges(events, by_id(lines))
    days = estimate_offsets(paired, events)
    rows: list[TimingRow] = []
    for row in split_phases(events, paired, days):
        start = to_us(events[row.index].start)
        assert start is not None
        offset = days.get(day_of(start))
        ahead = None if offset is None else offset.us
        rows.append((row.index, row.kind, row.phase, row.us, row.error_us, ahead))
    return rows


def by_id(lines: Iterable[TraceLine]) -> Mapping[str, Sequence[TraceLine]]:
    result = defaultdict(list)
    for line in lines:
        if line.id is not None:
            result[line.id].append(line)
    return result


def events_of(log: Sequence[Any]) -> list[Event]:
    return [read_event(json.dumps(event).encode()) for event in log]


def lines_of(vector: Mapping[str, Any]) -> list[TraceLine]:
    return [read_line(json.dumps(line).encode()) for line in vector["trace"] or ()]
