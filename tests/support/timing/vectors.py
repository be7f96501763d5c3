"""The shared vectors of timing and deliveries (tests/vectors), and what Python computes of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from restante.timing.logs.records import Event, TraceLine, read_event, read_line
from restante.timing.model.deliveries import Delivery, MeasuredLog, deliveries
from restante.timing.model.exchanges import day_of, exchanges, us
from restante.timing.model.offsets import offsets
from restante.timing.model.phases import phases
from support.vectors import load

VECTORS: Sequence[Mapping[str, Any]] = load("timing")
"""Each has a name, a client's log, the server's trace (null: none is known), and the rows."""

DELIVERY_VECTORS: Sequence[Mapping[str, Any]] = load("deliveries")
"""Each has a name, clients' logs, the trace of the server `main` (null: none is known), and the rows of the tables
deliveries and transfers."""

TimingRow = tuple[int, str, str, int | None, int | None, int | None]
"""Index of the event, what, phase, us, error_us, and offset_us of the event's day."""

COMPARED = ("file", "id", "peer_file", "peer_id", "phase", "network_out_us", "at_server_us", "network_in_us", "us")
"""Columns of a delivery that restante.timing computes, and `error_us`."""


def timing_rows(events: Sequence[Event], lines: Iterable[TraceLine]) -> list[TimingRow]:
    """Return the rows of a log."""
    paired = exchanges(events, _by_id(lines))
    days = offsets(paired, events)
    rows: list[TimingRow] = []
    for each in phases(events, paired, days):
        start = us(events[each.at].start)
        assert start is not None
        offset = days.get(day_of(start))
        ahead = None if offset is None else offset.us
        rows.append((each.at, each.what, each.phase, each.us, each.error_us, ahead))
    return rows


def _by_id(lines: Iterable[TraceLine]) -> dict[str, list[TraceLine]]:
    by_id: dict[str, list[TraceLine]] = {}
    for line in lines:
        if line.id is not None:
            by_id.setdefault(line.id, []).append(line)
    return by_id


def events_of(log: Sequence[Any]) -> list[Event]:
    """Return the events of a vector's log."""
    return [read_event(json.dumps(event).encode()) for event in log]


def lines_of(vector: Mapping[str, Any]) -> list[TraceLine]:
    """Return the lines of a vector's trace."""
    return [read_line(json.dumps(line).encode()) for line in vector["trace"] or ()]


def computed_rows(vector: Mapping[str, Any]) -> list[TimingRow]:
    """Return the rows of a vector's log and trace."""
    return timing_rows(events_of(vector["log"]), lines_of(vector))


def computed_deliveries(vector: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the deliveries of a vector: those between logs that have messages of one other log only on a day."""
    # Of copies of a log the last one of the mapping counts: one that names a server, then by source.
    measured: dict[str, MeasuredLog] = {}
    for log in sorted(vector["logs"], key=lambda log: (log["server"] is None, log["source"]), reverse=True):
        events = events_of(log["events"])
        paired = exchanges(events, _by_id(lines_of(vector)) if log["server"] == "main" else {})
        measured[log["file"]] = MeasuredLog(events, paired, offsets(paired, events))
    found: list[tuple[str, str, Delivery]] = []
    partners = defaultdict(set)
    for (file, author), (peer_file, peer) in product(measured.items(), repeat=2):
        for each in deliveries(author, peer):
            found.append((file, peer_file, each))
            partners[file, day_of(each.rx)].add(peer_file)
            partners[peer_file, day_of(each.rx)].add(file)
    computed = []
    for file, peer_file, each in found:
        files = (file, peer_file)
        if file != peer_file and all(len(partners[name, day_of(each.rx)]) == 1 for name in files):
            durations = (each.network_out_us, each.at_server_us, each.network_in_us, each.us)
            values = (file, each.at, peer_file, each.received_at, each.phase, *durations)
            computed.append({**dict(zip(COMPARED, values, strict=True)), "error_us": each.error_us})
    return computed
