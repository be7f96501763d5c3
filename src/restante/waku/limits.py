"""Limits of the Waku node, for one peer, one address, and all peers. Each has its default and the reason for it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from restante.waku.protocol.policy import MAX_ENVELOPE_SIZE

KIB: Final = 1024
MIB: Final = 1024 * KIB

NonNegativeInt = Annotated[int, Meta(ge=0)]
NonNegativeRate = Annotated[float, Meta(ge=0, le=1e12)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits. A rate of 0 means no limit."""

    packet_bytes: Annotated[int, Meta(ge=MIB, le=16 * MIB - 1)] = 10 * MIB  # status-go: waku/v1/peer.go:573-629
    """Bytes of a packet after decompression; a larger one ends the connection. status-go sends everything that it has
    in one packet, without a limit, and accepts 10 MiB itself. devp2p allows at most 16 MiB."""

    envelope_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = MAX_ENVELOPE_SIZE
    """Bytes of an envelope (its data and 20): status-go's default. Larger ones are refused. An envelope that takes
    more than 1,048,572 bytes with all its fields is refused in any case, because shipped nodes accept no packet that
    could contain it."""

    address_bytes: NonNegativeRate = 8.0 * MIB
    """Bytes a second, after decompression, that all peers of an address together may send. The node reads the rest
    later. The whole fleet of Status sent less."""

    address_bytes_at_once: NonNegativeInt = 32 * MIB
    """Burst of `address_bytes`: how many an address may send at once after a pause. It is three packets of the
    maximum size."""

    address_envelopes: NonNegativeRate = 4000.0
    """Envelopes a second that all peers of an address may send. Each takes about 50 µs, so the default is a fifth of
    a core. Each packet also counts as one, and 40 bytes of a packet without envelopes as one more. A refused
    envelope, unless it expired less than 20 s ago, or an unreadable packet counts as ten more. A change of the topics
    or the bloom filter counts as a hundred more."""

    address_envelopes_at_once: NonNegativeInt = 50_000
    """Burst of `address_envelopes`: how many an address may send at once after a pause. A node that connects sends
    all its live envelopes."""

    address_connects: NonNegativeRate = 60.0
    """New connections a minute from one address. More are closed without an answer: a handshake takes half a
    millisecond."""

    address_connects_at_once: NonNegativeInt = 200
    """Burst of `address_connects`: how many connections an address may make at once after a pause. It is enough for a
    fleet that was restarted."""

    known_bytes: Annotated[int, Meta(ge=MIB)] = 128 * MIB
    """Bytes of memory for the hashes of live envelopes: half a million of them. The node forgets the earliest
    arrivals first."""

    pool_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    """Bytes of memory for live envelopes, which peers receive when they extend their interest. The node drops those
    that expire first."""

    unsaved_bytes: Annotated[int, Meta(ge=MIB)] = 32 * MIB
    """Bytes of envelopes that wait for the disk, and of packets that wait to be confirmed (500 each, and 80 for an
    envelope). Beyond it the node stops reading from peers that send more. Beyond twice that, it does not answer
    further packets, and their senders have to send them again."""

    unfinished_bytes: Annotated[int, Meta(ge=32 * MIB)] = 256 * MIB
    """Bytes of incomplete packets of all peers. Beyond it the peer with the largest one is disconnected. A packet of
    a megabyte takes a third of a second on a slow line, so hundreds of peers may be sending one."""

    owed_bytes: Annotated[int, Meta(ge=64 * KIB)] = 256 * KIB
    """Bytes that a peer may leave unread, besides a packet of a page of history. Beyond it the node relays nothing to
    the peer and does not read from it. A peer that leaves 64 KiB unread and reads nothing for 20 s is
    disconnected."""

    pages: NonNegativeRate = 20.0
    """History requests a second that are answered for one peer, and for one address; the others wait. status-go runs
    three loops of requests at once, and each waits for its page before it requests the next. So a loop that reaches
    the limit continues at this rate. A refusal would end the loop: status-go tries each request only twice."""

    pages_at_once: NonNegativeInt = 500
    """Burst of `pages`: how many requests are answered at once after a pause. It is a month of a busy network."""

    rows: NonNegativeRate = 100_000.0
    """Archived envelopes a second that are examined for one peer, and for one address: a tenth of one core's
    capacity. After a page of 200,000 the next one waits two seconds. After four such pages at once, the maximum of an
    address, it waits eight, which is less than a requester's timeout."""

    rows_at_once: NonNegativeInt = 5_000_000
    """Burst of `rows`: how many envelopes may be examined at once after a pause. It is a whole archive, several
    times."""
