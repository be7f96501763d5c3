"""Estimates how far a client's clock is ahead of the server's, with the error of the estimate. Pure.

docs/timing/specification.md, "Offset". The pipeline does the same in Spark (restante.pipeline.tables.timing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from restante.timing.logs import Event
from restante.timing.model.exchanges import US_PER_SECOND, Exchange, day_of, to_us

ROUNDING_US: Final = 2
"""Microseconds by which rounding may falsify a bound: two times are rounded to a microsecond, and a float of seconds
since 1970 has a resolution of a quarter."""


DRIFT_PPM: Final = 30
"""Microseconds by which two clocks may move against each other in a second, without being set: 15 for each clock
(RFC 5905, section 7.2, TOLERANCE)."""


class Offset(msgspec.Struct, frozen=True):
    """The offset of a client's clock on one UTC day."""

    us: int
    """How far the client's clock is ahead of the server's: subtract it from the client's time."""
    error_us: int
    """The offset differs from the true one by this at most, if no clock is set and the two do not drift apart by more
    than DRIFT_PPM."""
    moved_us: int = 0
    """The clocks moved against each other by at least this, as the exchanges show."""


class _ClockBounds(msgspec.Struct):
    """Bounds of the server's clock less the client's."""

    lowers: list[int] = []
    """From each frame that was received: it was received after it was sent."""
    uppers: list[int] = []
    """From each exchange: the server had the command after the client sent it."""
    exchange_lowers: list[int] = []
    """The lower bounds of the exchanges alone."""
    times: list[int] = []
    """When they were true, by the client's clock."""


def estimate_offsets(exchanges: Iterable[Exchange], events: Sequence[Event]) -> dict[int, Offset]:
    """Return the offset for each UTC day of the client's clock that has an exchange with its answer."""
    days: defaultdict[int, _ClockBounds] = defaultdict(_ClockBounds)
    for event in events:
        if event.name == "ws_receive" and event.server_tx is not None:
            t3, tx = to_us(event.start), to_us(event.server_tx)
            if t3 is not None and tx is not None:
                bounds = days[day_of(t3)]
                bounds.lowers.append(tx - t3)
                bounds.times.append(t3)
    for exchange in exchanges:
        if exchange.tx is not None and exchange.t3 is not None:
            bounds = days[day_of(exchange.t0)]
            bounds.uppers.append((exchange.tx if exchange.rx is None else exchange.rx) - exchange.t0)
            bounds.exchange_lowers.append(exchange.tx - exchange.t3)
            bounds.times += (exchange.t0, exchange.t3)
    return {day: _estimate(bounds) for day, bounds in days.items() if bounds.uppers}


def _estimate(bounds: _ClockBounds) -> Offset:
    lower, upper = max(bounds.lowers + bounds.exchange_lowers), min(bounds.uppers)
    middle = (lower + upper) // 2
    duration = max(bounds.times) - min(bounds.times)
    margin = ROUNDING_US - (-duration * DRIFT_PPM // US_PER_SECOND)  # rounded up
    if lower <= upper + 2 * ROUNDING_US:
        return Offset(-middle, max(upper - middle, middle - lower) + margin)
    # No offset satisfies all exchanges. The error covers what each exchange allows.
    error = max(lower - middle, max(bounds.uppers) - middle, middle - min(bounds.exchange_lowers))
    return Offset(-middle, error + margin, moved_us=lower - upper)


def nearest_offset(offsets: Mapping[int, Offset], day: int) -> Offset | None:
    """Return the offset of a day or, if it has none, of the nearest one that has."""
    if day in offsets or not offsets:
        return offsets.get(day)
    return offsets[min(offsets, key=lambda other_day: (abs(other_day - day), other_day))]


def best_offset(offsets: Collection[Offset]) -> Offset | None:
    """Return the offset with the smallest error. If others contradict it, its error is widened to cover them."""
    if not offsets:
        return None
    best = min(offsets, key=lambda offset: offset.error_us)
    apart = max(offset.us - offset.error_us for offset in offsets) - min(
        offset.us + offset.error_us for offset in offsets
    )
    moved = max(apart, *(offset.moved_us for offset in offsets), 0)
    error = max(abs(offset.us - best.us) + offset.error_us for offset in offsets) if moved else best.error_us
    return Offset(best.us, error, moved)
