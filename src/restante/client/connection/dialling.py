"""Opening a TCP connection to a host, also through a proxy."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from restante.client.tasks import threaded


async def dial(host: str, port: int, max_addresses: int | None = None) -> socket.socket:
    """Return a connection to one of a name's addresses, which are tried one after the other.

    Raises OSError, or UnicodeError if the host is no name.
    """
    failure = OSError("the name has no address")
    for family, kind, protocol, _, address in (await _resolve(host, port))[:max_addresses]:
        dialled = socket.socket(family, kind, protocol)
        dialled.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(dialled, address)
        except OSError as error:
            failure = error
            dialled.close()
        except BaseException:
            dialled.close()
            raise
        else:
            return dialled
    raise failure


async def dial_through(proxy: str, host: str, port: int) -> socket.socket:
    """Return a connection through a proxy, socks5://, socks4:// or http://. Raises python_socks.ProxyError."""
    from python_socks import ProxyError  # only a connection through a proxy needs it
    from python_socks.async_.asyncio import Proxy

    if urlsplit(proxy).scheme == "https":
        raise ProxyError("files cannot go through an https:// proxy: name it as http://, or another one")
    return await Proxy.from_url(proxy).connect(host, port)


async def _resolve(host: str, port: int) -> list[Any]:
    """Return what socket.getaddrinfo does. Only a name is looked up, which may take long."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, socket.SOCK_STREAM, 0, "", (host, port))]
    return await threaded(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
