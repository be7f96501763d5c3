"""The timeline of a transfer: what both clients and the server did, by the server's clock. Pure.

`Timeline` is what `restante timing render --json` prints, and what the other outputs are made from. It has times,
types of messages, phases and names of events from the lists in restante.timing.logs, and nothing else of a log: no
ids, sides, names, bodies or paths.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from restante.timing.logs import Event, TraceLine
from restante.timing.model import elapsed, phases
from restante.timing.model.exchanges import MAX_APART_US, US_PER_SECOND, Exchange, day_of, pair_exchanges, to_us
from restante.timing.model.offsets import Offset, best_offset, estimate_offsets
from restante.timing.model.phases import Phase, span_phase

VERSION: Final = 1
"""Version of the JSON. A new key does not change it."""

Role = Literal["sender", "receiver"]
Author = Literal["sender", "receiver", "server", "peer"]
"""Who made a message; `peer` is a client whose log was not given."""

ROLES: Final[tuple[Role, Role]] = ("sender", "receiver")


class RoleSign(NamedTuple):
    """Events that show the role of a log's client."""

    role: Role
    names: frozenset[str]
    command: str | None = None
    """Type of the command, if they are commands."""


ROLE_SIGNS: Final = (
    RoleSign("sender", frozenset(("tx file", "get ack"))),
    RoleSign("receiver", frozenset(("rx file", "unpack zip", "send ack", "permission", "print"))),
    RoleSign("sender", frozenset(("ws_send",)), "allocate"),
    RoleSign("receiver", frozenset(("input code",))),
)
"""If a log has several, the first in this order counts."""

END_TO_END: Final = "end to end"
"""The way of a message from one client to the other one."""


class CauseTime(msgspec.Struct, frozen=True):
    """The part of a client's time that has one cause."""

    cause: str
    us: int
    peer: dict[str, int] | None = None
    """For the cause `peer`, if the other log was given: what the other client did meanwhile, and for how many
    microseconds."""


class TimelineClient(msgspec.Struct, frozen=True):
    """A client whose log was given."""

    role: Role
    events: int
    start_us: int
    """When its log begins."""
    stop_us: int
    """When its log ends."""
    offset_us: int | None
    """How far its clock was ahead of the server's. None: not known, and its times are by its own clock."""
    error_us: int | None
    """How far the offset may be wrong."""
    moved_us: int
    """By how much its clock moved against the server's, at least; 0 if nothing shows it."""
    given: bool
    """Whether the user gave the offset."""
    spent: list[CauseTime]
    """Adds up to the time from its start to its stop."""


class Elapsed(msgspec.Struct, frozen=True):
    """Time of a client that has one cause."""

    role: Role
    cause: str
    start_us: int
    stop_us: int


class TimelineCommand(msgspec.Struct, frozen=True):
    """A command of a client, on its way to the server and back. A time that is None is not known."""

    role: Role
    type: str | None
    """Its type; "" if it is unknown."""
    phase: str | None
    """Phase of the message, for `add`."""
    sent_us: int
    received_us: int | None
    """When the server received it."""
    commit_began_us: int | None
    commit_us: int | None
    """When its change was on disk."""
    answered_us: int | None
    """When the server answered it."""
    answer_received_us: int | None
    """When the client received the answer."""


class TimelineFrame(msgspec.Struct, frozen=True):
    """A frame from the server to a client that is not the answer to its command: a response, or a message."""

    role: Role
    """Who received it."""
    type: str | None
    phase: str | None
    author: Author
    """Who added the message; `server` for a response."""
    command: int | None
    """Index of the `add` in `commands`, for a message. None: the author's log does not have it, or was not given."""
    sent_us: int | None
    """When the server sent it."""
    received_us: int


class TimelineSpan(msgspec.Struct, frozen=True):
    """Something that a client did that has a duration, or a moment."""

    role: Role
    name: str
    phase: str | None
    """Its phase. None: it is not measured."""
    start_us: int
    stop_us: int | None
    """None: it is a moment, or it did not end."""


class Delay(msgspec.Struct, frozen=True):
    """All durations of one phase at one client, in microseconds."""

    role: Role
    phase: str
    count: int
    """Durations that are known."""
    unknown: int
    sum_us: int
    median_us: int | None
    max_us: int | None
    error_us: int | None
    """Largest possible error of each. None: it is between times of one clock."""


