"""The event loop of the servers, and waiting in it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from support.bounds import bounded


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on uvloop, as the servers run. uvloop has transports and a TLS of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        uvloop.run(test(*arguments, **named))

    return run


async def until(what: str, holds: Callable[[], object]) -> None:
    """Wait for something that nobody tells."""
    async with bounded(what):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)
