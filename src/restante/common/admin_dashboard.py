"""The dashboard of the admin port: its page, its events, and changes of settings."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from restante.common.admin_access import same_origin
from restante.common.logs import log, trace_text

# ── connections to the admin port ────────────────────────────────────────────────────────────────


MAX_CONNECTIONS: Final = 40
"""Connections to the admin port. Servers reserve 64 descriptors that no client gets, and need some of them for their
database."""

REQUEST_TIMEOUT: Final = 5.0
"""Seconds within which a connection must send its first request, and a request its body."""

KEEPALIVE_TIMEOUT: Final = 10.0
"""Seconds that a connection may be idle between two requests."""

MAX_SECONDS: Final = 30.0
"""Seconds after its first request at which a connection is closed, unless it shows a dashboard. It may do nothing but
leave its answers unread. A page takes 5 s at most, and the next request makes a new connection."""


class _Slot(NamedTuple):
    """One of the connections that may be closed to make room."""

    opened_at: float
    """When it was opened, by the clock of the loop."""
    has_request: bool
    """Whether it has sent a request."""
    timer: asyncio.TimerHandle
    """Closes it."""


class AdminConnections:
    """The connections. Those that show a dashboard stay; of the others, the oldest is closed for a new one."""

    def __init__(self) -> None:
        self.accept: web.Server | None = None
        """Makes the handler of a connection. Set it before `connected` is called."""
        self._slots: dict[RequestHandler, _Slot] = {}
        """The connections that show no dashboard, the oldest first."""

    def connected(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. If there are too many, the oldest one is closed for it."""
        assert self.accept is not None
        self._forget_closed(self.accept)
        viewers = sum(handler not in self._slots for handler in self.accept.connections)
        if viewers + len(self._slots) >= MAX_CONNECTIONS:
            oldest = next(iter(self._slots), None)
            if oldest is None:
                return _Refused()
            self._close(oldest)
        handler, loop = self.accept(), asyncio.get_running_loop()
        self._slots[handler] = _Slot(loop.time(), False, loop.call_later(REQUEST_TIMEOUT, self._close, handler))
        return handler

    def add_request(self, handler: RequestHandler) -> None:
        """Record that a connection has sent a request."""
        slot = self._slots.get(handler)
        if slot is not None and not slot.has_request:
            slot.timer.cancel()
            timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self._close, handler)
            self._slots[handler] = _Slot(slot.opened_at, True, timer)

    def add_viewer(self, handler: RequestHandler) -> None:
        """Record that a connection shows a dashboard from now on. Who shows it must see that it is read."""
        slot = self._slots.pop(handler, None)
        if slot is not None:
            slot.timer.cancel()

    def _forget_closed(self, server: web.Server) -> None:
        """Forget connections that are closed. asyncio calls connection_made in the turn after `connected`."""
        connections, limit = set(server.connections), asyncio.get_running_loop().time() - 1.0
        for handler, slot in list(self._slots.items()):
            if handler not in connections and slot.opened_at < limit:
                self.add_viewer(handler)

    def _close(self, handler: RequestHandler) -> None:
        self.add_viewer(handler)
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, _abort, handler)


def _abort(handler: RequestHandler) -> None:
    """Close a connection, whether or not it reads what was sent."""
    transport = handler.transport
    handler.force_close()
    if transport is not None:
        transport.abort()


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


# ── the dashboard ────────────────────────────────────────────────────────────────────────────────


WEB: Final = Path(__file__).with_name("web")

EVENT_SECONDS: Final = 2.0
"""Seconds between two events of a viewer."""

SAMPLE_SECONDS: Final = 10.0
"""Seconds between two samples of the history."""

READING_SECONDS: Final = 1.0
"""Seconds between two readings of the server. A sample has the highest of each value."""

MAX_SAMPLES: Final = 360
"""Samples that are kept: an hour."""

WRITE_TIMEOUT: Final = 20.0
"""Seconds within which a viewer must read an event. Then its connection is closed: its computer may be asleep."""

MAX_VIEWERS: Final = 20
"""Dashboards that are open at once. All of them share one reading of the server each second."""

REPLACED: Final = (
    f"This server shows {MAX_VIEWERS} dashboards at once, and newer ones were opened. Load this page again to see the"
    " figures."
)

CLOSE_SECONDS: Final = 0.5
"""Seconds that a viewer has to read that it was replaced."""

