"""No wait in this folder is by the clock: each waits for something to happen, and fails after BOUND seconds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# A client's first new attempt comes 1.5-2.5 s after a loss (Twisted's default policy, application/internet.py
# backoffPolicy: 1.0 * 1.5**n + a random second, n from 1). The rest is for a busy machine.
BOUND = 30.0


@asynccontextmanager
async def bounded(what: str) -> AsyncIterator[None]:
    """Fail, naming WHAT was waited for, when the block has not ended within BOUND seconds."""
    try:
        async with asyncio.timeout(BOUND):
            yield
    except TimeoutError:
        raise AssertionError(f"not within {BOUND:g} s: {what}") from None
