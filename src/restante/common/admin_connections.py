"""The connections to the admin port: how many there may be, and how long one may wait before its request."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

MAX_CONNECTIONS: Final = 40
"""Connections to the admin port. Servers reserve 64 descriptors that no client gets, and need some of them for their
database."""

REQUEST_TIMEOUT: Final = 5.0
"""Seconds within which a connection must send its first request, and a request its body."""

KEEPALIVE_TIMEOUT: Final = 10.0
"""Seconds that a connection may be idle between two requests."""


class AdminConnections:
    """The connections that have sent no request yet, and those that have."""

    def __init__(self) -> None:
        self.accept: web.Server | None = None
        """Makes the handler of a connection. Set it before `connected` is called."""
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}
        """Connections that have sent no request yet, the oldest first, and the timers that close them."""

    def connected(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. If there are too many, the oldest silent one is closed for it."""
        assert self.accept is not None
        asked = sum(each not in self._silent for each in self.accept.connections)
        if asked + len(self._silent) >= MAX_CONNECTIONS:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return _Refused()
            self._close(oldest)
        handler = self.accept()
        self._silent[handler] = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT, self._close, handler)
        return handler

    def asked(self, handler: RequestHandler) -> None:
        """Record that a connection has sent a request."""
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def _close(self, handler: RequestHandler) -> None:
        self.asked(handler)
        loop = asyncio.get_running_loop()
        # asyncio calls connection_made in the turn of the loop after `connected`.
        loop.call_soon(loop.call_soon, handler.force_close)


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
