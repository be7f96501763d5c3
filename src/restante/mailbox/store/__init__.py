"""Stores: they keep what the rules decided. A store never decides, and a rule never keeps.

The contract, which tests/stores holds every engine to: `view` shows all that was applied before; `apply` makes the
changes of one batch durable in one transaction, or raises StoreBusy having changed nothing, or raises StoreError,
after which nothing more may be said to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from restante.mailbox.core.model import Change, Now
from restante.mailbox.core.state import State


class Store(Protocol):
    """An engine."""

    service: float
    """Seconds the service had run when the store was last written."""

    flushing: float | None
    """Since when (time.monotonic) the disk is being waited for; None: it is not."""

    async def view(self) -> State:
        """Give the state; called again after StoreBusy, it is read anew."""

    async def apply(self, changes: Sequence[Change], now: Now) -> None:
        """Make changes durable that were folded into the view already; returns when they are on disk.

        Raises StoreBusy if nothing was written, StoreError if nobody can tell.
        """

    async def tend(self) -> None:
        """Do what can wait until everything is said."""

    async def forget_usage(self, before: float, most: int) -> int:
        """Drop usage records older than a wall time, at most so many of each kind; tell how many went."""

    async def close(self) -> None:
        """Leave everything on disk in good order."""


def open_store(data: Path) -> Store:
    """Open the store in a data directory, making both if need be.

    Raises StoreError when another process has it, or it is not ours, or it is newer than this program.
    """
    from restante.mailbox.store.sqlite import SqliteStore

    return SqliteStore.open(data)
