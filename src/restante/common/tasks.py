"""Tasks of asyncio."""

from __future__ import annotations

import asyncio


async def until_done(task: asyncio.Task[None]) -> None:
    """Wait for a task that must not be cancelled. A cancellation is raised when it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await task


class Changes:
    """Wakes the tasks that wait until anything has happened."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def next(self) -> None:
        """Wait until anything has happened."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def tell(self) -> None:
        """Wake all that wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
