"""The PROXY protocol: the header with which a proxy or load balancer names the client of a connection.

Source: haproxy/doc/proxy-protocol.txt, section 2.1 for version 1, section 2.2 for version 2, and section 2.2.1 to
2.2.8 for what may follow the addresses in the latter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from restante.common.net import Network, is_in_any, parse_ip

SHORTEST_BYTES: Final = 15
"""Bytes of the shortest header, which is a line of version 1 without addresses."""

MAX_LINE_BYTES: Final = 107
"""Bytes of a line of version 1, with its end (section 2.1)."""

_LINE_BEGINNINGS: Final = (b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN")

_WITHOUT_CLIENT: Final = re.compile(rb"PROXY UNKNOWN( [^\r\n]*)?\r\n")

_LINE: Final = re.compile(
    rb"PROXY TCP(?P<version>[46]) (?P<source>[0-9A-Fa-f.:]+) (?P<destination>[0-9A-Fa-f.:]+)"
    rb" (?P<port>0|[1-9][0-9]{0,4}) (?P<destination_port>0|[1-9][0-9]{0,4})\r\n"
)

_SPACES: Final = 5
"""Spaces of a line with addresses."""

_ADDRESSES: Final = {b"4": ipaddress.IPv4Address, b"6": ipaddress.IPv6Address}
"""Parsers of addresses. That of IPv4 refuses leading zeros, as section 2.1 demands. That of IPv6 also reads
`::ffff:203.0.113.7`, which nginx, HAProxy and stunnel write for a client of IPv4 on a socket of IPv6."""

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first bytes of version 2."""

START_BYTES: Final = 16
"""Bytes of version 2 up to the addresses: the signature, version and command, address family, and the size of the
rest."""

MAX_REST_BYTES: Final = 2048
"""Bytes after that. Addresses take at most 216. Proxies add fields such as the name in a TLS handshake, at most 255
bytes, or an identifier of a network. A client certificate would not fit; nobody here reads it."""

LOCAL: Final = 0x20
PROXY: Final = 0x21
"""Version 2 and the command. LOCAL: the proxy itself has connected, for a health check."""

_TCP: Final = {0x11: "!4s4sHH", 0x21: "!16s16sHH"}
"""Address families: TCP over IPv4 and over IPv6, with the layout of the addresses."""


class SocketPeer(NamedTuple):
    """The address of the other end of a connection, as in the `peername` of a transport."""

    host: str
    port: int


THIS_MACHINE: Final = SocketPeer("127.0.0.1", 0)
"""The peer on a Unix socket: a process of this machine."""


def peer_of(transport: asyncio.Transport) -> SocketPeer | None:
    """Return the other end of a connection, or None if it is closed already."""
    if transport.get_extra_info("socket").family == socket.AF_UNIX:
        return THIS_MACHINE
    name = transport.get_extra_info("peername")
    return SocketPeer(*name[:2]) if name else None


def is_trusted(peer: SocketPeer, proxies: Sequence[Network]) -> bool:
    """Return whether a peer is one of the proxies."""
    address = parse_ip(peer.host)
    return address is not None and is_in_any(address, proxies)


def missing_bytes(header: bytes | bytearray) -> int | None:
    """Return how many bytes a header still has at least, after its beginning. 0: it is complete. None: this is none.

    The beginning has SHORTEST_BYTES or more.
    """
    if header.startswith(_LINE_BEGINNINGS):
        return _missing_of_line(header)
    if not header.startswith(SIGNATURE) or header[12] not in {LOCAL, PROXY}:
        return None
    if len(header) < START_BYTES:
        return START_BYTES - len(header)
    size = int.from_bytes(header[14:START_BYTES])
    return START_BYTES + size - len(header) if size <= MAX_REST_BYTES else None


def _missing_of_line(line: bytes | bytearray) -> int | None:
    if line.endswith(b"\r\n"):
        return 0
    if b"\n" in line or len(line) >= MAX_LINE_BYTES:
        return None
    if line.endswith(b"\r"):
        return 1
    spaces = 0 if line.startswith(b"PROXY UNKNOWN") else max(0, _SPACES - line.count(b" "))
    # Each field has a character or more after its space; then the line ends with two.
    return min(2 * spaces + 2, MAX_LINE_BYTES - len(line))


def client_of_header(header: bytes | bytearray, proxy: SocketPeer) -> SocketPeer | None:
    """Return the client that a complete header names, or the proxy if it names none. None: the header is malformed.

    It names none if the proxy speaks for itself (LOCAL), or if its client came over another protocol than TCP.
    """
    return _client_of_line(bytes(header), proxy) if header.startswith(b"PROXY") else _client_of_binary(header, proxy)


def _client_of_line(line: bytes, proxy: SocketPeer) -> SocketPeer | None:
    if _WITHOUT_CLIENT.fullmatch(line):
        return proxy
    fields = _LINE.fullmatch(line)
    if fields is None:
        return None
    address, port = _ADDRESSES[fields["version"]], int(fields["port"])
    try:
        source, _ = (address(fields[name].decode()) for name in ("source", "destination"))
    except ValueError:
        return None
    return SocketPeer(str(source), port) if max(port, int(fields["destination_port"])) <= 65535 else None


def _client_of_binary(header: bytes | bytearray, proxy: SocketPeer) -> SocketPeer | None:
    layout = _TCP.get(header[13])
    if header[12] == LOCAL or layout is None:
        return proxy
    if len(header) < START_BYTES + struct.calcsize(layout):
        return None
    source, _, port, _ = struct.unpack_from(layout, header, START_BYTES)
    return SocketPeer(str(ipaddress.ip_address(source)), port)


class ProxyHeaderReader(asyncio.BufferedProtocol):
    """Reads the header of a connection from a proxy, and nothing after it, and then hands the connection over."""

    def __init__(
        self,
        trusts: Callable[[SocketPeer], bool],
        timeout: float,
        deliver: Callable[[SocketPeer], asyncio.BaseProtocol],
        refuse: Callable[[SocketPeer], None],
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepare to read.

        `trusts` says whether a peer is a proxy. `deliver` returns the protocol for a client. `refuse` is called with
        the peer if it is no proxy, if no header came within `timeout` seconds, or a malformed one. Then the
        connection is closed. `count` is called with 1 when a header is awaited, and with -1 when it is no longer.
        """
        self._trusts, self._count = trusts, count
        self._timeout = timeout
        self._deliver = deliver
        self._refuse = refuse
        self._header = bytearray(SHORTEST_BYTES)
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
        self._count(1)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()

    def get_buffer(self, _size: int) -> memoryview:
        """Return the room for what is certainly part of the header. So what follows it stays in the kernel."""
        return memoryview(self._header)[self._read :]

    def buffer_updated(self, size: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._read += size
        if self._read < len(self._header):
            return
        missing = missing_bytes(self._header)
        if missing:
            self._header = self._header + bytes(missing)  # the transport may still use a view of the one before
            return
        client = None if missing is None else client_of_header(self._header, self._proxy)
        if client is None:
            self._give_up()
        else:
            self._hand_over(client)

    def _hand_over(self, client: SocketPeer) -> None:
        assert self._transport is not None
        self._end()
        protocol = self._deliver(client)
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
            self._count(-1)
