"""The connections to the admin port: how many there may be, and how long each may last."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

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


class _Place(NamedTuple):
    """The place of a connection that may be closed to make room."""

    came: float
    """When it came, by the clock of the loop."""
    asked: bool
    """Whether it has sent a request."""
    timer: asyncio.TimerHandle
    """Closes it."""


class AdminConnections:
    """The connections. Those that show a dashboard stay; of the others, the oldest makes room for a new one."""

    def __init__(self) -> None:
        self.accept: web.Server | None = None
        """Makes the handler of a connection. Set it before `connected` is called."""
        self._places: dict[RequestHandler, _Place] = {}
        """The connections that show no dashboard, the oldest first."""

    def connected(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. If there are too many, the oldest one is closed for it."""
        assert self.accept is not None
        self._forget_closed(self.accept)
        viewers = sum(each not in self._places for each in self.accept.connections)
        if viewers + len(self._places) >= MAX_CONNECTIONS:
            oldest = next(iter(self._places), None)
            if oldest is None:
                return _Refused()
            self._close(oldest)
        handler, loop = self.accept(), asyncio.get_running_loop()
        self._places[handler] = _Place(loop.time(), False, loop.call_later(REQUEST_TIMEOUT, self._close, handler))
        return handler

    def asked(self, handler: RequestHandler) -> None:
        """Record that a connection has sent a request."""
        place = self._places.get(handler)
        if place is not None and not place.asked:
            place.timer.cancel()
            timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self._close, handler)
            self._places[handler] = _Place(place.came, True, timer)

    def views(self, handler: RequestHandler) -> None:
        """Record that a connection shows a dashboard from now on. Who shows it must see that it is read."""
        place = self._places.pop(handler, None)
        if place is not None:
            place.timer.cancel()

    def _forget_closed(self, server: web.Server) -> None:
        """Forget connections that are closed. asyncio calls connection_made in the turn after `connected`."""
        opened, soon = set(server.connections), asyncio.get_running_loop().time() - 1.0
        for handler in [each for each, place in self._places.items() if each not in opened and place.came < soon]:
            self.views(handler)

    def _close(self, handler: RequestHandler) -> None:
        self.views(handler)
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
