"""Timelines to show on pages: a transfer whose sender waits for its peer, and ones that lack something."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from restante.timing.model.timeline import ROLES, Client, Elapsed, Role, Span, Spent, Timeline
from support.timing.drawn import Path, timeline_of, waiting

PATHS = {"sender": Path(0.020, 0.020, 0.0), "receiver": Path(0.030, 0.030, 0.0)}
WAITED = waiting(2.4, human=0.09, paths=PATHS)
"""A transfer whose sender waits 2.3 s until the receiver starts, which then waits 90 ms for its user."""


def waited(*roles: Role) -> Timeline:
    """Return the transfer, or what the log of one client tells of it without a trace."""
    return timeline_of(WAITED, roles=roles or ROLES, traced=not roles)


def of_events(*names: str) -> Timeline:
    """Return what a log tells that has the sender's events of these names only."""
    events = [event for event in WAITED.logs["sender"] if event["name"] in names]
    drawn = dataclasses.replace(WAITED, logs={"sender": events})
    return timeline_of(drawn, roles=["sender"], traced=False)


def hostile(words: str) -> Timeline:
    """Return a timeline with words where only those of the lists can be."""
    whole = waited()
    commands = [replace(each, type=words, phase=words) for each in whole.commands]
    return replace(whole, commands=commands, spans=[replace(each, name=words) for each in whole.spans])


def lasting(durations: list[int]) -> Timeline:
    """Return a timeline with steps that take so long, in microseconds."""
    spans = [Span("sender", "import", None, at, at + each) for at, each in enumerate(durations)]
    end = max(durations) + len(durations)
    client = Client("sender", len(spans), 0, end, 0, 1, 0, False, [Spent("program", end)])
    elapsed = [Elapsed("sender", "program", 0, end)]
    return Timeline(1, 1_795_000_000.0, end, False, [client], [], [], spans, elapsed, [])
