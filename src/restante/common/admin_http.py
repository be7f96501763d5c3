"""The admin port: health checks, metrics and JSON pages over HTTP.

It is served by a thread with an event loop of its own, so that health checks are answered while the server's event
loop is blocked. Pages are made in the server's event loop, because they read its data.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest

from restante.common.admin_access import authorized, known_host
from restante.common.admin_dashboard import KEEPALIVE_TIMEOUT, AdminConnections, Dashboard, DashboardHandlers
from restante.common.disk_probe import DiskProbe
from restante.common.errors import Misuse, StoreError
from restante.common.logs import log, log_loop_errors, trace_text
from restante.common.settings import unusable_address

CoroutineResult = TypeVar("CoroutineResult")

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus."""

DISK_TIMEOUT: Final = 1.0
"""Seconds after which a write that has not ended counts as hanging. A working disk takes milliseconds."""

LOOP_TIMEOUT: Final = 0.8
"""Seconds within which the event loop must respond. A health check is answered within a second."""

PAGE_TIMEOUT: Final = 5.0
"""Seconds within which the server's event loop must make a page. Prometheus waits for ten by default."""

SHUTDOWN_TIMEOUT: Final = 1.0
"""Seconds that requests have to end when the server stops. A page of a server that hangs could wait for longer."""

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Bytes of a request's body. No page reads one that is larger."""

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/", "/dashboard.css", "/dashboard.js"})
"""Pages that need no token, because they say nothing about clients. Health checks often cannot send one. The
dashboard asks for it before it reads anything."""

COUNTS_PATH: Final = "/varz"
"""The JSON page with counts. It also has `unready`, what /readyz says."""

PAGES_SCHEMA: Final = 1
"""The version of the fields of the JSON pages. It rises when a field is removed or changes its meaning, but not when
one is added."""

MAX_ROWS: Final = 1000
"""Connections on a page. To show a thousand takes 1.2 ms, in which the event loop serves no clients."""

DEFAULT_ROWS: Final = 100

CONNECTIONS: Final = web.AppKey("connections", AdminConnections)

Row = TypeVar("Row")
Query = Mapping[str, str]
Page = Callable[[Query], Awaitable[dict[str, Any]]]
"""Returns the fields of a page. It runs in the server's event loop, and may raise Misuse and StoreError."""


@dataclass(frozen=True)
class AdminPages:
    """What the admin port shows of a server. The functions of /readyz run in the thread of the admin port."""

    unready: Callable[[], str]
    """Returns why no traffic should be sent to the server, "" if there is no reason. Called in another thread."""
    metrics: Callable[[bool], Awaitable[Iterable[Metric]]]
    """Returns all metrics. The argument says whether the server is ready. It runs in the server's event loop, and may
    raise StoreError."""
    flushing: Callable[[], float | None]
    """Returns when the write began that is under way (time.monotonic), or None. Called in another thread."""
    disk: DiskProbe | None = None
    not_answering: str = "the disk hangs"
    """What is wrong while a write does not finish."""
    json: Mapping[str, Page] = field(default_factory=dict)
    """JSON pages by path."""
    dashboard: Dashboard | None = None


def page_of(rows: Sequence[Row], query: Query, fields_of: Callable[[Row], dict[str, Any]]) -> dict[str, Any]:
    """Return the part of the connections that `limit` and `offset` of a query select. Raises Misuse."""
    limit, offset = _number(query, "limit", DEFAULT_ROWS), _number(query, "offset", 0)
    if limit > MAX_ROWS:
        raise Misuse(f"limit: at most {MAX_ROWS}; use offset for the following ones")
    return {
        "total": len(rows),
        "offset": offset,
        "limit": limit,
        "connections": [fields_of(row) for row in rows[offset : offset + limit]],
    }


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Misuse(f"{name}: a number from 0 is needed")
    return int(text)


