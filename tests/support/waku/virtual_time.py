"""A loop whose time passes only while nothing happens: no timeout depends on how busy the machine is."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any, Final

from support.loops import on_loop

QUIET: Final = 0.03
"""Seconds without an event before time goes on to the next timer. Both ends of each socket are in this process."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while threads work, and goes on to the next timer as soon as nobody does anything."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.working = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.passed

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        self.working += 1
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._worked)
        return future

    def _worked(self, _: object) -> None:
        self.working -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0 if timeout is not None and timeout <= 0 else QUIET)
        while not events and timeout != 0:
            if timeout is not None and not self._loop.working:
                self._loop.passed += timeout
                break
            events = super().select(QUIET)
        return events


in_virtual_time = on_loop(VirtualTimeLoop)
