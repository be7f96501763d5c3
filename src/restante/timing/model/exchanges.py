"""Pairs each command of a client's log with its answer, and with its line in the server's trace. Pure.

docs/timing/specification.md, "Exchanges". The pipeline does the same in Spark (restante.pipeline.tables.timing).
Times become whole microseconds since 1970 here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from restante.timing.logs import Event, TraceLine

US_PER_SECOND: Final = 1_000_000
"""Microseconds of a second."""

US_PER_DAY: Final = 86_400 * US_PER_SECOND

MAX_APART_US: Final = US_PER_DAY
"""Microseconds by which an answer, or the server's clock, may differ from the sending."""

MAX_EPOCH_SECONDS: Final = 1e11
"""Seconds since 1970 that no clock shows (the year 5138), positive or negative."""

STAMP_TOLERANCE_SECONDS: Final = 1.5e-6
"""Seconds by which a server_tx may differ from the trace's: messages carry it in whole microseconds."""


class ServerTimes(msgspec.Struct, frozen=True):
    """What the trace has of a command, by the server's clock."""

    rx: int | None
    began: int | None
    """When its commit began. None: it changed nothing, or the trace does not say it."""
    commit: int | None
    """When its change was on disk. None: it changed nothing."""
    tx: int | None


class Exchange(msgspec.Struct, frozen=True):
    """A command and its answer. `t0` and `t3` are by the client's clock, `rx` and `tx` by the server's."""

    index: int
    """Index of the command in the log."""
    command: str | None
    phase: str | None
    """Phase of the message, for `add`."""
    t0: int
    """When the client sent the command."""
    rx: int | None
    """When the server received it."""
    tx: int | None
    """When the server answered it."""
    t3: int | None
    """When the client received the answer."""
    server: ServerTimes | None
    """The line of the trace. None: the trace has no line for it, or was not given."""


def to_us(seconds: float | None) -> int | None:
    """Return a time in microseconds, rounded; None if it is not a time."""
    if seconds is None or not abs(seconds) < MAX_EPOCH_SECONDS:
        return None
    return math.floor(seconds * US_PER_SECOND + 0.5)


def day_of(time: int) -> int:
    """Return the UTC day of a time, in days since 1970."""
    return time // US_PER_DAY


def pair_exchanges(events: Sequence[Event], lines: Mapping[str, Sequence[TraceLine]]) -> list[Exchange]:
    """Return the commands of a log in its order. `lines` are those of the trace, by id."""
    replies: dict[str, list[Event]] = {}
    senders: dict[tuple[str, int], int] = {}
    for event in events:
        start = to_us(event.start)
        if event.id is None or start is None:
            continue
        if event.name == "ws_receive" and (event.command == "ack" or (event.command == "message" and event.own)):
            replies.setdefault(event.id, []).append(event)
        elif event.name == "ws_send":
            key = (event.id, day_of(start))
            senders[key] = senders.get(key, 0) + 1
    exchanges = []
    for index, event in enumerate(events):
        start = to_us(event.start)
        if event.name == "ws_send" and start is not None:
            exchange = Exchange(index, event.command, event.phase, start, None, None, None, None)
            if event.id is not None and senders[event.id, day_of(start)] == 1:
                exchange = _pair_exchange(index, event, start, replies.get(event.id, ()), lines.get(event.id, ()))
            exchanges.append(exchange)
    return exchanges


def _pair_exchange(
    index: int, event: Event, t0: int, replies: Iterable[Event], lines: Iterable[TraceLine]
) -> Exchange:
    acks, echoes, stamps = [], [], []
    for reply in replies:
        t3 = to_us(reply.start)
        if t3 is None or not t0 <= t3 <= t0 + MAX_APART_US:
            continue
        if reply.command == "ack":
            acks.append((t3, reply.server_tx))
        else:
            echoes.append((t3, reply.server_tx))
            if reply.server_rx is not None:
                stamps.append(reply.server_rx)
    rx = min(stamps, default=None)
    answer = min(acks or echoes, key=_reply_order, default=None)
    t3, tx = (None, None) if answer is None else answer
    line = min((line for line in lines if _line_matches(line, t0, rx, tx)), key=_line_order, default=None)
    server = None
    if line is not None:
        rx = line.server_rx if rx is None else rx
        server = ServerTimes(
            to_us(line.server_rx), to_us(line.commit_began), to_us(line.commit), to_us(line.server_tx)
        )
    return Exchange(index, event.command, event.phase, t0, to_us(rx), to_us(tx), t3, server)


def _reply_order(reply: tuple[int, float | None]) -> tuple[int, float]:
    """Order replies by time, then by server_tx, None first."""
    t3, tx = reply
    return t3, -math.inf if tx is None else tx


def _line_matches(line: TraceLine, t0: int, rx: float | None, tx: float | None) -> bool:
    if not abs(line.server_rx * US_PER_SECOND - t0) <= MAX_APART_US:
        return False
    if rx is not None:
        return line.server_rx == rx
    return tx is not None and line.server_tx is not None and abs(line.server_tx - tx) < STAMP_TOLERANCE_SECONDS


def _line_order(line: TraceLine) -> tuple[float, ...]:
    """Order lines by their times, None first."""
    return tuple(
        -math.inf if time is None else time
        for time in (line.server_rx, line.commit_began, line.commit, line.server_tx)
    )
