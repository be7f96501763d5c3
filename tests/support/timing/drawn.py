"""Transfers with known delays, clocks and steps: their logs, their trace, and the timelines of these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from restante.timing.logs.records import read_event, read_line
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, timeline

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
    heard: dict[str, float]
    """When each client received the answer or the message."""
    sent_on: dict[str, float] = field(default_factory=dict)
    """When the server sent it to a client that was not there before."""


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

    def add(self, role: str, name: str, start: float, stop: float | None = None, waiting: str | None = None) -> None:
        """Add an event that is not a message to a log. Its times are by the server's clock."""
        began = BEGAN + self.skews[role]
        details = {} if waiting is None else {"waiting": waiting}
        self.logs[role].append(
            {"name": name, "start": began + start, "stop": stop and began + stop, "details": details}
        )
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
    """Draw the times of a transfer. Each clock has a constant skew.

    The receiver may begin late, and the sender's first message may be stored until then.
    """
    ways: list[Way] = []
    now = 0.0
    for number, (role, kind, phase) in enumerate(SCRIPT):
        now += dice.expovariate(1 / pauses) + (late if (role, kind) == ("receiver", "bind") else 0)
        ways.append(_way(dice, role, kind, phase, f"{number:04x}", now, paths))
        now = max(now, ways[-1].heard[role]) if kind != "add" else now
    if stored:
        pake = next(way for way in ways if way.kind == "add")
        pake.sent_on["receiver"] = next(way.tx for way in ways if (way.role, way.kind) == ("receiver", "open"))
        pake.heard["receiver"] = pake.sent_on["receiver"] + paths["receiver"].back
    return Drawn(
        skews, ways, {role: log_of(role, ways, skews[role]) for role in SIDES}, [line_of(way) for way in ways]
    )


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


def line_of(way: Way) -> dict[str, Any]:
    times = (None if each is None else stamp(each) for each in (way.rx, way.began, way.commit, way.tx))
    keys = ("server_rx", "commit_began", "commit", "server_tx")
    return {"connection": 1, "command": way.kind, "id": way.id, **dict(zip(keys, times, strict=True))}


def log_of(role: str, ways: Sequence[Way], skew: float) -> list[dict[str, Any]]:
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
                "server_tx": stamp(way.sent_on.get(role, way.tx)),
            }
            events.append(_event("ws_receive", way.heard[role] + skew, {"_side": side, "message": message}))
    return sorted(events, key=lambda event: float(event["start"]))


def _event(name: str, at: float, details: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "start": BEGAN + at, "stop": None, "details": details}


PATHS: dict[str, Path] = {role: Path(0.020, 0.010, 0.002) for role in ROLES}

SKEWS = {"sender": 5.0, "receiver": -5.0}


def drawn_timeline(
    seed: int = 1, *, roles: Sequence[Role] = ROLES, traced: bool = True, paths: dict[str, Path] = PATHS
) -> Timeline:
    """Return the timeline of a transfer that was drawn."""
    return timeline_of(draw(Random(seed), SKEWS, paths), roles=roles, traced=traced)


def timeline_of(drawn: Drawn, *, roles: Sequence[Role] = ROLES, traced: bool = True) -> Timeline:
    logs = [ClientLog(role, [read_event(json.dumps(event).encode()) for event in drawn.logs[role]]) for role in roles]
    lines = [read_line(line) for line in drawn.lines().splitlines()]
    return timeline(logs, {line.id: [line] for line in lines if line.id is not None} if traced else None)


def waiting(seconds: float = 9.0, *, human: float | None = None, paths: dict[str, Path] = PATHS) -> Drawn:
    """Return a transfer whose receiver comes so much later, and then waits for its user (None: all of the time)."""
    drawn = draw(Random(1), SKEWS, paths, late=seconds, stored=human is not None)
    came = next(way.sent for way in drawn.ways if way.role == "receiver")
    ended = drawn.ways[-1].sent
    drawn.add("receiver", "input code", came - (human or seconds), came - 0.001, "user")
    drawn.add("sender", "command dispatch", -0.3)
    drawn.add("sender", "pake1", -0.2, -0.1, "crypto")
    drawn.add("sender", "tx file", ended + 0.1, ended + 2.1)
    drawn.add("receiver", "rx file", ended + 0.1, ended + 2.1)
    return drawn
