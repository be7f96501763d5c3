"""The event loop of the servers, and waiting in it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import uvloop

from support.bounds import bounded

Test = Callable[..., Coroutine[Any, Any, None]]


def on_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[Test], Callable[..., None]]:
    """Run a test on a loop of its own."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*arguments: Any, **named: Any) -> None:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(test(*arguments, **named))

        return run

    return decorate


on_uvloop = on_loop(uvloop.new_event_loop)
"""As the servers run. uvloop has transports and a TLS of its own."""


def move_clock(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Move the clock of a loop of asyncio: what is due by then happens in the next turn."""
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


def slow_clock(loop: asyncio.AbstractEventLoop) -> None:
    """Let time pass at a tenth of its speed, so that a busy machine reaches no time limit by itself."""
    real, start = loop.time, loop.time()
    loop.time = lambda: start + (real() - start) / 10  # type: ignore[method-assign]


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do this as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def in_every_turn(act: Callable[[], object]) -> AbstractAsyncContextManager[None]:
    async def turn() -> None:
        while True:
            act()
            await asyncio.sleep(0)

    return meanwhile(turn())


async def until(what: str, holds: Callable[[], object]) -> None:
    """Wait for something that nobody tells."""
    async with bounded(what):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)