class TimelineDelivery(msgspec.Struct, frozen=True):
    """A message that the other client received, in a timeline. A duration that is None is not known."""

    role: Role
    """Who sent it."""
    phase: str
    command: int
    """Index of the `add` in the timeline's commands."""
    network_out_us: int
    at_server_us: int | None
    network_in_us: int | None
    end_to_end_us: int | None
    """From the sending to the receipt: the three together."""
    error_us: int | None
    """How far `end_to_end_us` may be wrong."""


class Timeline(msgspec.Struct, frozen=True):
    """A transfer. Each `…_us` of a time is in microseconds since `began`, by the server's clock."""

    version: int
    began: float
    """Seconds since 1970."""
    duration_us: int
    traced: bool
    """Whether a trace of the server was given."""
    clients: list[TimelineClient]
    commands: list[TimelineCommand]
    frames: list[TimelineFrame]
    spans: list[TimelineSpan]
    elapsed: list[Elapsed]
    delays: list[Delay]
    deliveries: list[TimelineDelivery] = []
    """Messages from client to client. Empty if one log was given."""


class ClientLog(msgspec.Struct):
    """What a timeline is made from: the events of a client, and the offset of its clock if the user knows it."""

    role: Role
    events: Sequence[Event]
    skew_us: int | None = None


def side_of(events: Iterable[Event]) -> str | None:
    """Return the side of the client that wrote a log. None: it never connected.

    Raises ValueError if there are several.
    """
    sides = {event.side for event in events if event.side is not None}
    if len(sides) > 1:
        raise ValueError(f"{len(sides)} sides")
    return next(iter(sides), None)


def role_of(events: Iterable[Event]) -> Role | None:
    """Return the role of the client that wrote a log, as far as its events show it."""
    logged_roles = {event.role for event in events} - {None}
    for role in ROLES:
        if logged_roles == {role}:
            return role
    roles = (
        sign.role
        for sign in ROLE_SIGNS
        if any(event.name in sign.names and sign.command in {None, event.command} for event in events)
    )
    return next(roles, None)


def build_timeline(logs: Sequence[ClientLog], trace: Mapping[str, Sequence[TraceLine]] | None) -> Timeline:
    """Return the timeline of one or two logs. The logs must have events."""
    lanes = [_Lane(log, {} if trace is None else trace) for log in logs]
    begin = min(lane.on_server(lane.stretches[0].start) for lane in lanes)
    for lane in lanes:
        lane.begin = begin
    commands: list[TimelineCommand] = []
    deliveries: list[TimelineDelivery] = []
    indices: _CommandIndices = {}
    for lane in lanes:
        for peer in (peer for peer in lanes if peer is not lane):
            deliveries.extend(timeline_deliveries(lane.role, lane.measured, peer.measured, len(commands)))
        for exchange in lane.exchanges:
            if exchange.command == "add":
                key = (lane.side, exchange.phase, lane.events[exchange.index].id)
                indices.setdefault(key, []).append((len(commands), exchange))
            commands.append(_timeline_command(lane, exchange))
    sides: dict[str | None, Author] = {lane.side: lane.role for lane in lanes if lane.side is not None}
    return Timeline(
        VERSION,
        begin / US_PER_SECOND,
        max(lane.stop_us for lane in lanes),
        trace is not None,
        [_timeline_client(lane, next((peer for peer in lanes if peer is not lane), None)) for lane in lanes],
        commands,
        [
            _timeline_frame(lane, event, sides, indices)
            for lane in lanes
            for event in lane.events
            if event.name == "ws_receive" and event.command != "ack"
        ],
        [
            _timeline_span(lane, event)
            for lane in lanes
            for event in lane.events
            if event.name not in {"ws_send", "ws_receive"}
        ],
        [
            Elapsed(lane.role, stretch.cause, lane.us(stretch.start), lane.us(stretch.stop))
            for lane in lanes
            for stretch in lane.stretches
        ],
        [delay for lane in lanes for delay in _phase_delays(lane, deliveries)],
        deliveries,
    )


_CommandIndices = dict[tuple[str | None, str | None, str | None], list[tuple[int, Exchange]]]
"""The commands `add` with their indices in the timeline, by side, phase and id."""


