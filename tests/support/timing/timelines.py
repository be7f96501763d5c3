"""Timelines of drawn transfers, for the tests of what they are written as."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from restante.timing.logs.records import read_event, read_line
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, timeline
from support.timing import drawn as transfers
from support.timing.drawn import BEGAN, Drawn, Path, draw

PATHS: dict[str, Path] = {role: Path(0.020, 0.010, 0.002) for role in ROLES}

SKEWS = {"sender": 5.0, "receiver": -5.0}


def drawn_timeline(
    seed: int = 1,
    *,
    roles: Sequence[Role] = ROLES,
    traced: bool = True,
    skews: dict[str, float] | None = None,
    paths: dict[str, Path] | None = None,
    spans: Sequence[tuple[Role, dict[str, Any]]] = (),
) -> Timeline:
    """Return the timeline of a transfer that was drawn, with some spans added to its logs."""
    drawn = draw(Random(seed), skews or SKEWS, paths or PATHS)
    for role, event in spans:
        log = drawn.logs[role]
        log.append(event)
        log.sort(key=lambda each: float(each["start"]))
    return timeline_of(drawn, roles=roles, traced=traced)


def timeline_of(drawn: Drawn, *, roles: Sequence[Role] = ROLES, traced: bool = True) -> Timeline:
    logs = [ClientLog(role, [read_event(json.dumps(event).encode()) for event in drawn.logs[role]]) for role in roles]
    lines = [read_line(line) for line in drawn.lines().splitlines()]
    return timeline(logs, {line.id: [line] for line in lines if line.id is not None} if traced else None)


def span(name: str, start: float, stop: float | None, skew: float, waiting: str | None = None) -> dict[str, Any]:
    """Return an event of a log that is not a message: seconds since the transfer began, by the server's clock."""
    details = {} if waiting is None else {"waiting": waiting}
    ends = None if stop is None else BEGAN + stop + skew
    return {"name": name, "start": BEGAN + start + skew, "stop": ends, "details": details}


def waiting_human(seconds: float = 9.0) -> Timeline:
    """Return a transfer whose receiver waited so long for its user, and then sent data for two seconds."""
    drawn = draw(Random(1), SKEWS, PATHS)
    first = next(at for at, way in enumerate(drawn.ways) if way.role == "receiver")
    asked = drawn.ways[first].sent
    for way in drawn.ways[first:]:
        way.sent, way.rx, way.tx = (each + seconds for each in (way.sent, way.rx, way.tx))
        way.began, way.commit = (None if each is None else each + seconds for each in (way.began, way.commit))
        way.heard = {role: each + seconds for role, each in way.heard.items()}
    drawn.logs = {role: transfers._log(role, drawn.ways, skew) for role, skew in SKEWS.items()}
    drawn.trace = [transfers._line(way) for way in drawn.ways]
    ended = drawn.ways[-1].sent
    for role, event in (
        ("receiver", span("input code", asked, asked + seconds - 0.001, -5.0, "user")),
        ("sender", span("command dispatch", -0.3, None, 5.0)),
        ("sender", span("pake1", -0.2, -0.1, 5.0, "crypto")),
        ("sender", span("tx file", ended + 0.1, ended + 2.1, 5.0)),
        ("receiver", span("rx file", ended + 0.1, ended + 2.1, -5.0)),
    ):
        drawn.logs[role].append(event)
        drawn.logs[role].sort(key=lambda each: float(each["start"]))
    return timeline_of(drawn)
