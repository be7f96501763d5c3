"""Transfers with known delays, clocks and steps: the logs and the trace that they leave behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

BEGAN = 1_795_000_000.0
"""When the transfers begin, by the server's clock, in seconds since 1970."""

SCRIPT = (
    *(("sender", kind, None) for kind in ("bind", "allocate", "claim", "open")),
    ("sender", "add", "pake"),
    *(("receiver", kind, None) for kind in ("bind", "claim", "open")),
    ("receiver", "add", "pake"),
    ("sender", "release", None),
    *(("receiver", kind, phase) for kind, phase in (("release", None), ("add", "version"))),
    *(("sender", "add", phase) for phase in ("version", "0")),
    *(("receiver", kind, phase) for kind, phase in (("add", "0"), ("close", None))),
    ("sender", "close", None),
)
"""The commands of a transfer: role, type, phase."""

SIDES = {"sender": "5e4de6", "receiver": "6ece17"}


@dataclass
class Path:
    """How long messages take between a client and the server, in seconds: the least, and what is added on average."""

    out: float
    back: float
    jitter: float


@dataclass
class Way:
    """The whole way of one command, in seconds since BEGAN by the server's clock; the truth."""

    role: str
    kind: str
    phase: str | None
    id: str
    sent: float
    rx: float
    began: float | None
    commit: float | None
    tx: float
    heard: dict[str, float] = field(default_factory=dict)
    """When each client received the answer or the message."""


@dataclass
class Drawn:
    """A transfer that was drawn."""

    skews: dict[str, float]
    """How far the clock of each client is ahead of the server's, in seconds."""
    ways: list[Way]
    logs: dict[str, list[dict[str, Any]]]
    trace: list[dict[str, Any]]

    def log(self, role: str) -> bytes:
        return json.dumps(self.logs[role]).encode()

    def lines(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.trace)


def draw(dice: Random, skews: dict[str, float], paths: dict[str, Path], *, pauses: float = 0.05) -> Drawn:
    """Draw the times of a transfer. Each clock has a constant skew."""
    ways: list[Way] = []
    now = 0.0
    for number, (role, kind, phase) in enumerate(SCRIPT):
        now += dice.expovariate(1 / pauses)
        ways.append(_way(dice, role, kind, phase, f"{number:04x}", now, paths))
        now = max(now, ways[-1].heard[role]) if kind != "add" else now
    return Drawn(skews, ways, {role: _log(role, ways, skews[role]) for role in SIDES}, [_line(way) for way in ways])


def _way(
    dice: Random, role: str, kind: str, phase: str | None, command_id: str, sent: float, paths: dict[str, Path]
) -> Way:
    def delay(least: float, of: Path) -> float:
        return least + (dice.expovariate(1 / of.jitter) if of.jitter else 0.0)

    rx = sent + delay(paths[role].out, paths[role])
    changes = kind not in {"bind", "open"}
    began = rx + dice.expovariate(500) if changes else None
    commit = None if began is None else began + dice.expovariate(200)
    tx = (rx if commit is None else commit) + dice.expovariate(5000)
    hears = SIDES if kind == "add" else (role,)
    heard = {each: tx + delay(paths[each].back, paths[each]) for each in hears}
    return Way(role, kind, phase, command_id, sent, rx, began, commit, tx, heard)


def stamp(seconds: float) -> float:
    """Return a time as a server writes it: seconds since 1970, in whole microseconds."""
    return round(BEGAN + seconds, 6)


def _line(way: Way) -> dict[str, Any]:
    times = (None if each is None else stamp(each) for each in (way.rx, way.began, way.commit, way.tx))
    keys = ("server_rx", "commit_began", "commit", "server_tx")
    return {"connection": 1, "command": way.kind, "id": way.id, **dict(zip(keys, times, strict=True))}


def _log(role: str, ways: Sequence[Way], skew: float) -> list[dict[str, Any]]:
    side = SIDES[role]
    events = []
    for way in ways:
        if way.role == role:
            sent = {"_side": side, "type": way.kind, "id": way.id, **({"phase": way.phase} if way.phase else {})}
            events.append(_event("ws_send", way.sent + skew, sent))
            ack = {"type": "ack", "id": way.id, "server_tx": stamp(way.tx)}
            events.append(_event("ws_receive", way.heard[role] + skew, {"_side": side, "message": ack}))
        if way.kind == "add":
            message = {
                "type": "message",
                "side": SIDES[way.role],
                "phase": way.phase,
                "body": "00",
                "id": way.id,
                "server_rx": stamp(way.rx),
                "server_tx": stamp(way.tx),
            }
            events.append(_event("ws_receive", way.heard[role] + skew, {"_side": side, "message": message}))
    return sorted(events, key=lambda event: float(event["start"]))


def _event(name: str, at: float, details: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "start": BEGAN + at, "stop": None, "details": details}
