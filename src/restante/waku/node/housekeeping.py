"""What an operator sets of a node: how many may come, and how long and how much is kept."""

from __future__ import annotations

import msgspec

from restante.waku.node.save_schedule import SAVE_INTERVAL


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """How the node keeps house."""

    max_peers: int = 1000
    max_peers_per_address: int = 50
    retention: int | None = None
    """Seconds that envelopes are kept."""
    retention_bytes: int | None = None
    """Bytes of envelopes that are kept."""
    save_interval: float = SAVE_INTERVAL
    """Seconds from one save to the next of a small batch whose senders do not wait."""
