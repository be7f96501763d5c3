"""Addresses on which a server cannot listen: found before slow imports, so that the error comes at once."""

from __future__ import annotations

import errno
import socket

from restante.common.settings import unusable


def refuse_unusable(host: str | None, port: int, flag: str) -> None:
    """Raise Misuse if another program listens there, or if none of the host's addresses can be listened on.

    The port is not kept, so listening may still fail later. It binds as asyncio does (create_server: SO_REUSEADDR,
    IPV6_V6ONLY).
    """
    failed: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise unusable(host, port, flag, error) from error
    usable = False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(where)
                usable = True
        except OSError as error:
            failed = error
            if error.errno == errno.EADDRINUSE:
                break
    if failed is not None and (failed.errno == errno.EADDRINUSE or not usable):
        raise unusable(host, port, flag, failed) from failed