SERIES: Final = re.compile(r'data-series="(\w+)"(?: data-of="(\w+)")? data-kind="(\w+)"')
"""A chart in the sections: its series, what that is divided by if it is a ratio, and its kind."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

FOREIGN: Final = "this request comes from another site\n"

Change = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Dashboard:
    """What the dashboard of a server is made of."""

    title: str
    sections: str
    """HTML. Its elements name the fields that they show (dashboard.js). `$limits` becomes limits.html."""
    sample: Callable[[], Awaitable[Mapping[str, float]]]
    """Returns the values whose history is kept. It only reads and does not wait."""
    details: Callable[[], Awaitable[dict[str, Any]]]
    """Returns all that the page shows. It only reads and does not wait."""
    change: Change | None = None
    """Changes settings, by name, and returns those that can be changed. It runs in the server's event loop, and
    raises Misuse for wrong values. None: nothing can be changed."""


class Peaks:
    """The highest value of each series that a page shows, between two samples."""

    def __init__(self, sections: str) -> None:
        """Read from the sections what a series is: a gauge, the rate of a counter, or the ratio of two."""
        self._divisors = {name: divisor for name, divisor, _ in SERIES.findall(sections)}
        self._gauges = {name for name, _, kind in SERIES.findall(sections) if kind == "gauge"}
        self._values_before: tuple[float, Mapping[str, float]] | None = None
        self._peaks: dict[str, float] = {}

    def add(self, now: float, values: Mapping[str, float]) -> None:
        """Add the values of a wall time, in seconds since 1970."""
        before, self._values_before = self._values_before, (now, values)
        for name, divisor_name in self._divisors.items():
            value = values[name]
            if name not in self._gauges:
                if before is None:
                    continue
                time_before, values_before = before
                value -= values_before[name]
                divisor = values[divisor_name] - values_before[divisor_name] if divisor_name else now - time_before
                if value < 0 or divisor <= 0:  # nothing was counted, or the clock was set back
                    continue
                value /= divisor
            self._peaks[name] = max(value, self._peaks.get(name, value))

    def take(self) -> dict[str, float]:
        """Return the highest values since the last call, by series."""
        peaks, self._peaks = self._peaks, {}
        return peaks


class _Viewer:
    """A dashboard that is open."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.should_end = asyncio.Event()

    def end_soon(self) -> None:
        """End soon, with an event that says why, and close the connection although the viewer does not read."""
        self.should_end.set()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._request.transport is not None:
            self._request.transport.abort()