@asynccontextmanager
async def serving_admin(
    host: str | None,
    port: int,
    pages: AdminPages,
    token: str | None = None,
    names: tuple[str, ...] = (),
    descriptors: Sequence[int] = (),
) -> AsyncIterator[list[socket.socket]]:
    """Serve the admin port in a thread of its own, and yield its sockets. Raises Misuse if it cannot be used.

    Requests may name the server by `names`, besides the host. `descriptors`: as in `Listeners.listen`.
    """
    loop = asyncio.new_event_loop()
    log_loop_errors(loop)
    thread = threading.Thread(target=loop.run_forever, name="admin", daemon=True)
    thread.start()

    async def in_admin_loop(work: Coroutine[Any, Any, CoroutineResult]) -> CoroutineResult:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        application = _application(_Handlers(asyncio.get_running_loop(), pages), (host or "", *names), token)
        runner, listeners = await in_admin_loop(_start(host, port, application, descriptors))
        try:
            yield [listening for listener in listeners for listening in listener.sockets]
        finally:
            await in_admin_loop(_stop(runner, listeners))
            if pages.disk is not None:
                pages.disk.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(
    host: str | None, port: int, application: web.Application, descriptors: Sequence[int]
) -> tuple[web.AppRunner, list[asyncio.Server]]:
    """Listen, and return what `_stop` stops. Raises Misuse if the address cannot be used."""
    connections = application[CONNECTIONS]
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT, keepalive_timeout=KEEPALIVE_TIMEOUT
    )
    await runner.setup()
    connections.accept = runner.server
    loop = asyncio.get_running_loop()
    try:
        if descriptors:
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            return runner, [await loop.create_server(connections.connected, sock=listening) for listening in sockets]
        return runner, [await loop.create_server(connections.connected, host, port)]
    except OSError as error:
        await runner.cleanup()
        raise unusable_address(host, port, "--admin", error) from error


async def _stop(runner: web.AppRunner, listeners: list[asyncio.Server]) -> None:
    for listener in listeners:
        listener.close()
    await runner.cleanup()


def _application(server: _Handlers, names: tuple[str, ...], token: str | None) -> web.Application:
    connections, wrong_tokens = AdminConnections(), WrongTokens()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.add_request(request.protocol)
        if not known_host(request.host, names):
            return web.Response(
                text="unknown Host: use an IP address, localhost, the host of --admin or a name of --admin-host\n",
                status=421,
            )
        if (
            token is not None
            and request.path not in OPEN_PATHS
            and not authorized(request.headers.get("Authorization", ""), token)
        ):
            if "Authorization" in request.headers:
                wrong_tokens.refused()
            text = "a token is needed: send the header Authorization: Bearer TOKEN\n"
            return web.Response(text=text, status=401, headers={"WWW-Authenticate": "Bearer"})
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - our bug: aiohttp's own line would have the request
            log.error("a request to the admin port failed", fault=trace_text(error))
            return web.Response(text="internal error\n", status=500)

    application = web.Application(middlewares=[guard], client_max_size=MAX_REQUEST_BYTES)
    application[CONNECTIONS] = connections
    application.on_response_prepare.append(_protect)
    application.router.add_get("/healthz", server.healthz)
    application.router.add_get("/readyz", server.readyz)
    application.router.add_get("/metrics", server.metrics)
    for path in server.pages.json:
        application.router.add_get(path, server.json)
    if server.pages.dashboard is not None:
        dashboard = server.pages.dashboard
        handlers = DashboardHandlers(
            dashboard,
            server.in_server,
            server.read,
            server.unready,
            connections.add_viewer,
            authorized=token is not None,
        )
        handlers.add_to(application)
    return application


async def _protect(_request: web.Request, response: web.StreamResponse) -> None:
    """Let no page of another site use an answer. The dashboard sets more headers."""
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")


