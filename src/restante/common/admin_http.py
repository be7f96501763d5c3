"""The admin port: HTTP for supervisors and monitors, on loopback unless told otherwise."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from aiohttp import web

from restante.common.errors import StoreError
from restante.common.settings import unusable

Result = TypeVar("Result")

METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus."""


HANGS: Final = 1.0
"""Seconds in which nothing that is being written has ended: a disk that works takes some milliseconds."""

TURNS: Final = 0.8
"""Seconds in which a loop that works comes round many times; with them, an answer takes less than a second."""


async def start(
    host: str | None,
    port: int,
    *,
    ill: Callable[[], Awaitable[str]] | None = None,
    ready: Callable[[], str] = str,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> web.AppRunner:
    """Listen; gives the runner, to be cleaned up at the end. Raises Misuse where that cannot be done.

    `ill` tells why this process is to be looked after, and `ready` why nobody should be sent to it, if there is a
    reason; `metrics` writes them.
    """

    async def healthz(_request: web.Request) -> web.Response:
        """Answer 200 while the event loop turns and nothing else is wrong: else the process is to be restarted."""
        return _verdict(await ill() if ill is not None else "")

    async def readyz(_request: web.Request) -> web.Response:
        return _verdict(ready())

    async def measured(_request: web.Request) -> web.Response:
        assert metrics is not None
        try:
            return web.Response(body=await metrics(), headers={"Content-Type": METRICS})
        except StoreError as error:
            return web.Response(text=f"{error}\n", status=500)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    if metrics is not None:
        app.router.add_get("/metrics", measured)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise unusable(host, port, "--admin", error) from error
    return runner


def _verdict(reason: str) -> web.Response:
    return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)


@asynccontextmanager
async def apart(host: str | None, port: int, flushing: Callable[[], float | None]) -> AsyncIterator[None]:
    """Listen from a thread with a loop of its own, which answers while the loop of the server hangs, too.

    `flushing` tells since when (time.monotonic) the disk is being waited for, if it is. Raises what `start` raises.
    """
    served = asyncio.get_running_loop()

    async def ill() -> str:
        since = flushing()
        if since is not None and time.monotonic() - since >= HANGS:
            return f"the disk hangs: what is being written has not ended for {HANGS:g} s"
        turned = asyncio.Event()
        served.call_soon_threadsafe(loop.call_soon_threadsafe, turned.set)
        try:
            async with asyncio.timeout(TURNS):
                await turned.wait()
        except TimeoutError:
            return "the server hangs: it waits for the disk, or has too much to do"
        return ""

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="admin", daemon=True)
    thread.start()

    async def there(work: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        runner = await there(start(host, port, ill=ill))
        try:
            yield
        finally:
            await there(runner.cleanup())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
