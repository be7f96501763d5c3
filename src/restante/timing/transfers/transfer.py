"""Reads the logs of one transfer, and checks that they belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse
from restante.timing.model.exchanges import MICROSECONDS, us
from restante.timing.model.timeline import ROLES, ClientLog, Role, Timeline, role_of, side_of, timeline
from restante.timing.transfers.reading import Log, Say, read_log, read_trace, shown

MAX_SKEW_SECONDS: Final = 1e9
"""Seconds of the largest `--skew`, 32 years."""


def read_transfer(paths: Sequence[Path], trace: Path | None, skews: Mapping[Role, float], say: Say) -> Timeline:
    """Return the timeline of one log, or of the sender's and the receiver's. `skews` are in seconds.

    Raises Misuse if a file cannot be used, or if the logs do not belong together.
    """
    logs = [read_log(path, say) for path in paths]
    roles = _roles(logs, say)
    for role in skews:
        if role not in roles:
            raise Misuse(f"--skew {role}=…: no log of the {role} was given")
    times = [time for log in logs for event in log.events if (time := us(event.start)) is not None]
    ids = {event.id for log in logs for event in log.events if event.name == "ws_send" and event.id is not None}
    lines = None if trace is None else read_trace(trace, ids, min(times), max(times), say)
    clients = [
        ClientLog(role, log.events, round(skews[role] * MICROSECONDS) if role in skews else None)
        for role, log in zip(roles, logs, strict=True)
    ]
    found = timeline(clients, lines)
    if trace is not None and not lines:
        say(f"{shown(trace)} has none of the transfer's commands: it is of another server, or of another time")
    for client, log in zip(found.clients, logs, strict=True):
        if client.offset_us is None:
            say(f"{log} has no answer of the server, so its clock cannot be compared; its times are as written")
        elif client.moved_us:
            say(
                f"the clock of {log} moved against the server's by {client.moved_us / 1e6:,.6f} s or more:"
                f" the network's times may be wrong by {(client.error_us or 0) / 1e6:,.6f} s"
            )
    return found


def _roles(logs: Sequence[Log], say: Say) -> list[Role]:
    """Return the role of each log. Raises Misuse."""
    for log in logs:
        _require_one_side(log)
    if len(logs) == 1:
        role = role_of(logs[0].events)
        if role is None:
            say(f"{logs[0]} does not say whether it is the sender's or the receiver's: it is shown as the sender's")
        return [role or "sender"]
    first, second = logs
    sides = [side_of(log.events) for log in logs]
    if sides[0] is not None and sides[0] == sides[1]:
        raise Misuse(f"{first} and {second} are both logs of one client: give the log of the other one")
    if not _met(first, sides[1]) and not _met(second, sides[0]):
        raise Misuse(f"{first} and {second} are not of one transfer: neither client received a message of the other")
    roles = [role_of(log.events) for log in logs]
    if roles[0] == roles[1]:
        say(f"{first} and {second} do not say which one is the sender's: {first} is shown as the sender's")
    elif roles[0] == "receiver" or roles[1] == "sender":
        say(f"{first} is the receiver's log, and {second} the sender's")
        return ["receiver", "sender"]
    return list(ROLES)


def _require_one_side(log: Log) -> None:
    try:
        side_of(log.events)
    except ValueError as error:
        raise Misuse(f"{log} has {error}: give the log of one client") from error


def _met(log: Log, side: str | None) -> bool:
    """Return whether a client received a message of a side."""
    return side is not None and any(event.author == side for event in log.events if event.name == "ws_receive")
