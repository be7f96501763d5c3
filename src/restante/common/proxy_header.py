"""The PROXY protocol, version 2: the header with which a proxy or load balancer names the client of a connection.

Source: haproxy/doc/proxy-protocol.txt, section 2.2, and section 2.2.1 to 2.2.8 for what may follow the addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from restante.common.net import Network, in_any, read

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"

START_BYTES: Final = 16
"""Bytes up to the addresses: the signature, version and command, address family, and the size of the rest."""

MAX_REST_BYTES: Final = 2048
"""Bytes after that. Addresses take at most 216. Proxies add fields such as the name in a TLS handshake, at most 255
bytes, or an identifier of a network. A client certificate would not fit; nobody here reads it."""

LOCAL: Final = 0x20
PROXY: Final = 0x21
"""Version 2 and the command. LOCAL: the proxy itself has connected, for a health check."""

_TCP: Final = {0x11: "!4s4sHH", 0x21: "!16s16sHH"}
"""Address families: TCP over IPv4 and over IPv6, with the layout of the addresses."""


class Peer(NamedTuple):
    """The other end of a connection, as in the `peername` of a transport."""

    host: str
    port: int


THIS_MACHINE: Final = Peer("127.0.0.1", 0)
"""The peer on a Unix socket: a process of this machine."""


def peer_of(transport: asyncio.Transport) -> Peer | None:
    """Return the other end of a connection, or None if it is closed already."""
    if transport.get_extra_info("socket").family == socket.AF_UNIX:
        return THIS_MACHINE
    name = transport.get_extra_info("peername")
    return Peer(*name[:2]) if name else None


def is_trusted(peer: Peer, proxies: Sequence[Network]) -> bool:
    """Return whether a peer is one of the proxies."""
    address = read(peer.host)
    return address is not None and in_any(address, proxies)


def rest_bytes(start: bytes | bytearray) -> int | None:
    """Return how many bytes follow the first START_BYTES of a header. None: this is no header of version 2."""
    size = int.from_bytes(start[14:16])
    known = bytes(start[:12]) == SIGNATURE and start[12] in {LOCAL, PROXY} and size <= MAX_REST_BYTES
    return size if known else None


def client(start: bytes | bytearray, rest: bytes | bytearray, proxy: Peer) -> Peer | None:
    """Return the client that a header names, or the proxy if it names none. None: the header is malformed.

    It names none if the proxy speaks for itself (LOCAL), or if its client came over another protocol than TCP.
    """
    layout = _TCP.get(start[13])
    if start[12] == LOCAL or layout is None:
        return proxy
    if len(rest) < struct.calcsize(layout):
        return None
    source, _, port, _ = struct.unpack_from(layout, rest)
    return Peer(str(ipaddress.ip_address(source)), port)


class ProxyHeaderReader(asyncio.BufferedProtocol):
    """Reads the header of a connection from a proxy, and nothing after it, and then hands the connection over."""

    def __init__(
        self,
        trusts: Callable[[Peer], bool],
        timeout: float,
        deliver: Callable[[Peer], asyncio.BaseProtocol],
        refuse: Callable[[Peer], None],
    ) -> None:
        """Prepare to read.

        `trusts` says whether a peer is a proxy. `deliver` returns the protocol for a client. `refuse` is called with
        the peer if it is no proxy, if no header came within `timeout` seconds, or a malformed one. Then the
        connection is closed.
        """
        self._trusts = trusts
        self._timeout = timeout
        self._deliver = deliver
        self._refuse = refuse
        self._start = bytearray(START_BYTES)
        self._rest: bytearray | None = None
        self._read = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        peer = peer_of(self._transport)
        if peer is None:  # the connection is closed already
            self._transport.abort()
            return
        self._proxy = peer
        if not self._trusts(peer):
            self._give_up()
            return
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._give_up)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()

    def get_buffer(self, _size: int) -> memoryview:
        """Return the room for the part that is being read. So what follows the header stays in the kernel."""
        return memoryview(self._part)[self._read :]

    def buffer_updated(self, size: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._read += size
        if self._read < len(self._part):
            return
        if self._rest is None:
            left = rest_bytes(self._start)
            if left is None:
                self._give_up()
                return
            self._rest, self._read = bytearray(left), 0
            if left:
                return
        self._hand_over(self._rest)

    @property
    def _part(self) -> bytearray:
        return self._start if self._rest is None else self._rest

    def _hand_over(self, rest: bytearray) -> None:
        named = client(self._start, rest, self._proxy)
        if named is None:
            self._give_up()
            return
        assert self._transport is not None
        self._end()
        protocol = self._deliver(named)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)

    def _give_up(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._refuse(self._proxy)
            self._transport.abort()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
