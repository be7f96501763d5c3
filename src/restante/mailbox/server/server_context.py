"""What a socket needs of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from picows import WSMsgType

from restante.common.errors import PeerError
from restante.mailbox.core.admission import AdmissionResult
from restante.mailbox.core.limits import Limits
from restante.mailbox.core.memory_holders import MemoryHolders
from restante.mailbox.server.commit_loop import Clock, CommitLoop
from restante.mailbox.server.send_budget import SendBudget

Socket_contra = TypeVar("Socket_contra", contravariant=True)


class ServerContext(Protocol[Socket_contra]):
    """What a socket needs of the server."""

    commit_loop: CommitLoop
    clock: Clock
    limits: Limits
    kind: WSMsgType
    second: int
    owing: int
    """Bytes that all together owe to read."""
    reading: int
    """Bytes in which the messages of all together are read."""
    memory_holders: MemoryHolders
    send_budget: SendBudget
    parting: float
    """Seconds in which a client that is sent away may tidy up after itself."""

    def admit(
        self, newcomer: Socket_contra, peer: tuple[Any, ...], headers: Mapping[str, str], descriptor: int
    ) -> AdmissionResult:
        """Decide about a connection; it may have to go at once."""

    def connection_closed(self, leaver: Socket_contra) -> None:
        """Take note that it is gone."""

    def greeting(self, result: AdmissionResult) -> bytes:
        """Return its welcome, lacking the stamp."""

    def too_big(self) -> PeerError:
        """Return what is wrong with a message of that size."""

    def slow_down(self, hasty: Socket_contra) -> None:
        """Read it again in the next second."""

    def make_room(self) -> None:
        """Close some connections if all together hold more than they may."""

    def overflow(self, socket: Socket_contra, words: str) -> None:
        """Take note that it is closed, and why."""