class _Lane:
    """A log, and what is computed from it and the trace alone."""

    def __init__(self, log: ClientLog, trace: Mapping[str, Sequence[TraceLine]]) -> None:
        self.role, self.events, self.skew_us = log.role, log.events, log.skew_us
        self.side = side_of(log.events)
        self.exchanges = pair_exchanges(log.events, trace)
        self.offsets = estimate_offsets(self.exchanges, log.events)
        if log.skew_us is not None:
            days = {day_of(time) for event in log.events if (time := to_us(event.start)) is not None}
            self.offsets = dict.fromkeys(days, Offset(log.skew_us, 0))
        self.measured = MeasuredLog(log.events, self.exchanges, self.offsets)
        self.stretches = elapsed.divide_elapsed(log.events, self.exchanges, self.offsets)
        self.offset = best_offset(self.offsets.values())
        """One offset for all times of the log, so that they add up over midnight. None: not known."""
        self.begin = 0
        """When the timeline begins, by the server's clock. It is known when all lanes are made."""

    def on_server(self, time: int) -> int:
        """Return a time of the client's clock by the server's clock."""
        return time if self.offset is None else time - self.offset.us

    def us(self, time: int) -> int:
        """Return a time of the client's clock in the timeline."""
        return self.on_server(time) - self.begin

    def server_us(self, time: int | None) -> int | None:
        """Return a time of the server's clock in the timeline."""
        return None if time is None else time - self.begin

    @property
    def stop_us(self) -> int:
        """Return when the log ends, in the timeline."""
        return self.us(self.stretches[-1].stop)


def _timeline_client(lane: _Lane, peer: _Lane | None) -> TimelineClient:
    spent = []
    for cause, duration_us in elapsed.cause_totals(lane.stretches).items():
        peer_times: Counter[str] | None = None
        if cause == elapsed.PEER and lane.offset is not None and peer is not None and peer.offset is not None:
            peer_times = Counter()
            for stretch in lane.stretches:
                if stretch.cause == cause:
                    start, stop = (lane.on_server(time) + peer.offset.us for time in (stretch.start, stretch.stop))
                    peer_times.update(elapsed.causes_during(peer.stretches, start, stop))
        spent.append(CauseTime(cause, duration_us, peer_times))
    return TimelineClient(
        lane.role,
        len(lane.events),
        lane.us(lane.stretches[0].start),
        lane.stop_us,
        None if lane.offset is None else lane.offset.us,
        None if lane.offset is None else lane.offset.error_us,
        0 if lane.offset is None else lane.offset.moved_us,
        lane.skew_us is not None,
        spent,
    )


def _timeline_command(lane: _Lane, exchange: Exchange) -> TimelineCommand:
    server = exchange.server
    return TimelineCommand(
        lane.role,
        exchange.command,
        exchange.phase,
        lane.us(exchange.t0),
        lane.server_us(exchange.rx),
        lane.server_us(None if server is None else server.began),
        lane.server_us(None if server is None else server.commit),
        lane.server_us(exchange.tx),
        None if exchange.t3 is None else lane.us(exchange.t3),
    )


def _timeline_frame(
    lane: _Lane, event: Event, sides: Mapping[str | None, Author], indices: _CommandIndices
) -> TimelineFrame:
    author: Author = "server"
    command = None
    if event.command == "message":
        author = sides.get(event.author, "peer")
        candidates = indices.get((event.author, event.phase, event.id), [])
        rx = to_us(event.server_rx)
        same = [candidate for candidate in candidates if candidate[1].rx == rx] or candidates
        command = same[0][0] if len(same) == 1 else None
    sent, received = lane.server_us(to_us(event.server_tx)), lane.us(to_us(event.start) or 0)
    return TimelineFrame(lane.role, event.command, event.phase, author, command, sent, received)


def _timeline_span(lane: _Lane, event: Event) -> TimelineSpan:
    start, stop = lane.us(to_us(event.start) or 0), to_us(event.stop)
    return TimelineSpan(lane.role, event.name, span_phase(event), start, None if stop is None else lane.us(stop))


def _phase_delays(lane: _Lane, deliveries: Iterable[TimelineDelivery]) -> list[Delay]:
    by_phase: dict[str, list[Phase]] = {}
    for phase in phases.split_phases(lane.events, lane.exchanges, lane.offsets):
        by_phase.setdefault(phase.phase, []).append(phase)
    end_to_end = [
        Phase(delivery.command, "add", END_TO_END, delivery.end_to_end_us, delivery.error_us)
        for delivery in deliveries
        if delivery.role == lane.role
    ]
    if end_to_end:
        by_phase[END_TO_END] = end_to_end
    delays = []
    for name in (*phases.ALL_PHASES, END_TO_END):
        if name in by_phase:
            durations = sorted(phase.us for phase in by_phase[name] if phase.us is not None)
            delays.append(
                Delay(
                    lane.role,
                    name,
                    len(durations),
                    len(by_phase[name]) - len(durations),
                    sum(durations),
                    round(statistics.median(durations)) if durations else None,
                    durations[-1] if durations else None,
                    max((phase.error_us for phase in by_phase[name] if phase.error_us is not None), default=None),
                )
            )
    return delays


