"""What the server keeps of one connection, apart from its socket."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from restante.common.errors import PeerError
from restante.mailbox.core.address_quotas import AddressQuota
from restante.mailbox.core.limits import RateLimiter
from restante.mailbox.core.model import Now
from restante.mailbox.core.session import NEW_SESSION, Session


class ClientSocket(Protocol):
    """The socket's end of a connection."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        """Send each body with the stamp behind it, in one write."""

    def hang_up(self, code: int, reason: str) -> None:
        """Close the WebSocket after all that was sent."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""

    def large_messages_done(self) -> None:
        """Note that the connection's large messages have all been handled."""


class _LostSocket:
    """The socket of a connection that is lost; to let go of the real one leaves no cycle for the collector."""

    def send(self, bodies: list[bytes], stamp: bytes) -> None:
        pass

    def hang_up(self, code: int, reason: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def large_messages_done(self) -> None:
        pass


LOST_SOCKET: Final = _LostSocket()


class Backlog:
    """What a connection said and is not done yet; how fast it may go on. fair_queue.py alone alters it."""

    __slots__ = ("held", "large", "long", "parked", "paused", "queued", "rate_limiter", "returned", "waiting")

    def __init__(self) -> None:
        self.rate_limiter: RateLimiter | None = None
        """How fast it may go on; None: as fast as it likes."""
        self.queued = 0
        """How much of what it said is in the queue, or is its long message."""
        self.long: ReceivedText | None = None
        """Its long message, which is next in its turn, if it has one; nothing else of it is in the queue then."""
        self.waiting: list[QueueEntry] = []
        """What it said beyond that."""
        self.returned = 0
        """How much of that was in the queue already, and had to leave it again."""
        self.held = 0
        """Bytes of memory for all that is queued or waits."""
        self.large = False
        """It was as much as `fair_queue.LARGE_BACKLOG_BYTES`, and is not done."""
        self.parked = False
        """It is in debt: nothing of what waits is done before its time."""
        self.paused = False
        """Its socket is left unread for now."""


class ConnectionState:
    """The state of one connection."""

    __slots__ = ("address_quotas", "backlog", "lost", "number", "outbox", "session", "socket", "verdict")

    def __init__(self, socket: ClientSocket) -> None:
        self.socket: ClientSocket = socket
        self.number = 0
        """Counts connections, from 1."""
        self.session: Session = NEW_SESSION
        self.address_quotas: tuple[AddressQuota, ...] = ()
        """What its addresses have used up; none: limits per address do not apply to it."""
        self.backlog = Backlog()
        self.outbox: list[bytes] = []
        """Encoded replies, lacking their stamp."""
        self.verdict: PeerError | None = None
        """Why the connection is to be closed; nothing more is taken from it."""
        self.lost = False


class ReceivedText(msgspec.Struct, frozen=True):
    """The text of a frame."""

    connection: ConnectionState
    text: str
    now: Now
    """When it came."""


class ReceivedError(msgspec.Struct, frozen=True):
    """A frame that is no message."""

    connection: ConnectionState
    error: PeerError
    now: Now


class ConnectionLost(msgspec.Struct, frozen=True):
    """The end of a connection."""

    connection: ConnectionState
    now: Now


QueueEntry = ReceivedText | ReceivedError | ConnectionLost
"""What comes in from a socket, as the fair queue keeps it."""
