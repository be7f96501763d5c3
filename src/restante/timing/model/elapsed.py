"""Divides the time of a client's log among causes: each moment has one. Pure.

docs/timing/specification.md, "Elapsed time".
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from restante.timing.logs import Event
from restante.timing.model import phases
from restante.timing.model.exchanges import Exchange, day_of, to_us
from restante.timing.model.offsets import Offset, nearest_offset
from restante.timing.model.phases import server_phases, span_phase

PEER: Final = "peer"
CONNECT: Final = "connect"
PROGRAM: Final = "program"
NOT_RUNNING: Final = "not running"

_PRIORITIES: Final = {
    phase: number
    for number, phase in enumerate((phases.HUMAN, phases.TRANSFER, phases.TRANSIT_CONNECT, phases.CRYPTO))
}
"""Of spans that overlap, the first counts. They come before messages on their way."""

_ON_ITS_WAY: Final = len(_PRIORITIES)

CAUSES: Final = (
    phases.HUMAN,
    PEER,
    phases.TRANSFER,
    phases.TRANSIT_CONNECT,
    phases.CRYPTO,
    CONNECT,
    phases.NETWORK_OUT,
    phases.SERVER,
    phases.QUEUE,
    phases.COMMIT,
    phases.QUEUE_AND_COMMIT,
    phases.ANSWER,
    phases.NETWORK_IN,
    phases.ROUND_TRIP,
    PROGRAM,
)
"""What a moment can be attributed to. `round trip` is an exchange whose parts are not known."""


class Stretch(msgspec.Struct, frozen=True):
    """Time with one cause, in microseconds by the client's clock."""

    start: int
    stop: int
    cause: str


class _Activity(msgspec.Struct, frozen=True, order=True):
    priority: int
    began: int
    """When the command was sent, of which this is a part; `start` for others."""
    start: int
    stop: int
    cause: str


def divide_elapsed(
    events: Sequence[Event], exchanges: Sequence[Exchange], offsets: Mapping[int, Offset]
) -> list[Stretch]:
    """Return stretches without gaps, from the first event to the last; one at least, if there are events."""
    times = [time for event in events for time in _times(event)]
    if not times:
        return []
    begin, end = min(times), max(times)
    if begin == end:
        return [Stretch(begin, end, PROGRAM)]
    activities = list(_span_activities(events))
    for exchange in exchanges:
        activities.extend(_exchange_activities(exchange, nearest_offset(offsets, day_of(exchange.t0))))
    first_add = min((exchange.t0 for exchange in exchanges if exchange.command == "add"), default=None)
    arrivals: dict[int, str] = {}
    receipts: list[int] = []
    for event in events:
        cause = _cause_of_wait(event)
        t3, tx = to_us(event.start), to_us(event.server_tx)
        if cause is None or t3 is None:
            continue
        offset = nearest_offset(offsets, day_of(t3))
        sent = t3 if tx is None or offset is None else min(tx + offset.us, t3)
        activities.append(_Activity(_ON_ITS_WAY, sent, sent, t3, phases.NETWORK_IN))
        arrivals[sent] = cause
        if cause == PEER:
            receipts.append(t3)
    idle = PROGRAM if any(event.name == "ws_receive" for event in events) else CONNECT
    local_times = {time for event in events if event.name not in {"ws_send", "ws_receive"} for time in _times(event)}
    stretches = _divide(activities, local_times | {begin, end})
    first_receipt = min(receipts, default=None)
    return _join_stretches(
        Stretch(stretch.start, stretch.stop, _idle_cause(stretch, arrivals, first_add, first_receipt, idle))
        if stretch.cause == ""
        else stretch
        for stretch in stretches
    )


def _times(event: Event) -> Iterator[int]:
    for time in (to_us(event.start), to_us(event.stop)):
        if time is not None:
            yield time


def _cause_of_wait(event: Event) -> str | None:
    """Return what a client waited for if it did nothing else until it received this."""
    if event.name != "ws_receive":
        return None
    if event.command == "welcome":
        return CONNECT
    return PEER if event.command == "message" and event.own is False else None


