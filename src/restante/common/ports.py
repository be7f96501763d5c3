"""Ports in use: checked before slow imports, so that the error comes at once."""

from __future__ import annotations

import errno
import socket

from restante.common.settings import unusable


def refuse_taken(host: str | None, port: int, flag: str) -> None:
    """Raise Misuse if another program listens there. The port is not kept, so listening may still fail later.

    It binds as asyncio does (create_server: SO_REUSEADDR, IPV6_V6ONLY) and ignores every other error.
    """
    if not port:
        return
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise unusable(host, port, flag, error) from error
