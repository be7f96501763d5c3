"""Limits of the Waku node: how much one peer and all may have. Each has its default, and the reason for it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB

NonNegativeInt = Annotated[int, Meta(ge=0)]
NonNegativeRate = Annotated[float, Meta(ge=0, le=1e12)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is allowed. Of rates, 0 is no limit."""

    packet_bytes: Annotated[int, Meta(ge=MIB, le=16 * MIB - 1)] = 10 * MIB
    """Bytes of a packet that is taken, inflated. status-go sends all it has in one, without a cap
    (waku/v1/peer.go:573-629), and takes 10 MiB itself; devp2p ends at 16."""

    envelope_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = MIB
    """Bytes of an envelope: the most that status-go takes by default. One of more than 1 MiB - 4 as it goes over the
    wire is refused in any case: shipped nodes take no packet that could bring it to them."""

    address_bytes: NonNegativeRate = 8.0 * MIB
    """Bytes a second that all peers of an address may send, together and inflated; more wait in the network. All of
    Status' fleet sent less."""

    address_bytes_at_once: NonNegativeInt = 32 * MIB
    """Bytes that may come faster than that, after a silence: three packets of the largest size."""

    address_envelopes: NonNegativeRate = 4000.0
    """Envelopes a second that all peers of an address may send. Each takes some 50 µs, so this is a fifth of a core.
    Every packet counts as one, too; what is refused as ten, and a change of mind as a hundred."""

    address_envelopes_at_once: NonNegativeInt = 50_000
    """Envelopes that may come faster than that, after a silence: a node that meets us sends all that lives."""

    address_connects: NonNegativeRate = 60.0
    """New connections a minute from one address: a handshake takes half a millisecond."""

    address_connects_at_once: NonNegativeInt = 200
    """New connections that may come faster than that, after a silence: a fleet that was restarted."""

    known_bytes: Annotated[int, Meta(ge=MIB)] = 128 * MIB
    """Bytes of memory for the hashes of envelopes that live: half a million."""

    pool_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    """Bytes of memory for envelopes that live, for those who come to want them."""

    unsaved_bytes: Annotated[int, Meta(ge=MIB)] = 32 * MIB
    """Bytes of envelopes that wait for the disk; beyond that, those who bring more are left unread."""

    unfinished_bytes: Annotated[int, Meta(ge=32 * MIB)] = 256 * MIB
    """Bytes of packets of all peers that are not complete yet; beyond that, who has sent most of one is disconnected.
    A packet of a megabyte is a third of a second on a slow line: so hundreds of peers may be in one."""

    owed_bytes: Annotated[int, Meta(ge=64 * KIB)] = 256 * KIB
    """Bytes that a peer may leave unread; what would be relayed to it beyond that is not."""

    pages: NonNegativeRate = 20.0
    """Requests for history a second that are answered to one node, and to one address; more wait for their turn.
    status-go runs three loops of them at once, and each waits for its page before it asks for the next: so a loop
    that runs into this goes on at this pace. Refused it would end: status-go asks twice."""

    pages_at_once: NonNegativeInt = 500
    """Requests that may come faster than that, after a silence: a month of a busy network."""

    rows: NonNegativeRate = 100_000.0
    """Archived envelopes looked at a second for one node, and for one address: a tenth of what one core can. A page
    of 200,000 is followed by two seconds without one; for four at once, as many as an address may have, by eight,
    which is less than a requester waits."""

    rows_at_once: NonNegativeInt = 5_000_000
    """Envelopes that may be looked at faster than that, after a silence: a walk of a whole archive, some times."""
