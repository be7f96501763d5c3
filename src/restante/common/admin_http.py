"""The admin port: health checks and metrics over HTTP, on loopback by default."""

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

CoroutineResult = TypeVar("CoroutineResult")

METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus."""


DISK_TIMEOUT: Final = 1.0
"""Seconds after which a write that has not ended counts as hanging. A working disk takes milliseconds."""

LOOP_TIMEOUT: Final = 0.8
"""Seconds within which the event loop must respond. A health check is answered within a second."""


async def start(
    host: str | None,
    port: int,
    *,
    ill: Callable[[], Awaitable[str]] | None = None,
    ready: Callable[[], str] = str,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> web.AppRunner:
    """Listen and return the runner, which the caller cleans up. Raises Misuse if the port cannot be used.

    `ill` returns why the process should be restarted, `ready` why no traffic should be sent to it, "" for neither.
    `metrics` returns the page of metrics.
    """

    async def healthz(_request: web.Request) -> web.Response:
        """Answer 200 while the process is healthy."""
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
    """Listen in a thread with its own event loop, which also answers while the server's loop is blocked.

    `flushing` returns when the write began that is under way (time.monotonic), or None. Raises what `start` raises.
    """
    served = asyncio.get_running_loop()

    async def ill() -> str:
        since = flushing()
        if since is not None and time.monotonic() - since >= DISK_TIMEOUT:
            return f"the disk hangs: a write has not finished for {DISK_TIMEOUT:g} s"
        turned = asyncio.Event()
        served.call_soon_threadsafe(loop.call_soon_threadsafe, turned.set)
        try:
            async with asyncio.timeout(LOOP_TIMEOUT):
                await turned.wait()
        except TimeoutError:
            return "the server hangs: the event loop is blocked or overloaded"
        return ""

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="admin", daemon=True)
    thread.start()

    async def there(work: Coroutine[Any, Any, CoroutineResult]) -> CoroutineResult:
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
