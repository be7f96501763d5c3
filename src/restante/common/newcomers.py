"""A connection whose request has not come yet: its place among those of its address, and its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

from restante.common.address_registry import PendingRequest
from restante.common.memory_holders import MemoryHolder
from restante.common.proxy_header import SocketPeer
from restante.common.read_budget import ReadBudget

PENDING_BYTES: Final = 10 * 1024
"""Bytes of memory that a connection without a complete request takes, in addition to the request."""


class NewcomerContext(Protocol):
    """The part of a server that a connection uses before its request."""

    read_budget: ReadBudget

    @property
    def handshake_seconds(self) -> float:
        """Return the seconds within which the request must come, with the TLS handshake."""

    def begin_request(self, peer: Sequence[Any]) -> PendingRequest:
        """Count a connection before its request."""

    def end_request(self, pending: PendingRequest) -> None:
        """Record that the request has come, or that the connection is gone."""

    def count_reading(self, holder: MemoryHolder, change: int) -> None:
        """Count memory in which something is being read."""

    def make_room(self) -> None:
        """Close some connections if all together hold more memory than they may."""

    def give_up_request(self, pending: PendingRequest) -> None:
        """Count a connection that is closed for the memory that its request takes."""

    def count_late_request(self, pending: PendingRequest) -> None:
        """Count a connection whose request, or whose TLS handshake before it, does not come in time."""


class Newcomer:
    """A connection whose request has not come yet (MemoryHolder)."""

    def __init__(self, context: NewcomerContext) -> None:
        self._context = context
        self.pending: PendingRequest | None = None
        """Its place. None: it has none yet, or none any more."""
        self._close: Callable[[], None] = lambda: None
        self.held_bytes = 0
        """Bytes of memory that the connection and its request take."""
        self.tls_bytes = 0
        """Bytes of memory that the connection takes as long as it lives, in addition to one without TLS."""

    def admit(
        self, transport: asyncio.Transport, peer: SocketPeer | None, close: Callable[[], None] | None = None
    ) -> bool:
        """Claim a place for a connection. If its address has no more, close the connection and return False.

        `peer` is the client if the transport does not know it. `close` closes the connection if room is needed; by
        default it aborts the transport.
        """
        name = peer or transport.get_extra_info("peername")  # None if the connection is closed already
        pending = name and self._context.begin_request(name)
        if not pending or pending.refused:
            transport.abort()
            return False
        self.pending, self._close = pending, close or transport.abort
        self.count(0)
        return not transport.is_closing()  # this connection may be the one that was closed to make room

    @property
    def addresses(self) -> Sequence[Hashable]:
        """Return the quotas of its address, or the connection itself if its address is not known or not counted."""
        return (self.pending and self.pending.address_quotas) or (self,)

    def count(self, size: int) -> None:
        """Count the bytes that were read so far, and what reads them. It may close this connection or others."""
        self._count(PENDING_BYTES + self.tls_bytes + size)

    def _count(self, size: int) -> None:
        change, self.held_bytes = size - self.held_bytes, size
        if change:
            self._context.count_reading(self, change)
        if change > 0:
            self._context.make_room()

    def end(self) -> None:
        """Release the place, because the request has come or the connection is gone."""
        if self.pending is not None:
            self._count(0)
            self._context.end_request(self.pending)
            self.pending = None

    def give_up(self) -> None:
        """Release the memory that it holds, and close the connection."""
        if self.pending is not None:
            self._context.give_up_request(self.pending)
            self.end()
            self._close()
