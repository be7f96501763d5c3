"""Usage records of the transit relay: what it stores about pairs, and about connections that never got a partner.

Times are seconds since 1970 (UTC). Durations are seconds and never negative, except in records that another relay
wrote.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

TransferResult = Literal["happy", "lonely", "redundant", "errory", "impatient", "empty"]
"""How a pair or a connection ended, by the names of the reference (server_state.py of
magic-wormhole-transit-relay 0.5.0). A pair is happy whatever it relayed, unless the relay could not
connect its sides."""

RESULTS: Final[tuple[TransferResult, ...]] = get_args(TransferResult)

MEANINGS: Final[dict[TransferResult, str]] = {
    "happy": "both sides came, and the relay connected them",
    "lonely": "the other side never came",
    "redundant": "a spare connection, closed because the sides were connected through others",
    "errory": "its request was malformed, a limit refused it, or the relay could not connect its sides",
    "impatient": "it sent bytes before the other side came",
    "empty": "it ended before it sent a request",
}
"""What each result means, for people."""


class TransferRecord(msgspec.Struct, frozen=True, gc=False):
    """One row per pair, and one per connection that ended without a partner."""

    started: float
    """When the first side connected; floored to a multiple of the blur."""
    waiting_time: float | None
    """From the first side to the second; None when there was no second."""
    total_time: float
    """From the first side's connection to the end of the pair, or of the connection."""
    total_bytes: int
    """Bytes relayed in both directions. With a blur they are rounded up: to a multiple of 10 kB below 1 MB, of 1 MB
    below 1 GB, else of 100 MB (usage.py, blur_size, 0.5.0)."""
    result: TransferResult
    address_id: str | None = None
    """A hash of the first side's address whose key changes each day (UTC). None: the address is not known."""
    blur_time: float | None = None
    """Seconds that `started` was floored to a multiple of; 0: it was not floored. None: not known, as in records of
    other relays."""


class CurrentTransfers(msgspec.Struct, frozen=True, gc=False):
    """The state of the relay: one row, rewritten with each save."""

    rebooted: float
    """When the relay started."""
    updated: float
    connected: int
    """Connections that have a partner: two for each pair (transit_server.py:172, 0.5.0)."""
    waiting: int
    """Tokens for which a connection waits. Several connections for one token count once (transit_server.py:173)."""
    incomplete_bytes: int
    """Bytes that the current pairs have relayed so far."""