class _Handlers:
    """Handles the requests, in the thread of the admin port."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pages: AdminPages) -> None:
        self._loop = loop
        """The server's event loop."""
        self.pages = pages

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer 503 if the process should be restarted."""
        return _verdict(await self._health_problem())

    async def readyz(self, _request: web.Request) -> web.Response:
        """Answer 503 if no traffic should be sent to the server."""
        return _verdict(await self.unready())

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer with all metrics."""
        ready = not await self.unready()
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collected(await self.read(lambda: self.pages.metrics(ready))))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": METRICS_TYPE})

    async def json(self, request: web.Request) -> web.Response:
        """Answer with a JSON page."""
        page, query = self.pages.json[request.path], request.query
        fields = {"schema": PAGES_SCHEMA, **await self.read(lambda: page(query))}
        if request.path == COUNTS_PATH:
            fields["unready"] = await self.unready()
        body = msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _health_problem(self) -> str:
        if self.pages.flushing() is not None:
            return ""  # a small commit waits for the disk on the event loop: a restart repairs no disk
        if await self._loop_responds() or self.pages.flushing() is not None:
            return ""
        return "the server hangs: the event loop is blocked or overloaded"

    async def _loop_responds(self) -> bool:
        responded = asyncio.Event()
        self._loop.call_soon_threadsafe(asyncio.get_running_loop().call_soon_threadsafe, responded.set)
        try:
            async with asyncio.timeout(LOOP_TIMEOUT):
                await responded.wait()
        except TimeoutError:
            return False
        return True

    async def _disk_blocks_loop(self) -> bool:
        """Return whether the event loop waits for the disk."""
        since = self.pages.flushing()
        return since is not None and not await self._loop_responds() and self.pages.flushing() == since

    async def unready(self) -> str:
        """Return why no traffic should be sent to the server, "" if there is no reason."""
        reason = self.pages.unready()
        since = self.pages.flushing()
        if since is not None and time.monotonic() - since >= DISK_TIMEOUT:
            reason = reason or f"{self.pages.not_answering}: a write has not finished for {DISK_TIMEOUT:g} s"
        if not reason and self.pages.disk is not None:
            reason = await self.pages.disk.problem(DISK_TIMEOUT)
        return reason or await self._health_problem()

    async def read(self, work: Callable[[], Awaitable[CoroutineResult]]) -> CoroutineResult:
        """Run something that only reads and does not wait in the server's event loop, and return its result.

        While that loop waits for the disk, what it would read does not change. Then it runs here.
        """
        if await self._disk_blocks_loop():
            with contextlib.suppress(RuntimeError), _answering_errors():
                return await work()
            # The loop has gone on, and changed a dict or a set while it was read here.
        return await self.in_server(work())

    async def in_server(self, work: Awaitable[CoroutineResult]) -> CoroutineResult:
        """Run something in the server's event loop, and return its result."""

        async def awaited() -> CoroutineResult:
            return await work

        future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            with _answering_errors():
                async with asyncio.timeout(PAGE_TIMEOUT):
                    return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(text="the server hangs: its event loop does not respond\n") from error


@contextmanager
def _answering_errors() -> Iterator[None]:
    try:
        yield
    except Misuse as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    except StoreError as error:
        raise web.HTTPInternalServerError(text=f"{error}\n") from error


class _Collected:
    """A collector of metrics that were made before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> list[Metric]:
        """Return the metrics."""
        return self._metrics


def _verdict(reason: str) -> web.Response:
    return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)


LOG_SECONDS: Final = 60.0
"""Seconds between two log lines about wrong tokens, so that who guesses does not fill the disk."""


class WrongTokens:
    """Logs requests with a wrong token: the first one, and then how many there were in each minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = 0
        self._silent_until = float("-inf")

    def refused(self) -> None:
        """Count a request, and log it if that is due."""
        self._times += 1
        now = self._clock()
        if now >= self._silent_until:
            log.warning("requests to the admin port had a wrong token", times=self._times)
            self._times, self._silent_until = 0, now + LOG_SECONDS
