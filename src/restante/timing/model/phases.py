"""Splits the time of each event of a client's log into phases. Pure.

docs/timing/specification.md, "Phases". The pipeline does the same in Spark (restante.pipeline.tables.timing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from restante.timing.logs import Event
from restante.timing.model.exchanges import Exchange, day_of, to_us
from restante.timing.model.offsets import Offset

NETWORK_OUT: Final = "network out"
SERVER: Final = "server"
QUEUE: Final = "queue"
COMMIT: Final = "commit"
QUEUE_AND_COMMIT: Final = "queue and commit"
ANSWER: Final = "answer"
NETWORK_IN: Final = "network in"
ROUND_TRIP: Final = "round trip"
TRANSIT_CONNECT: Final = "transit connect"
TRANSFER: Final = "transfer"
HUMAN: Final = "human"
CRYPTO: Final = "crypto"

EXCHANGE_PHASES: Final = (NETWORK_OUT, SERVER, QUEUE, COMMIT, QUEUE_AND_COMMIT, ANSWER, NETWORK_IN, ROUND_TRIP)
"""The phases of a command, in the order of time; `server` consists of the four after it, `round trip` of all."""

SPAN_PHASES: Final = {
    "transit connect": TRANSIT_CONNECT,
    **dict.fromkeys(("tx file", "get ack", "rx file"), TRANSFER),
}
"""Events with an end and no `waiting`, and their phases.

`tx file` ends when the system has the last byte. While the sender waits for the receiver's confirmation (`get ack`),
megabytes may still be in the buffers of sockets and relays.
"""

WAIT_PHASES: Final = {"user": HUMAN, "crypto": CRYPTO}
"""The phases of events with a `waiting`."""

ALL_PHASES: Final = tuple(dict.fromkeys((*EXCHANGE_PHASES, *SPAN_PHASES.values(), *WAIT_PHASES.values())))


class Phase(msgspec.Struct, frozen=True):
    """A phase of an event. Durations are in microseconds."""

    index: int
    """Index of the event in the log."""
    kind: str
    """Type of the command, "" if it is unknown or missing; message: a message of the other side; otherwise the name
    of the event."""
    phase: str
    us: int | None
    """None: not known."""
    error_us: int | None
    """Largest possible error of the duration, for phases that are between two clocks."""


def split_phases(
    events: Sequence[Event], exchanges: Iterable[Exchange], offsets: Mapping[int, Offset]
) -> Iterator[Phase]:
    """Yield the phases of a log's events: of commands, of the other side's messages, and of spans."""
    for exchange in exchanges:
        yield from _exchange_phases(exchange, offsets.get(day_of(exchange.t0)))
    for index, event in enumerate(events):
        start = to_us(event.start)
        if start is None:
            continue
        if event.name == "ws_receive" and event.command == "message" and event.own is False:
            offset = offsets.get(day_of(start))
            yield _network_in_phase(index, event.command, to_us(event.server_tx), start, offset)
        phase = span_phase(event)
        if phase is not None:
            yield Phase(index, event.name, phase, difference(to_us(event.stop), start), None)


def span_phase(event: Event) -> str | None:
    """Return the phase of an event whose duration is measured; None for other events."""
    return WAIT_PHASES.get(event.waiting or "", SPAN_PHASES.get(event.name))


def _exchange_phases(exchange: Exchange, offset: Offset | None) -> Iterator[Phase]:
    index, kind = exchange.index, exchange.command or ""
    # The client's clock is `offset` ahead of the server's.
    duration = difference(exchange.rx, exchange.t0)
    if duration is None or offset is None:
        yield Phase(index, kind, NETWORK_OUT, None, None)
    else:
        yield Phase(index, kind, NETWORK_OUT, duration + offset.us, offset.error_us)
    yield Phase(index, kind, SERVER, difference(exchange.tx, exchange.rx), None)
    if (server := exchange.server) is not None:
        before = server.rx
        for phase, until in server_phases(server.began, server.commit, server.tx):
            yield Phase(index, kind, phase, difference(until, before), None)
            before = until
    yield _network_in_phase(index, kind, exchange.tx, exchange.t3, offset)
    yield Phase(index, kind, ROUND_TRIP, difference(exchange.t3, exchange.t0), None)


def server_phases(began: int | None, commit: int | None, tx: int | None) -> list[tuple[str, int | None]]:
    """Return the phases of a command in a server with a trace, in the order of time, each with its end."""
    if commit is None:
        return [(QUEUE, tx)]
    if began is None:
        return [(QUEUE_AND_COMMIT, commit), (ANSWER, tx)]
    return [(QUEUE, began), (COMMIT, commit), (ANSWER, tx)]


def _network_in_phase(index: int, kind: str, tx: int | None, t3: int | None, offset: Offset | None) -> Phase:
    duration = difference(t3, tx)
    if duration is None or offset is None:
        return Phase(index, kind, NETWORK_IN, None, None)
    return Phase(index, kind, NETWORK_IN, duration - offset.us, offset.error_us)


def difference(after: int | None, before: int | None) -> int | None:
    """Return the time between two moments; None if one of them is not known."""
    return None if after is None or before is None else after - before
