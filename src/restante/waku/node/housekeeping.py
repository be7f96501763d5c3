"""What an operator sets for a node: how many peers it accepts, and how long and how much it keeps."""

from __future__ import annotations

import msgspec

from restante.waku.node.save_schedule import SAVE_INTERVAL


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on connections and on the archive."""

    max_peers: int = 1000
    max_peers_per_address: int = 50
    max_handshakes: int = 256
    """Connections beyond `max_peers`, for those that are in their handshake when the node is full. When these are
    taken, too, a new one displaces another (`HalfOpen.oldest`). A handshake takes half a second on a slow line: 256
    last as long if 500 connections a second come from as many networks."""
    retention: int | None = None
    """Seconds for which envelopes are kept. None: for ever."""
    retention_bytes: int | None = None
    """Bytes of envelopes that are kept. None: no limit."""
    save_interval: float = SAVE_INTERVAL
    """Seconds between two saves of small batches whose senders do not wait."""
