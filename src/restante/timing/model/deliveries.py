"""Finds when each message of one client was received by the other one, from both logs. Pure.

docs/timing/specification.md, "Deliveries". The pipeline does the same in Spark (restante.pipeline.tables.deliveries).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from restante.timing.logs import Event
from restante.timing.model.exchanges import MAX_APART_US, Exchange, day_of, us
from restante.timing.model.offsets import Offset

END_TO_END: Final = "end to end"
"""The way of a message from one client to the other one."""


class MeasuredLog(NamedTuple):
    """A client's log, its commands with their answers, and the offset of its clock for each day."""

    events: Sequence[Event]
    exchanges: Sequence[Exchange]
    offsets: Mapping[int, Offset]


class Delivery(msgspec.Struct, frozen=True):
    """A message that the other client received. Times and durations are in microseconds; None: not known."""

    at: int
    """Index of the command in the author's log."""
    received_at: int
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


class Delivered(msgspec.Struct, frozen=True):
    """A message that the other client received, in a timeline. A duration that is None is not known."""

    role: Literal["sender", "receiver"]
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


class _Receipt(NamedTuple):
    at: int
    t3: int
    tx: int | None


def deliveries(author: MeasuredLog, peer: MeasuredLog) -> Iterator[Delivery]:
    """Yield the messages of one client that the other one received, in the order of the author's log."""
    receipts = _receipts(peer.events)
    for exchange in author.exchanges:
        offset = author.offsets.get(day_of(exchange.t0))
        event = author.events[exchange.at]
        rx = exchange.rx
        if exchange.command != "add" or rx is None or offset is None or abs(exchange.t0 - rx) > MAX_APART_US:
            continue
        found = receipts.get((event.id, event.phase, rx))
        if found is not None and event.phase is not None:
            yield _delivery(exchange, event.phase, rx, offset, found, peer.offsets.get(day_of(found.t3)))


def delivered(
    role: Literal["sender", "receiver"], author: MeasuredLog, peer: MeasuredLog, first: int
) -> Iterator[Delivered]:
    """Yield the deliveries of a timeline, in which the author's commands begin at the index `first`."""
    indices = {exchange.at: first + place for place, exchange in enumerate(author.exchanges)}
    for each in deliveries(author, peer):
        ways = each.network_out_us, each.at_server_us, each.network_in_us
        yield Delivered(role, each.phase, indices[each.at], *ways, each.us, each.error_us)


def _receipts(events: Sequence[Event]) -> dict[tuple[str | None, str | None, int], _Receipt]:
    """Return the first receipt of each message of the other side, by its id, phase and `server_rx`."""
    found: dict[tuple[str | None, str | None, int], _Receipt] = {}
    for at, event in enumerate(events):
        t3, rx = us(event.start), us(event.server_rx)
        if event.name != "ws_receive" or event.command != "message" or event.own is not False:
            continue
        if t3 is None or rx is None or event.id is None or event.phase is None or abs(t3 - rx) > MAX_APART_US:
            continue
        receipt = _Receipt(at, t3, us(event.server_tx))
        key = event.id, event.phase, rx
        found[key] = min(found.get(key, receipt), receipt, key=_in_order)
    return found


def _in_order(receipt: _Receipt) -> tuple[int, bool, int, int]:
    """Order receipts by time, then by server_tx, None first, then by their place in the log."""
    return receipt.t3, receipt.tx is not None, receipt.tx or 0, receipt.at


def _delivery(
    exchange: Exchange, phase: str, rx: int, offset: Offset, receipt: _Receipt, peer: Offset | None
) -> Delivery:
    network_out = rx - exchange.t0 + offset.us
    at_server = None if receipt.tx is None else receipt.tx - rx
    network_in = None if peer is None or receipt.tx is None else receipt.t3 - receipt.tx - peer.us
    whole = error = None
    if peer is not None and at_server is not None and network_in is not None:
        whole, error = network_out + at_server + network_in, offset.error_us + peer.error_us
    return Delivery(exchange.at, receipt.at, phase, rx, network_out, at_server, network_in, whole, error)
