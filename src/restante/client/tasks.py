"""Waiting for tasks."""

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
