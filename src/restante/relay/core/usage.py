"""Makes usage records of pairs and connections, as the reference does (usage.py, magic-wormhole-transit-relay 0.5.0).

One difference: durations are differences of a clock that is never set back, so none is negative.
"""

from __future__ import annotations

from typing import Final

from restante.common.transfer_records import TransferRecord, TransferResult

_BLURRED_TO: Final = ((1_000_000, 10_000), (1_000_000_000, 1_000_000))
"""Pairs of a size and the multiple to which smaller sizes are rounded up (usage.py:236)."""

MAX_BLUR_BYTES: Final = 100_000_000
"""The multiple to which all other sizes are rounded up."""


def blurred_size(size: int) -> int:
    """Return a number of bytes rounded up, more coarsely the larger it is."""
    multiple = next((multiple for limit, multiple in _BLURRED_TO if size < limit), MAX_BLUR_BYTES)
    return -(-size // multiple) * multiple


def transfer_record(
    result: TransferResult,
    *,
    started: float,
    waiting_time: float | None,
    total_time: float,
    total_bytes: int,
    address_id: str | None,
    blur: int,
) -> TransferRecord:
    """Return a usage record. If `blur` is not 0, its start is rounded down to a multiple of `blur` seconds."""
    if blur:
        started, total_bytes = blur * (started // blur), blurred_size(total_bytes)
    return TransferRecord(started, waiting_time, total_time, total_bytes, result, address_id, float(blur))
