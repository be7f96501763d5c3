"""The admin port: HTTP for supervisors and monitors, on loopback unless told otherwise."""

from __future__ import annotations

from aiohttp import web

from restante.config import unusable


async def start(host: str | None, port: int) -> web.AppRunner:
    """Listen; gives the runner, to be cleaned up at the end. Raises Misuse where that cannot be done."""
    app = web.Application()
    app.router.add_get("/healthz", healthz)
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
