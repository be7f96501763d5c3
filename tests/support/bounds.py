"""No wait in this folder is by the clock: each waits for something to happen, and fails after a bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

BOUND: Final = 300.0
"""Seconds; far more than anything here takes, for a busy machine."""

PATIENCE: Final = 600.0
"""Seconds, where a Java starts or packages are fetched."""


@asynccontextmanager
async def bounded(what: str, seconds: float = BOUND) -> AsyncIterator[None]:
    """Fail, naming what was waited for, when the block has not ended within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for something that another process does, of which nothing tells."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
