"""The part of the server that a socket uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from restante.common.errors import PeerError
from restante.mailbox.core.admission import AdmissionResult
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.memory_holders import MemoryHolder, MemoryHolders
from restante.mailbox.server.commit_loop import Clock, CommitLoop
from restante.mailbox.server.read_budget import ReadBudget
from restante.mailbox.server.send_budget import SendBudget

Socket_contra = TypeVar("Socket_contra", contravariant=True)


class ServerContext(Protocol[Socket_contra]):
    """The part of the server that a socket uses."""

    commit_loop: CommitLoop
    clock: Clock
    limits: Limits
    first_byte: int
    """The first byte of the frames that are sent."""
    second: int
    owing: int
    """Bytes owed to all sockets."""
    reading: int
    """Bytes of memory in which the messages of all sockets are being read."""
    memory_holders: MemoryHolders
    send_budget: SendBudget
    read_budget: ReadBudget
    cleanup_seconds: float
    """Seconds that a rejected client has to release and close."""

    def admit(
        self, newcomer: Socket_contra, peer: tuple[Any, ...], headers: Mapping[str, str], descriptor: int
    ) -> AdmissionResult:
        """Admit a connection, or decide that it will be closed, and return the result."""

    def connection_closed(self, leaver: Socket_contra) -> None:
        """Forget a closed connection."""

    def greeting(self, result: AdmissionResult) -> bytes:
        """Return the welcome, without its timestamp."""

    def too_big(self) -> PeerError:
        """Return the error for a message that is too big."""

    def slow_down(self, hasty: Socket_contra) -> None:
        """Let a socket be read again in the next second."""

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""

    def make_room(self) -> None:
        """Close some connections if all together hold more memory than they may."""

    def overflow(self, socket: Socket_contra, words: str) -> None:
        """Count a connection that is closed for the memory it holds, and why."""
