"""A thread that does one thing after the other, or some that share them, for a loop that must not wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from restante.common.logs import log, where

Result = TypeVar("Result")


class Worker:
    """The threads. To go through an executor and its futures takes twice as long, 30 µs of every commit."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for each in self._threads:
            each.start()

    async def do(self, work: Callable[[], Result]) -> Result:
        """Have something done, when all that came before has begun, with one thread: is done.

        Gives its result, or raises what it raised.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def settle(method: Callable[[Any], None], outcome: Any) -> None:
            if not done.done():  # it is, where who waited was cancelled
                method(outcome)

        def tell(method: Callable[[Any], None], outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, method, outcome)

        def report() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - who waits for it is told
                tell(done.set_exception, error)
            else:
                tell(done.set_result, result)

        self._work.put(report)
        return await done

    def later(self, work: Callable[[], None]) -> None:
        """Have something done that nobody waits for."""
        self._work.put(work)

    def end(self) -> None:
        """Wait until all is done that was asked for."""
        for _ in self._threads:
            self._work.put(None)
        for each in self._threads:
            each.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next is to be done all the same
                log.error("something failed in the background", fault=where(error))
            del work  # it holds what it was about, until the next comes
