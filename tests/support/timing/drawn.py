"""Transfers with known delays, clocks and steps: their logs, their trace, and the timelines of these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from restante.timing.logs import read_event, read_line
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, build_timeline

BEGAN = 1_795_000_000.0
"""When the transfers begin, by the server's clock, in seconds since 1970."""

SCRIPT = (
    *(("sender", kind, None) for kind in ("bind", "allocate", "claim", "open")),
    ("sender", "add", "pake"),
    *(("receiver", kind, None) for kind in ("bind", "claim", "open")),
    ("receiver", "add", "pake"),
    ("sender", "release", None),
    ("receiver", "release", None),
    *((role, "add", "version") for role in ("receiver", "sender")),
    *((role, "add", "0") for role in ("sender", "receiver")),
    *((role, "close", None) for role in ("receiver", "sender")),
)

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
    heard: dict[str, float]
    """When each client received the answer or the message."""
    sent_on: dict[str, float]
    """When the server sent the answer or the message to each of them."""


@dataclass
class Drawn:
    skews: dict[str, float]
    """How far the clock of each client is ahead of the server's, in seconds."""
    ways: list[Way]
    logs: dict[str, list[dict[str, Any]]]
    trace: list[dict[str, Any]]

    def log(self, role: str) -> bytes:
        return json.dumps(self.logs[role]).encode()

    def lines(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.trace)

    def add(self, role: str, name: str, start: float, stop: float | None = None, waiting: str | None = None) -> None:
        """Add an event that is not a message to a log. Its times are by the server's clock."""
        began = BEGAN + self.skews[role]
        details = {} if waiting is None else {"waiting": waiting}
        event = {"name": name, "start": began + start, "stop": stop and began + stop, "details": details}
        self.logs[role].append(event)
        self.logs[role].sort(key=lambda event: float(event["start"]))


def draw(
    dice: Random,
    skews: dict[str, float],
    paths: dict[str, Path],
    *,
    pauses: float = 0.05,
    late: float = 0.0,
    stored: bool = False,
) -> Drawn:
    """Draw the times of a transfer, with constant skews; a late receiver may get the first message from the store."""

    def later(time: float, least: float, jitter: float) -> float:
        return time + (least + (dice.expovariate(1 / jitter) if jitter else 0.0))

    ways: list[Way] = []
    trace: list[dict[str, Any]] = []
    now = 0.0
    for number, (role, kind, phase) in enumerate(SCRIPT):
        now += dice.expovariate(1 / pauses) + (late if (role, kind) == ("receiver", "bind") else 0)
        rx = later(now, paths[role].out, paths[role].jitter)
        began = None if kind in {"bind", "open"} else later(rx, 0.0, 0.002)
        commit = began and later(began, 0.0, 0.005)
        tx = later(commit or rx, 0.0, 0.0002)
        hears = SIDES if kind == "add" else (role,)
        heard = {hearer: later(tx, paths[hearer].back, paths[hearer].jitter) for hearer in hears}
        way = Way(role, kind, phase, f"{number:04x}", now, rx, began, commit, tx, heard, dict.fromkeys(hears, tx))
        ways.append(way)
        times = {"server_rx": rx, "commit_began": began, "commit": commit, "server_tx": tx}
        stamps = {name: time and _stamp(time) for name, time in times.items()}
        trace.append({"connection": 1, "command": kind, "id": way.id, **stamps})
        now = max(now, heard[role]) if kind != "add" else now
    if stored:
        pake = next(way for way in ways if way.kind == "add")
        pake.sent_on["receiver"] = next(way.tx for way in ways if (way.role, way.kind) == ("receiver", "open"))
        pake.heard["receiver"] = pake.sent_on["receiver"] + paths["receiver"].back
    return Drawn(skews, ways, {role: _log(role, ways, skews[role]) for role in SIDES}, trace)


def _stamp(seconds: float) -> float:
    return round(BEGAN + seconds, 6)


def _log(role: str, ways: Sequence[Way], skew: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []

    def note(name: str, at: float, **details: Any) -> None:
        details["_side"] = SIDES[role]
        events.append({"name": name, "start": BEGAN + (at + skew), "stop": None, "details": details})

    for way in ways:
        if way.role == role:
            note("ws_send", way.sent, type=way.kind, id=way.id, **({"phase": way.phase} if way.phase else {}))
            note("ws_receive", way.heard[role], message={"type": "ack", "id": way.id, "server_tx": _stamp(way.tx)})
        if way.kind == "add":
            message = {"type": "message", "side": SIDES[way.role], "phase": way.phase, "body": "00", "id": way.id}
            times = {"server_rx": _stamp(way.rx), "server_tx": _stamp(way.sent_on[role])}
            note("ws_receive", way.heard[role], message=message | times)
    return sorted(events, key=lambda event: float(event["start"]))


PATHS: dict[str, Path] = {role: Path(0.020, 0.010, 0.002) for role in ROLES}

SKEWS = {"sender": 5.0, "receiver": -5.0}


def drawn_timeline(
    seed: int = 1, *, roles: Sequence[Role] = ROLES, traced: bool = True, paths: dict[str, Path] = PATHS
) -> Timeline:
    return timeline_of(draw(Random(seed), SKEWS, paths), roles=roles, traced=traced)


def timeline_of(drawn: Drawn, *, roles: Sequence[Role] = ROLES, traced: bool = True) -> Timeline:
    logs = [ClientLog(role, [read_event(json.dumps(event).encode()) for event in drawn.logs[role]]) for role in roles]
    lines = [read_line(line) for line in drawn.lines().splitlines()]
    return build_timeline(logs, {line.id: [line] for line in lines if line.id is not None} if traced else None)


def waiting(seconds: float = 9.0, *, human: float | None = None, paths: dict[str, Path] = PATHS) -> Drawn:
    """Return a transfer whose receiver comes so much later, and then waits for its user (None: all of the time)."""
    drawn = draw(Random(1), SKEWS, paths, late=seconds, stored=human is not None)
    receiver_start = next(way.sent for way in drawn.ways if way.role == "receiver")
    end = drawn.ways[-1].sent
    drawn.add("receiver", "input code", receiver_start - (human or seconds), receiver_start - 0.001, "user")
    drawn.add("sender", "command dispatch", -0.3)
    drawn.add("sender", "pake1", -0.2, -0.1, "crypto")
    for role, name in (("sender", "tx file"), ("receiver", "rx file")):
        drawn.add(role, name, end + 0.1, end + 2.1)
    return drawn
