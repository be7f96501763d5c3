"""Threads for work that would block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from restante.common.logs import log, trace_text

WorkResult = TypeVar("WorkResult")


class Worker:
    """One or more threads that take work from a queue.

    An executor with its futures takes twice as long: 30 µs of every commit.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[], WorkResult]) -> WorkResult:
        """Run `work` in a thread and return its result, or raise what it raised.

        Work starts in the order in which it was queued. With one thread, it also ends in that order.
        """
        if self._loop is None or not self._loop.is_running():  # to ask for it is a system call up to Python 3.11
            self._loop = asyncio.get_running_loop()
        loop = self._loop
        done: asyncio.Future[WorkResult] = loop.create_future()

        def set_outcome(method: Callable[[Any], None], outcome: Any) -> None:
            if not done.done():  # it is done if the caller was cancelled
                method(outcome)

        def report(method: Callable[[Any], None], outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody is waiting
                loop.call_soon_threadsafe(set_outcome, method, outcome)

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                report(done.set_exception, error)
            else:
                report(done.set_result, result)

        self._work.put(run)
        return await done

    def later(self, work: Callable[[], None]) -> None:
        """Queue work whose result nobody waits for. Errors are logged."""
        self._work.put(work)

    def end(self, *, wait: bool = True) -> None:
        """End the threads after all queued work, and wait for that."""
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - logged; the thread goes on
                log.error("unhandled exception in a background task", fault=trace_text(error))
            del work  # otherwise this variable keeps the closure alive until the next work arrives
