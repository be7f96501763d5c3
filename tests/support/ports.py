"""Ports that stay free until they are used."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final


@contextmanager
def held_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Hold a port for servers: bound, but not listening; with SO_REUSEADDR they may bind it, too (man 7 socket)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port: int = holder.getsockname()[1]
        yield port


@contextmanager
def held_everywhere() -> Iterator[int]:
    """Hold a port of all addresses: another test may get the port that `held_port` holds on another address."""
    if not socket.has_dualstack_ipv6():
        with held_port("0.0.0.0") as port:
            yield port
        return
    with socket.socket(socket.AF_INET6) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("::", 0))
        yield holder.getsockname()[1]


def kept_port(host: str = "127.0.0.1") -> int:
    return _kept.enter_context(held_port(host))


@functools.cache
def nobodys_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens as long as this process runs."""
    return kept_port()


_kept: Final = ExitStack()