def _span_activities(events: Iterable[Event]) -> Iterator[_Activity]:
    for event in events:
        phase, start, stop = span_phase(event), to_us(event.start), to_us(event.stop)
        if phase is not None and start is not None and stop is not None:
            yield _Activity(_PRIORITIES[phase], start, start, stop, phase)


def _exchange_activities(exchange: Exchange, offset: Offset | None) -> Iterator[_Activity]:
    t0, t3 = exchange.t0, exchange.t3
    if t3 is None:
        return
    if offset is None or exchange.rx is None or exchange.tx is None:
        yield _Activity(_ON_ITS_WAY, t0, t0, t3, phases.ROUND_TRIP)
        return
    line = exchange.server
    marks: list[tuple[str, int | None]] = [(phases.NETWORK_OUT, exchange.rx)]
    marks += [(phases.SERVER, exchange.tx)] if line is None else server_phases(line.began, line.commit, exchange.tx)
    before = t0
    for cause, server_time in marks:
        if server_time is not None:
            until = min(max(server_time + offset.us, before), t3)
            yield _Activity(_ON_ITS_WAY, t0, before, until, cause)
            before = until
    yield _Activity(_ON_ITS_WAY, t0, before, t3, phases.NETWORK_IN)


def _divide(activities: list[_Activity], moments: set[int]) -> Iterator[Stretch]:
    """Yield stretches between `moments`, and when an activity begins or ends; the cause of idle ones is ''."""
    waiting = sorted(activities, key=lambda activity: activity.start, reverse=True)
    begin, end = min(moments), max(moments)
    edges = moments.union(*((activity.start, activity.stop) for activity in activities))
    active: list[_Activity] = []
    for start, stop in pairwise(sorted(edge for edge in edges if begin <= edge <= end)):
        while waiting and waiting[-1].start <= start:
            heapq.heappush(active, waiting.pop())
        while active and active[0].stop <= start:
            heapq.heappop(active)
        yield Stretch(start, stop, active[0].cause if active else "")


def _idle_cause(
    stretch: Stretch, arrivals: Mapping[int, str], first_add: int | None, first_receipt: int | None, other_cause: str
) -> str:
    """Return the cause of a stretch in which the client did nothing that its log has.

    It waited for its peer if the stretch ends when a message of the peer comes, or if the client had added a message
    and had none of the peer's yet. `other_cause` is the cause of other stretches.
    """
    if stretch.stop in arrivals:
        return arrivals[stretch.stop]
    waits_for_peer = (
        first_add is not None
        and stretch.start >= first_add
        and (first_receipt is None or stretch.stop <= first_receipt)
    )
    return PEER if waits_for_peer else other_cause


def _join_stretches(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Join stretches of one cause that follow one another."""
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and joined[-1].cause == stretch.cause:
            joined[-1] = Stretch(joined[-1].start, stretch.stop, stretch.cause)
        else:
            joined.append(stretch)
    return joined


def cause_totals(stretches: Iterable[Stretch]) -> dict[str, int]:
    """Return the microseconds of each cause, in the order of CAUSES."""
    sums = dict.fromkeys(CAUSES, 0)
    for stretch in stretches:
        sums[stretch.cause] += stretch.stop - stretch.start
    return {cause: us for cause, us in sums.items() if us}


def causes_during(stretches: Sequence[Stretch], start: int, stop: int) -> dict[str, int]:
    """Return the microseconds of each cause in a time; NOT_RUNNING before the first stretch and after the last."""
    sums: dict[str, int] = {}
    covered = 0
    first_index = max(bisect_right(stretches, start, key=lambda stretch: stretch.start) - 1, 0)
    for index in range(first_index, len(stretches)):
        stretch = stretches[index]
        if stretch.start >= stop:
            break
        part = min(stretch.stop, stop) - max(stretch.start, start)
        if part > 0:
            sums[stretch.cause] = sums.get(stretch.cause, 0) + part
            covered += part
    if stop - start > covered:
        sums[NOT_RUNNING] = stop - start - covered
    return sums
