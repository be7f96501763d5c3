"""Transports of Unix sockets for picows, which sets options of TCP on every socket (2.3.1: picows.pyx:1335)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast


class _Options:
    """A Unix socket to which options of TCP do not matter."""

    def __init__(self, of: socket.socket) -> None:
        self._of = of

    def setsockopt(self, level: int, *option: Any) -> None:
        if level != socket.IPPROTO_TCP:
            self._of.setsockopt(level, *option)

    def getsockopt(self, level: int, *option: Any) -> int | bytes:
        return 0 if level == socket.IPPROTO_TCP else self._of.getsockopt(level, *option)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class _UnixTransport:
    """A transport with such a socket."""

    def __init__(self, of: asyncio.Transport) -> None:
        self._of = of

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = self._of.get_extra_info(name, default)
        return _Options(found) if name == "socket" else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def for_picows(transport: asyncio.Transport) -> asyncio.Transport:
    """Return a transport on which picows may set options of TCP. That of a TCP connection is returned unchanged."""
    if transport.get_extra_info("socket").family != socket.AF_UNIX:
        return transport
    return cast("asyncio.Transport", _UnixTransport(transport))
