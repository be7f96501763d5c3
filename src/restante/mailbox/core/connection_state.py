"""The state of one connection, apart from its socket."""

from __future__ import annotations

from typing import Final, Protocol, final

import msgspec

from restante.common.errors import PeerError
from restante.mailbox.core.limits import RateLimiter
from restante.mailbox.core.model import Now
from restante.mailbox.core.quotas import AddressQuota
from restante.mailbox.core.session import NEW_SESSION, Session
from restante.mailbox.protocol.frame_text import FrameText


class ClientSocket(Protocol):
    """The socket of a connection."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        """Send each body followed by the stamp, in one write."""

    def hang_up(self, code: int, reason: str) -> None:
        """Close the WebSocket after everything that was sent."""

    def ignore(self) -> None:
        """Stop reading until the connection is closed."""

    def pause(self) -> None:
        """Stop reading for now."""

    def resume(self) -> None:
        """Read again."""

    def large_messages_done(self) -> None:
        """Note that the connection's large messages have all been handled."""


class _LostSocket:
    """The socket of a lost connection. The real one would leave a cycle for the garbage collector."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        pass

    def hang_up(self, code: int, reason: str) -> None:
        pass

    def ignore(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def large_messages_done(self) -> None:
        pass


LOST_SOCKET: Final = _LostSocket()


class Backlog:
    """The commands of a connection that are not handled yet, and its rate. Only fair_queue.py changes it."""

    __slots__ = ("held_bytes", "large", "long", "parked", "paused", "queued", "rate_limiter", "returned", "waiting")

    def __init__(self) -> None:
        self.rate_limiter: RateLimiter | None = RateLimiter()
        """Limits how fast its commands are handled. None: no limit, because the connection is lost."""
        self.queued = 0
        """Entries in the queue, including the long message."""
        self.long: QueueEntry | None = None
        """Its next entry if that is a long message. Then no other entry is in the queue."""
        self.waiting: list[QueueEntry] = []
        """Later entries, which wait to enter the queue."""
        self.returned = 0
        """How many of those were in the queue and had to leave it again."""
        self.held_bytes = 0
        """Bytes of memory for all entries, queued or waiting."""
        self.large = False
        """Whether `held_bytes` has reached `fair_queue.LARGE_BACKLOG_BYTES` and not returned to 0 since."""
        self.parked = False
        """Whether the connection is over its rate, so that its waiting entries are not handled yet."""
        self.paused = False
        """Whether the socket is not read for now."""


class ConnectionState:
    """The state of one connection."""

    __slots__ = (
        "address_quotas",
        "backlog",
        "departing_commands",
        "gone",
        "lost",
        "number",
        "outbox",
        "session",
        "socket",
        "verdict",
    )

    def __init__(self, socket: ClientSocket) -> None:
        self.socket: ClientSocket = socket
        self.number = 0
        """The number of the connection, counted from 1."""
        self.session: Session = NEW_SESSION
        self.address_quotas: tuple[AddressQuota, ...] = ()
        """The quotas of its addresses. Empty: limits per address do not apply."""
        self.backlog = Backlog()
        self.outbox: list[bytes] = []
        """Encoded replies, without their stamp."""
        self.verdict: PeerError | None = None
        """Why the connection will be closed. No command is carried out after it."""
        self.departing_commands = 0
        """Commands received since the connection was refused."""
        self.gone = False
        """Whether its socket is closed. What it sent before is still carried out."""
        self.lost = False
        """Whether its loss was recorded, after all that it sent."""


ENTRY_BYTES: Final = 250
"""Bytes of memory that an entry takes in addition to its text, rounded up: 200 were measured with a short text."""


@final
class ReceivedText(msgspec.Struct, frozen=True):
    """The text of a frame."""

    connection: ConnectionState
    now: Now
    """When the frame arrived."""
    text: FrameText
    size: int
    """`model.size_of` the text, which several limits count."""
    held_bytes: int
    """Bytes of memory that the entry takes while it waits: its size and ENTRY_BYTES."""
    long: bool
    """Whether it is a long message, which is a batch of its own."""


@final
class ReceivedError(msgspec.Struct, frozen=True):
    """A frame that is not a message."""

    connection: ConnectionState
    now: Now
    error: PeerError
    size: int = 0
    held_bytes: int = 0
    long: bool = False


@final
class ConnectionLost(msgspec.Struct, frozen=True):
    """The end of a connection."""

    connection: ConnectionState
    now: Now
    size: int = 0
    held_bytes: int = 0
    long: bool = False


QueueEntry = ReceivedText | ReceivedError | ConnectionLost
"""An item of the fair queue, as received from a socket.

All have `connection`, `now`, `size`, `held_bytes` and `long`.
"""
