"""Waiting for a task that must not be cancelled, for a thread, and for a change."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def until_done(task: asyncio.Future[Result], on_cancel: Callable[[], None] = lambda: None) -> Result:
    """Wait for a task without cancelling it, and return its result. A cancellation is raised when the task is done.

    `on_cancel` is called at each cancellation.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # asyncio logs one that nobody has asked for
        raise cancelled
    return await task


class ChangeNotifier:
    """Wakes the tasks that wait until anything has happened."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], object]] = {}

    async def next(self, matters: Callable[[], object] = lambda: True) -> None:
        """Wait until anything has happened that matters. When the caller runs again, it may be different again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = matters
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    async def while_counting(self, count: Callable[[], int], done: Callable[[], bool], seconds: float) -> None:
        """Wait until something is done, or until a number has not grown for so many seconds."""
        counted_before = -1
        while not done() and count() > counted_before:
            counted_before = count()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not done() and count() == counted_before:
                        await self.next()

    def notify(self) -> None:
        """Wake the tasks to which it matters. To check that costs less than a turn of the event loop."""
        for waiter, matters in self._waiters.items():
            if not waiter.done() and matters():
                waiter.set_result(None)


async def in_thread(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Run work in a thread. If this is cancelled, `stop` makes the work end, and the cancellation is raised then."""
    return await until_done(threaded(work), stop)


def threaded(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run work in a thread of its own. A process that ends does not wait for it.

    The loop's executor has few threads: transfers that wait for one another, or names that nobody resolves, would
    take all of them.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def report(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, raised = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the caller, who waits, gets it
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(report, result, raised)

    threading.Thread(target=run, name="restante", daemon=True).start()
    return done
