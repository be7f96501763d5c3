"""The rows of timing as Python computes them, and the shared vectors (tests/vectors/timing.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from restante.timing.logs.records import Event, TraceLine, read_event, read_line
from restante.timing.model.exchanges import day_of, exchanges, us
from restante.timing.model.offsets import offsets
from restante.timing.model.phases import phases
from support.vectors import load

TimingRow = tuple[int, str, str, int | None, int | None, int | None]
"""Index of the event, what, phase, us, error_us, and offset_us of the event's day."""

VECTORS: Sequence[Mapping[str, Any]] = load("timing")
"""Each has a name, a client's log, the server's trace (null: none is known), and the rows."""


def timing_rows(events: Sequence[Event], lines: Iterable[TraceLine]) -> list[TimingRow]:
    """Return the rows of a log."""
    by_id: dict[str, list[TraceLine]] = {}
    for line in lines:
        if line.id is not None:
            by_id.setdefault(line.id, []).append(line)
    paired = exchanges(events, by_id)
    days = offsets(paired, events)
    found: list[TimingRow] = []
    for each in phases(events, paired, days):
        start = us(events[each.at].start)
        assert start is not None
        offset = days.get(day_of(start))
        ahead = None if offset is None else offset.us
        found.append((each.at, each.what, each.phase, each.us, each.error_us, ahead))
    return found


def vector_rows(vector: Mapping[str, Any]) -> list[TimingRow]:
    """Return the rows that a vector expects."""
    return [tuple(row) for row in vector["rows"]]


def computed_rows(vector: Mapping[str, Any]) -> list[TimingRow]:
    """Return the rows of a vector's log and trace."""
    events = [read_event(json.dumps(event).encode()) for event in vector["log"]]
    lines = [read_line(json.dumps(line).encode()) for line in vector["trace"] or ()]
    return timing_rows(events, lines)
