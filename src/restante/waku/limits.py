"""Limits of the Waku node, for one peer, one address, and all peers. Each has its default and the reason for it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB

NonNegativeInt = Annotated[int, Meta(ge=0)]
NonNegativeRate = Annotated[float, Meta(ge=0, le=1e12)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits. A rate of 0 means no limit."""

    packet_bytes: Annotated[int, Meta(ge=MIB, le=16 * MIB - 1)] = 10 * MIB
    """Maximum size in bytes of a received packet, decompressed. status-go sends everything that it has in one packet,
    without a limit (waku/v1/peer.go:573-629), and accepts 10 MiB itself. devp2p allows at most 16 MiB."""

    envelope_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = MIB
    """Maximum size of an envelope in bytes: status-go's default. An envelope of more than 1 MiB - 4 bytes on the wire
    is always refused, because shipped nodes accept no packet that could contain it."""

    address_bytes: NonNegativeRate = 8.0 * MIB
    """Bytes per second that all peers of an address together may send, decompressed. The node reads the rest later.
    The whole fleet of Status sent less."""

    address_bytes_at_once: NonNegativeInt = 32 * MIB
    """Bytes that may arrive above that rate after a silence: three packets of the maximum size."""

    address_envelopes: NonNegativeRate = 4000.0
    """Envelopes per second that all peers of an address may send. Each takes about 50 µs, so the default is a fifth
    of a core. Every packet counts as one envelope, 40 bytes of a packet without envelopes as one more, a refused
    envelope as ten more, and a change of interest as a hundred."""

    address_envelopes_at_once: NonNegativeInt = 50_000
    """Envelopes that may arrive above that rate after a silence: a node that connects sends all its live
    envelopes."""

    address_connects: NonNegativeRate = 60.0
    """New connections per minute from one address. A handshake takes half a millisecond."""

    address_connects_at_once: NonNegativeInt = 200
    """New connections that may arrive above that rate after a silence: a fleet that was restarted."""

    known_bytes: Annotated[int, Meta(ge=MIB)] = 128 * MIB
    """Bytes of memory for the hashes of live envelopes: half a million of them."""

    pool_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    """Bytes of memory for live envelopes, which peers receive when they extend their interest."""

    unsaved_bytes: Annotated[int, Meta(ge=MIB)] = 32 * MIB
    """Bytes of envelopes that wait for the disk. Above it the node stops reading peers that send more."""

    unfinished_bytes: Annotated[int, Meta(ge=32 * MIB)] = 256 * MIB
    """Bytes of incomplete packets of all peers. Above it the peer with the largest one is disconnected. A packet of a
    megabyte takes a third of a second on a slow line, so hundreds of peers may be sending one."""

    owed_bytes: Annotated[int, Meta(ge=64 * KIB)] = 256 * KIB
    """Bytes that a peer may leave unread. Above it the node does not relay envelopes to the peer."""

    pages: NonNegativeRate = 20.0
    """Requests for history per second that are answered for one node, and for one address; the others wait. status-go
    runs three loops of requests at once, and each waits for its page before it requests the next. So a loop that
    reaches the limit continues at this rate. A refusal would end the loop: status-go tries each request only
    twice."""

    pages_at_once: NonNegativeInt = 500
    """Requests that are answered above that rate after a silence: a month of a busy network."""

    rows: NonNegativeRate = 100_000.0
    """Archived envelopes examined per second for one node, and for one address: a tenth of one core's capacity. After
    a page of 200,000 the next one waits two seconds. After four such pages at once, the maximum of an address, it
    waits eight, which is less than a requester's timeout."""

    rows_at_once: NonNegativeInt = 5_000_000
    """Envelopes that may be examined above that rate after a silence: a whole archive, several times."""
