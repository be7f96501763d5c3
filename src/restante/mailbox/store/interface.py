"""What the server calls of a store, whatever its database is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from restante.common.errors import StoreError
from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State


class TermOver(StoreError):  # noqa: N818 - the project's name for it (CONTRIBUTING.md)
    """This server may not write any more, and a batch that is under way may or may not be stored.

    Another server may have taken over. Answer no client; begin a new term, and read the state again.
    """


class Role:
    """What a server is among those that share its database. One that shares it with no other always serves."""

    def __init__(self, *, serving: bool = True) -> None:
        self.term = 0
        """The term that it has, or had last; 0: none."""
        self.serving = serving
        """Whether it serves: otherwise it stands by."""
        self.take_overs = 0
        """Terms that it has begun."""


class Store(Protocol):
    """The database of one server, which alone writes it.

    `view` returns all that was applied before. `apply` makes the changes of one batch durable in one transaction. It
    raises StoreBusy if nothing was changed, or another StoreError, after which the server must not answer any client.
    """

    service: float
    """Service time when the database was last written, as read when it was opened."""

    @property
    def flushing(self) -> float | None:
        """The time (time.monotonic) since which the store waits for its database; None: it does not wait."""

    async def view(self) -> State:
        """Read and return the stored state. Raises StoreError if it cannot be read."""

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        """Write changes that the state has already folded in. Returns when they are durable.

        Raises StoreBusy if nothing was written, StoreError if it is unknown whether the commit succeeded.
        """

    async def confirm(self) -> None:
        """Return when a batch without changes may be answered. Raises TermOver if it may not."""

    async def hold(self) -> None:
        """Keep the right to write. It ends only with an error, like TermOver."""

    async def tend(self) -> None:
        """Do what is due after a batch is answered."""

    async def forget_usage(self, before: float, limit: int) -> int:
        """Delete usage records older than a wall time, up to `limit` of each kind. Return the number deleted.

        Raises as `apply` does.
        """

    async def close(self) -> None:
        """Close the database, so that another server may open it."""
