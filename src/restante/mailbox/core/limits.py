"""Limits of one connection, one mailbox, one address, and the whole server.

Each limit is a field of `Limits`, with its default and the reason for it.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Annotated, Final

import msgspec
from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB

Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


RESERVED_SHARE: Final = 0.1
"""Share of `stored_bytes` that is reserved for small mailboxes of addresses that hold little. Without it, sixteen
addresses that use their whole quota would leave no room for others."""

RESERVED_FOR_ADDRESSES: Final = 64
"""Number of addresses that cannot use up the reserved share together, whatever `stored_bytes` is. Below 23 MiB they
can, because of MIN_SMALL_BYTES."""

SMALL_MAILBOX_BYTES: Final = 64 * KIB
"""Highest value of `Limits.small_mailbox_bytes`. The mailbox of a file transfer has about 6 KiB."""

SMALL_HOLDER_BYTES: Final = MIB
"""Highest value of `Limits.small_holder_bytes`: 150 transfers at once."""

MIN_SMALL_BYTES: Final = 16 * KIB
"""Lowest value of both: a file transfer, and some room."""

WRAPPING_BYTES: Final = 4 * KIB
"""Maximum of what a message takes in addition to its phase, body and id, rounded up: a side of 500 emojis, and
MESSAGE_BYTES of state.py."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits. 0 means no limit; `message_bytes`, `handshake` and `bind` cannot be 0."""

    message_bytes: Annotated[int, Meta(ge=4 * KIB, le=100 * MIB)] = 2 * MIB
    """Bytes of one message, including all its fragments. The largest messages of shipped clients are texts, sent in
    one piece and in hex: this is a megabyte of text. Files do not pass through this server. To read 2 MiB takes up to
    7 ms, during which the server does nothing else; the time grows with the size."""

    commands: Rate = 100.0
    """Commands a second, per connection; further ones wait. A transfer has twenty in total."""

    commands_at_once: Count = 1000
    """Burst of `commands`: how many a connection may send at once after a pause. A client that reconnects repeats all
    commands that were not answered."""

    bytes: Rate = 2.0 * MIB
    """Bytes a second, per connection: its commands, their answers, and the messages that the server sends to others
    because of them. A `list` or a replay counts with its size."""

    bytes_at_once: Count = 8 * MIB
    """Burst of `bytes`: how many a connection may use at once after a pause. It is four messages of full size."""

    handshake: Annotated[float, Meta(gt=0, le=600)] = 5.0
    """Seconds within which a client must request the WebSocket. A round trip around the world takes a third of a
    second."""

    bind: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    """Seconds within which a client must bind. Clients bind at once, unless they must show work first
    (`--permission`)."""

    mailbox_messages: Count = 5000
    """Messages in a mailbox. A file transfer has ten. All of them are replayed to each side that opens it."""

    mailbox_bytes: Count = 16 * MIB
    """Bytes of messages in a mailbox. One `open` replays all of them, and a slow reader may leave them all unread."""

    address_connections: Count = 100
    """Open connections of one address, which may be a whole office's. As many again may be open that have not
    requested a WebSocket yet; the server could not admit more of them."""

    address_connects: Rate = 60.0
    """New connections a minute of one address. A client connects once for a transfer, and reconnects at most once a
    second."""

    address_connects_at_once: Count = 200
    """Burst of `address_connects`: how many connections an address may make at once after a pause. An office
    reconnects at once after an outage."""

    address_nameplates: Count = 50
    """Live nameplates created from one address. All clients share nine nameplates of one digit and ninety of two."""

    address_claims: Rate = 12.0
    """Different nameplates that one address may claim or allocate in a minute. Each is a transfer, or a guess."""

    address_claims_at_once: Count = 60
    """Burst of `address_claims`: how many different nameplates an address may claim at once after a pause. It is
    enough for a class of thirty that sends and receives."""

    connections: Count = 20_000
    """Open connections. An idle one takes 10 KiB. Each also takes a file descriptor (`ulimit -n`); when those run
    out, further connections wait in the kernel's queue."""

    address_bytes: Count = 64 * MIB
    """Bytes of live mailboxes and messages created from one address: a sixteenth of `stored_bytes`."""

    address_records: Count = 5000
    """Usage records a day that one address may cause, of about 300 bytes each. A transfer causes six, so the records
    of eight hundred transfers a day are complete. The server leaves out further records and logs their number."""

    stored_bytes: Count = 1024 * MIB  # its reserve: RESERVED_SHARE
    """Bytes of live messages, mailboxes and nameplates, which are all in memory. The last tenth is reserved for
    mailboxes under 64 KiB, of addresses that hold less than 1 MiB, so that 64 addresses cannot lock out everyone
    else. If this limit is below 690 MiB, the 1 MiB becomes less (136 KiB at 128 MiB). Below 120 MiB the 64 KiB
    becomes less, too (34 KiB at 64 MiB). Below 23 MiB the reserve is too small for 64 addresses."""

    held_bytes: Count = 256 * MIB  # which connections are closed: memory_holders.py
    """Bytes of memory that all connections together may hold: replies that clients have not read; receive buffers
    (twice the largest message of a connection, counted from 8 KiB); connections without a complete request (10 KiB
    and the bytes of the request each, 65 KiB more during a TLS handshake, and 20 KiB more after it); commands that
    wait to be executed. Beyond it the server closes connections. First it chooses the address with the highest
    product of the bytes beyond 64 KiB and the seconds for which it has held memory, at most 10, and closes its oldest
    connection. When no address holds more than 64 KiB, the server closes the oldest of all connections that hold
    memory."""

    free_disk: Count = 256 * MIB
    """Bytes that must stay free on the disk: room for the write-ahead log, a checkpoint, and for ending live
    mailboxes. Below it the server accepts nothing new and does not record binds. `close`, `release` and prunes still
    work."""

    @property
    def rates(self) -> Rates:
        """The rates of a connection."""
        return rates_of(self.commands, self.commands_at_once, self.bytes, self.bytes_at_once)

    @property
    def small_mailbox_bytes(self) -> int:
        """Maximum size of a mailbox that may use the reserved share, in bytes."""
        return max(MIN_SMALL_BYTES, min(SMALL_MAILBOX_BYTES, self._reserved_per_address // 3))

    @property
    def small_holder_bytes(self) -> int:
        """Number of bytes up to which an address may create something in the reserved share.

        What it created may exceed this by the largest message of a small mailbox.
        """
        remaining = self._reserved_per_address - self.small_mailbox_bytes - WRAPPING_BYTES
        return max(MIN_SMALL_BYTES, min(SMALL_HOLDER_BYTES, remaining))

    @property
    def _reserved_per_address(self) -> int:
        return int(self.stored_bytes * RESERVED_SHARE) // RESERVED_FOR_ADDRESSES


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
    held_bytes=0,
    free_disk=0,
)


MIN_WAIT_SECONDS: Final = 0.001
"""Debts of at most this many seconds are ignored, because timers are no finer."""


class Rates(msgspec.Struct, frozen=True, gc=False):
    """What a connection may do in which time, in seconds."""

    command: float
    """Seconds after which another command is allowed. 0: there is no limit."""
    byte: float
    """The same of a byte."""
    command_burst: float
    """Seconds that the commands may be ahead before the connection must wait."""
    byte_burst: float
    """The same of the bytes."""
    commands_at_once: int


@functools.lru_cache(maxsize=2)
def rates_of(commands: float, commands_at_once: int, size: float, size_at_once: int) -> Rates:
    """Return the rates for a number of commands and bytes a second, and at once."""
    return Rates(
        command=1 / commands if commands else 0.0,
        byte=1 / size if size else 0.0,
        command_burst=commands_at_once / commands + MIN_WAIT_SECONDS if commands else math.inf,
        byte_burst=size_at_once / size + MIN_WAIT_SECONDS if size else math.inf,
        commands_at_once=commands_at_once,
    )


class RateLimiter:
    """The rate limits of one connection: two leaky buckets, each stored as the time at which it will be empty."""

    __slots__ = ("_bytes", "_commands", "must_wait")

    def __init__(self) -> None:
        self._commands = 0.0
        self._bytes = 0.0
        self.must_wait = False
        """Whether the connection must wait before its next command."""

    @property
    def debts(self) -> tuple[float, float, bool]:
        """The state, for another limiter's `debts`."""
        return self._commands, self._bytes, self.must_wait

    @debts.setter
    def debts(self, debts: tuple[float, float, bool]) -> None:
        self._commands, self._bytes, self.must_wait = debts

    def charge(self, now: float, rates: Rates, size: int) -> None:
        """Charge a command that cost `size` bytes."""
        # This is called for each command, so it calls nothing itself.
        commands = (self._commands if self._commands > now else now) + rates.command  # noqa: FURB136
        size_time = (self._bytes if self._bytes > now else now) + size * rates.byte  # noqa: FURB136
        self._commands, self._bytes = commands, size_time
        self.must_wait = commands - now > rates.command_burst or size_time - now > rates.byte_burst

    def room(self, now: float, rates: Rates) -> int:
        """Return how many short commands the connection may send before it must wait, at least 1."""
        if not rates.command:
            return sys.maxsize
        return max(0, int(rates.commands_at_once - max(0.0, self._commands - now) / rates.command)) + 1

    def refresh(self, now: float, rates: Rates) -> float:
        """Update `must_wait`, and return how many seconds the connection's next command must wait."""
        debt = max(self._commands - now - rates.command_burst, self._bytes - now - rates.byte_burst)
        self.must_wait = debt > 0.0
        return debt + MIN_WAIT_SECONDS if self.must_wait else 0.0