# ── deliveries ────────────────────────────────────────────────────────────────────────────────────
# When each message of one client was received by the other one, from both logs: docs/timing/specification.md,
# "Deliveries". The pipeline does the same in Spark (restante.pipeline.tables.deliveries).


class MeasuredLog(NamedTuple):
    """A client's log, its commands with their answers, and the offset of its clock for each day."""

    events: Sequence[Event]
    exchanges: Sequence[Exchange]
    offsets: Mapping[int, Offset]


class MessageDelivery(msgspec.Struct, frozen=True):
    """A message that the other client received. Times and durations are in microseconds; None: not known."""

    index: int
    """Index of the command in the author's log."""
    peer_index: int
    """Index of the frame in the peer's log."""
    phase: str
    """Phase of the message."""
    rx: int
    """When the server received it, by the server's clock."""
    network_out_us: int
    at_server_us: int | None
    """How long the server had it until it sent it to the peer."""
    network_in_us: int | None
    us: int | None
    """From the sending to the receipt."""
    error_us: int | None
    """Largest possible error of `us`."""


class _Receipt(NamedTuple):
    event_index: int
    t3: int
    tx: int | None


def match_deliveries(author: MeasuredLog, peer: MeasuredLog) -> Iterator[MessageDelivery]:
    """Yield the messages of one client that the other one received, in the order of the author's log."""
    receipts = _receipts(peer.events)
    for exchange in author.exchanges:
        offset = author.offsets.get(day_of(exchange.t0))
        event = author.events[exchange.index]
        rx = exchange.rx
        if exchange.command != "add" or rx is None or offset is None or abs(exchange.t0 - rx) > MAX_APART_US:
            continue
        receipt = receipts.get((event.id, event.phase, rx))
        if receipt is not None and event.phase is not None:
            yield _message_delivery(exchange, event.phase, rx, offset, receipt, peer.offsets.get(day_of(receipt.t3)))


def timeline_deliveries(
    role: Role, author: MeasuredLog, peer: MeasuredLog, first_index: int
) -> Iterator[TimelineDelivery]:
    """Yield the deliveries of a timeline, in which the author's commands begin at `first_index`."""
    indices = {exchange.index: first_index + number for number, exchange in enumerate(author.exchanges)}
    for delivery in match_deliveries(author, peer):
        durations = delivery.network_out_us, delivery.at_server_us, delivery.network_in_us, delivery.us
        yield TimelineDelivery(role, delivery.phase, indices[delivery.index], *durations, delivery.error_us)


def _receipts(events: Sequence[Event]) -> dict[tuple[str | None, str | None, int], _Receipt]:
    """Return the first receipt of each message of the other side, by its id, phase and `server_rx`."""
    receipts: dict[tuple[str | None, str | None, int], _Receipt] = {}
    for index, event in enumerate(events):
        t3, rx = to_us(event.start), to_us(event.server_rx)
        if event.name != "ws_receive" or event.command != "message" or event.own is not False:
            continue
        if t3 is None or rx is None or event.id is None or event.phase is None or abs(t3 - rx) > MAX_APART_US:
            continue
        receipt = _Receipt(index, t3, to_us(event.server_tx))
        key = event.id, event.phase, rx
        receipts[key] = min(receipts.get(key, receipt), receipt, key=_receipt_order)
    return receipts


def _receipt_order(receipt: _Receipt) -> tuple[int, bool, int, int]:
    """Order receipts by time, then by server_tx, None first, then by their position in the log."""
    return receipt.t3, receipt.tx is not None, receipt.tx or 0, receipt.event_index


def _message_delivery(
    exchange: Exchange, phase: str, rx: int, offset: Offset, receipt: _Receipt, peer: Offset | None
) -> MessageDelivery:
    network_out = rx - exchange.t0 + offset.us
    at_server = None if receipt.tx is None else receipt.tx - rx
    network_in = None if peer is None or receipt.tx is None else receipt.t3 - receipt.tx - peer.us
    duration = error = None
    if peer is not None and at_server is not None and network_in is not None:
        duration, error = network_out + at_server + network_in, offset.error_us + peer.error_us
    return MessageDelivery(
        exchange.index, receipt.event_index, phase, rx, network_out, at_server, network_in, duration, error
    )
