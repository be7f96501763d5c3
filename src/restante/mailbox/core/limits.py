"""Limits: how much one connection, one mailbox, one address and all together may have.

Every limit is a field of `Limits`, with its default, and the reason for it.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import msgspec
from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECONDS_PER_DAY: Final = 86400.0

Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


RESERVED_SHARE: Final = 0.1
"""Part of `stored_bytes` that is kept for small mailboxes of addresses that hold little. Without it sixteen addresses
that have as much as they may have leave no room for anybody else."""

SMALL_MAILBOX_BYTES: Final = 64 * KIB
"""Bytes that a mailbox in that part may have. One of a file transfer has some 6 KiB."""

SMALL_HOLDER_BYTES: Final = MIB
"""Bytes that an address holds at most that makes something in that part: 150 transfers at once."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is allowed. 0: no limit; of `message_bytes`, `handshake` and `bind` there always is one."""

    message_bytes: Annotated[int, Meta(ge=4 * KIB, le=100 * MIB)] = 2 * MIB
    """Bytes in a message, fragments together. The largest that shipped clients send are texts, whole and in hex: this
    is a megabyte of text. Files do not come here."""

    commands: Rate = 100.0
    """Commands a second and connection; more wait. A session has twenty, all told."""

    commands_at_once: Count = 1000
    """Commands that may come faster than that, after a silence: who reconnects says again what was not answered."""

    bytes: Rate = 2.0 * MIB
    """Bytes a second and connection, both ways: a command, its answers, and what it makes others be sent."""

    bytes_at_once: Count = 8 * MIB
    """Bytes that may go faster than that, after a silence."""

    handshake: Annotated[float, Meta(gt=0, le=600)] = 5.0
    """Seconds within which a connection must have asked for a WebSocket. Once around the world is a third of one."""

    bind: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    """Seconds within which it must bind. Clients bind at once, unless they have work to show first (permission)."""

    mailbox_messages: Count = 5000
    """Messages in a mailbox. A file transfer has ten; all of them are replayed to whoever opens it."""

    mailbox_bytes: Count = 16 * MIB
    """Bytes of messages in a mailbox: what one `open` may have to replay, and so what a slow reader may owe."""

    address_connections: Count = 100
    """Connections at once from one address: an IPv4 address, which may be a whole office's, or an IPv6 /64. As many
    may have asked for no WebSocket yet: no more of them could be let in."""

    address_connects: Rate = 60.0
    """New connections a minute from one address. Clients come once for a transfer, and back at most once a second."""

    address_connects_at_once: Count = 200
    """New connections that may come faster than that, after a silence: an office after an outage."""

    address_nameplates: Count = 50
    """Live nameplates made from one address. There are nine of one digit, and ninety of two, for everybody."""

    address_claims: Rate = 12.0
    """Different nameplates a minute that one address may claim, known or not. Each is a guess, or a transfer."""

    address_claims_at_once: Count = 60
    """Different nameplates that it may claim faster than that, after a silence: a class of thirty, both ways."""

    connections: Count = 20_000
    """Connections at once: 10 KiB each, idle. Also as many as there are descriptors (`ulimit -n`)."""

    address_bytes: Count = 64 * MIB
    """Bytes of live mailboxes and messages made from one address: a sixteenth of what all may have."""

    address_records: Count = 5000
    """Usage records a day that one address may cause, of some 300 bytes each. A transfer has six; an office with
    eight hundred a day has all of its own."""

    stored_bytes: Count = 1024 * MIB
    """Bytes of live messages, mailboxes and nameplates, all of which are kept in memory. The last tenth is for small
    mailboxes of addresses that hold little (RESERVED_SHARE)."""

    owed_bytes: Count = 256 * MIB
    """Bytes that all clients together may leave unread; in which their messages are read: a connection keeps
    twice the size of its largest; and what they said and is not done. Beyond that, connections of addresses that hold
    much are closed (memory_holders.py)."""

    free_disk: Count = 256 * MIB
    """Bytes that must stay free on the disk: room for the log, a checkpoint, and for ending what lives."""


UNLIMITED: Final = Limits(
    message_bytes=100 * MIB,
    handshake=600.0,
    bind=86400.0,
    commands=0.0,
    commands_at_once=0,
    bytes=0.0,
    bytes_at_once=0,
    mailbox_messages=0,
    mailbox_bytes=0,
    address_connections=0,
    address_connects=0.0,
    address_connects_at_once=0,
    address_nameplates=0,
    address_claims=0.0,
    address_claims_at_once=0,
    connections=0,
    address_bytes=0,
    address_records=0,
    stored_bytes=0,
    owed_bytes=0,
    free_disk=0,
)


MIN_WAIT_SECONDS: Final = 0.001
"""Seconds that are not waited for: timers are no finer."""


class RateLimiter:
    """How fast one connection may go on: two buckets, each kept as the time at which it will be empty again."""

    __slots__ = ("_bytes", "_commands", "owing")

    def __init__(self) -> None:
        self._commands = 0.0
        self._bytes = 0.0
        self.owing = False
        """It must wait before it goes on."""

    def charge(self, now: float, limits: Limits, size: int) -> None:
        """Charge a command that cost so many bytes."""
        if limits.commands:
            self._commands = max(self._commands, now) + 1 / limits.commands
        if limits.bytes:
            self._bytes = max(self._bytes, now) + size / limits.bytes
        self.owing = self._debt(now, limits) > MIN_WAIT_SECONDS

    def room(self, now: float, limits: Limits) -> int:
        """Return how many commands it may say until it must wait, if they are short; one at least."""
        if not limits.commands:
            return sys.maxsize
        return max(0, int(limits.commands_at_once - max(0.0, self._commands - now) * limits.commands)) + 1

    def refresh(self, now: float, limits: Limits) -> float:
        """Bring `owing` up to date, and return the seconds that its next command must wait."""
        debt = self._debt(now, limits)
        self.owing = debt > MIN_WAIT_SECONDS
        return debt if self.owing else 0.0

    def _debt(self, now: float, limits: Limits) -> float:
        commands = self._commands - now - limits.commands_at_once / limits.commands if limits.commands else 0.0
        size = self._bytes - now - limits.bytes_at_once / limits.bytes if limits.bytes else 0.0
        return max(commands, size)
