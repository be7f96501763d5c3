"""The deliveries between logs as Python computes them, and the shared vectors (tests/vectors/deliveries.json)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from restante.timing.logs.records import TraceLine, read_event, read_line
from restante.timing.model.deliveries import Delivery, MeasuredLog, deliveries
from restante.timing.model.exchanges import day_of, exchanges
from restante.timing.model.offsets import offsets
from support.vectors import load

DELIVERY_VECTORS: Sequence[Mapping[str, Any]] = load("deliveries")
"""Each has a name, clients' logs, the trace of the server `main` (null: none is known), and the rows of the tables
deliveries and transfers."""

COMPARED = ("file", "id", "peer_file", "peer_id", "phase", "network_out_us", "at_server_us", "network_in_us", "us")
"""Columns of a delivery that restante.timing computes, and `error_us`."""


def computed_deliveries(vector: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the deliveries of a vector: those between logs that have messages of one other log only on a day."""
    logs = {log["file"]: _measured(vector, log) for log in sorted(vector["logs"], key=_preference, reverse=True)}
    found: list[tuple[str, str, Delivery]] = []
    partners = defaultdict(set)
    for (file, author), (peer_file, peer) in product(logs.items(), repeat=2):
        for each in deliveries(author, peer):
            found.append((file, peer_file, each))
            partners[file, day_of(each.rx)].add(peer_file)
            partners[peer_file, day_of(each.rx)].add(file)
    return [
        {
            **dict(zip(COMPARED, (file, each.at, peer, each.received_at, *_durations(each)), strict=True)),
            "error_us": each.error_us,
        }
        for file, peer, each in found
        if file != peer and all(len(partners[log, day_of(each.rx)]) == 1 for log in (file, peer))
    ]


def _durations(each: Delivery) -> tuple[Any, ...]:
    return each.phase, each.network_out_us, each.at_server_us, each.network_in_us, each.us


def _preference(log: Mapping[str, Any]) -> tuple[bool, str]:
    """Order copies of a log: those that name a server, then by source. The last one of a mapping counts."""
    return log["server"] is None, log["source"]


def _measured(vector: Mapping[str, Any], log: Mapping[str, Any]) -> MeasuredLog:
    lines: dict[str, list[TraceLine]] = {}
    for line in vector["trace"] or () if log["server"] == "main" else ():
        read = read_line(json.dumps(line).encode())
        lines.setdefault(read.id or "", []).append(read)
    events = [read_event(json.dumps(event).encode()) for event in log["events"]]
    paired = exchanges(events, lines)
    return MeasuredLog(events, paired, offsets(paired, events))
