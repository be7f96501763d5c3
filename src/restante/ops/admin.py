"""The admin port: HTTP for supervisors and monitors, on loopback unless told otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from restante.config import unusable
from restante.errors import StoreError

METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus."""


async def start(
    host: str | None,
    port: int,
    *,
    ready: Callable[[], str] = str,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> web.AppRunner:
    """Listen; gives the runner, to be cleaned up at the end. Raises Misuse where that cannot be done.

    `ready` tells why nobody should be sent to this server, if there is a reason; `metrics` writes them.
    """

    async def readyz(_request: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

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


async def healthz(_request: web.Request) -> web.Response:
    """Answer 200 while the event loop turns: a process that does not is to be restarted."""
    return web.Response(text="ok\n")