class DashboardHandlers:
    """Handles the requests of dashboards, in the thread of the admin port."""

    def __init__(
        self,
        dashboard: Dashboard,
        in_server: Callable[[Awaitable[Any]], Awaitable[Any]],
        read: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        unready: Callable[[], Awaitable[str]],
        add_viewer: Callable[[RequestHandler], None],
        *,
        authorized: bool,
    ) -> None:
        self._dashboard = dashboard
        self._in_server = in_server
        """Runs something in the server's event loop."""
        self._read_server = read
        """The same for something that only reads and does not wait, also while that loop waits for the disk."""
        self._unready = unready
        self._add_viewer = add_viewer
        """Called with the connection of each viewer."""
        self._authorized = authorized
        """Whether viewers have a token. Otherwise any program of the machine can be one."""
        self._change = dashboard.change if authorized else None
        """Changes settings: only with a token."""
        self._history: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)
        self._viewers: list[_Viewer] = []
        """The viewers, the oldest first."""
        self._latest = b""
        self._latest_at = float("-inf")
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        frame = Template((WEB / "dashboard.html").read_text("utf-8"))
        limits = (WEB / "limits.html").read_text("utf-8")
        sections = Template(self._dashboard.sections).substitute(limits=limits)
        page = frame.substitute(title=self._dashboard.title, sections=sections)
        files = {
            "/": (page, "text/html"),
            "/dashboard.css": ((WEB / "dashboard.css").read_text("utf-8"), "text/css"),
            "/dashboard.js": ((WEB / "dashboard.js").read_text("utf-8"), "text/javascript"),
        }
        for path, (text, kind) in files.items():
            application.router.add_get(path, _static(text, kind))
        application.router.add_get("/events", self._events)
        application.router.add_post("/settings", self._settings)
        application.on_startup.append(self._start)
        application.on_shutdown.append(self._stop)

    async def _start(self, _application: web.Application) -> None:
        self._sampling = asyncio.create_task(self._sample())

    async def _stop(self, _application: web.Application) -> None:
        self._closing.set()
        for viewer in self._viewers:
            viewer.should_end.set()
        if self._sampling is not None:
            self._sampling.cancel()

    async def _sample(self) -> None:
        """Add to the history. While the server does not respond, there are no samples."""
        peaks, next_sample = Peaks(self._dashboard.sections), float("-inf")
        while True:
            try:
                values = await self._read_server(self._dashboard.sample)
                now = time.time()
                peaks.add(now, values)
                if not next_sample - SAMPLE_SECONDS <= now < next_sample:  # or the clock was set back
                    next_sample = now + SAMPLE_SECONDS - READING_SECONDS / 2
                    self._history.append({"time": now, **values, "peaks": peaks.take()})
            except web.HTTPException:
                pass
            except Exception as error:  # noqa: BLE001 - our bug: the charts have a gap, and go on
                log.error("the history of the dashboard lacks a sample", fault=trace_text(error))
            await asyncio.sleep(READING_SECONDS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the history, and then what the page shows, again and again (HTML, "Server-sent events")."""
        if _is_foreign(request):
            return web.Response(text=FOREIGN, status=403)
        if len(self._viewers) >= MAX_VIEWERS and not self._authorized:
            self._viewers.pop(0).end_soon()
        if len(self._viewers) >= MAX_VIEWERS:
            text = f"Too many dashboards are open: this server shows {MAX_VIEWERS} at once. Close one.\n"
            return web.Response(text=text, status=429)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        viewer = _Viewer(request)
        self._viewers.append(viewer)
        self._add_viewer(request.protocol)
        try:
            await response.prepare(request)
            await _write(response, "history", msgspec.json.encode(list(self._history)))
            while not viewer.should_end.is_set():
                await _write(response, "now", await self._read_details())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EVENT_SECONDS):
                        await viewer.should_end.wait()
            if not self._closing.is_set():
                await _write(response, "replaced", msgspec.json.encode(REPLACED))
        except (ConnectionError, TimeoutError):  # the viewer has gone, or does not read
            viewer.abort()
        finally:
            if viewer in self._viewers:
                self._viewers.remove(viewer)
        return response

    async def _read_details(self) -> bytes:
        """Return what the page shows. Viewers share what was read within the last second."""
        async with self._lock:
            if time.monotonic() - self._latest_at >= EVENT_SECONDS / 2:
                can_change = self._change is not None
                details: dict[str, Any] = {"changes_allowed": can_change, "unready": await self._unready()}
                try:
                    details |= await self._read_server(self._dashboard.details)
                    details["last_sample"] = self._history[-1] if self._history else None
                except web.HTTPException as error:
                    details["problem"] = (error.text or "").strip()
                self._latest, self._latest_at = msgspec.json.encode(details), time.monotonic()
            return self._latest

    async def _settings(self, request: web.Request) -> web.Response:
        """Change settings. The guard has checked the token."""
        if self._change is None:
            return web.Response(text="settings can be changed only with --admin-token-file\n", status=403)
        if _is_foreign(request):
            return web.Response(text=FOREIGN, status=403)
        if request.content_type != "application/json":
            return web.Response(text="send application/json\n", status=415)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                settings = msgspec.json.decode(await request.read(), type=dict[str, Any])
        except TimeoutError:
            return web.Response(text="the request did not come in time\n", status=408)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return web.Response(text=f"{error}\n", status=400)
        changed = await self._in_server(self._change(settings))
        return web.Response(body=msgspec.json.encode(changed), content_type="application/json")


def _static(text: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'

    async def handle(request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={**HEADERS, "ETag": tag})
        return web.Response(text=text, content_type=kind, charset="utf-8", headers={**HEADERS, "ETag": tag})

    return handle


async def _write(response: web.StreamResponse, name: str, data: bytes) -> None:
    """Write an event. Raises TimeoutError if the viewer does not read."""
    async with asyncio.timeout(WRITE_TIMEOUT):
        await response.write(b"event: %s\ndata: %s\n\n" % (name.encode(), data))


def _is_foreign(request: web.Request) -> bool:
    """Return whether a browser says that a page of another site sends this request."""
    site, origin = request.headers.get("Sec-Fetch-Site", "same-origin"), request.headers.get("Origin")
    return site != "same-origin" or (origin is not None and not same_origin(origin, request.host))
