"""Pure: how fast pairs may pass on bytes (bytes/s of a pair, of an address, of all), shared fairly."""

from __future__ import annotations

import msgspec


class Rates(msgspec.Struct, frozen=True):
    """Maximum bytes a second, in both directions together. 0: no limit."""

    pair: float = 0
    address: float = 0
    """Of all pairs of which a side has this address."""
    total: float = 0
