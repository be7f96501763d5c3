"""Limits of one connection, one pair, one address, and the whole relay.

Each limit is a field of `Limits`, with its default and the reason for it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB

Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[int, Meta(ge=0, le=10**12)]

SLOW_BYTES_PER_SECOND: Final = 4 * KIB
"""Bytes a second of a running pair when `address_day_bytes` or `month_bytes` is reached: 350 MB a day, so 500 pairs
pass on 180 GB a day at most. A transfer whose last megabyte is missing still ends, after four minutes. Clients see
that it goes on: they give up after a minute without a byte."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits. 0 means no limit; `handshake` cannot be 0.

    An address is an IPv4 address, or an IPv6 /64. A pair counts for the addresses of both sides, and once if both
    have the same address.
    """

    handshake: Annotated[float, Meta(gt=0, le=600)] = 10.0
    """Seconds within which a client must send its request. Clients send it at once; a round trip around the world
    takes a third of a second, and a TLS handshake and a WebSocket's request take three."""

    address_waiting: Count = 50
    """Connections of one address that wait for another side, or have not sent their request yet. The address may be a
    whole office's. A transfer has one or two: each client may reach the relay by several addresses."""

    waiting: Count = 5000
    """The same of all addresses. Each takes a file descriptor (`ulimit -n`) and 3 KiB."""

    waiting_seconds: Annotated[float, Meta(ge=0)] = 86_400.0
    """Seconds that a connection may wait for another side. The Go client connects before the receiver's user is asked
    whether to accept, who may answer a day later."""

    address_pairs: Count = 20
    """Pairs of one address that run at a time, which may be a whole office's. A transfer has one."""

    pairs: Count = 500
    """Pairs that run at a time. Each takes two file descriptors, up to four more for pipes while bytes are in them,
    and a share of the line: of 1 Gbit/s a five-hundredth is 250 kB a second."""

    pair_bytes: Count = 0
    """Bytes that a pair may pass on in both directions together. Then it is ended: the transfer fails. Up to 1 MiB
    more may have been passed on. Set it only if the users know it."""

    address_day_bytes: Count = 0
    """Bytes that pairs of one address may pass on in a day (UTC). Then new pairs of the address are refused, and the
    running ones are slowed to 4 KiB a second. It does not apply to loopback and private addresses."""

    month_bytes: Count = 0
    """Bytes that all pairs may pass on in a calendar month (UTC). Then new pairs are refused, and the running ones
    are slowed to 4 KiB a second each, within a second. Set it below what the provider of the line includes; what
    leaves the relay is what it receives, so a provider that counts both directions counts twice."""

    pair_rate: Rate = 0
    """Bytes a second of one pair, in both directions together."""

    address_rate: Rate = 0
    """Bytes a second of all pairs of one address, which share it equally."""

    rate: Rate = 0
    """Bytes a second of all pairs, which share it equally. Set it below the capacity of the line if other services
    use the line, too. The first bytes of a new pair wait until each pair that sends as fast as it may has had 64 KiB:
    with 40 of these and 1 MB a second that takes 2.6 seconds. Above some 40 MB a second, a side that sends through a
    Unix socket gets less than its share."""

    address_records: Count = 5000
    """Usage records a day that one address may cause, of about 100 bytes each. A transfer causes one to three. The
    relay leaves out further records and logs their number."""

    free_disk: Count = 256 * MIB
    """Bytes that must stay free on the disk. Below it the relay writes no usage records and logs their number; it
    goes on to relay."""


UNLIMITED: Final = Limits(
    handshake=600.0,
    address_waiting=0,
    waiting=0,
    waiting_seconds=0.0,
    address_pairs=0,
    pairs=0,
    address_records=0,
    free_disk=0,
)
