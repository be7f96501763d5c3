"""PROXY headers as a proxy sends them."""

from __future__ import annotations

import ipaddress
import struct

from restante.common.proxy_header import PROXY, SIGNATURE

# The families of addresses (section 2.2): TCP over IPv4 and IPv6, a Unix socket, another protocol.
TCP4, TCP6, UNIX, UNKNOWN = 0x11, 0x21, 0x31, 0x00


def header(source: str = "203.0.113.7", port: int = 4321, *, command: int = PROXY, more: bytes = b"") -> bytes:
    """Build a header of version 2 (proxy-protocol.txt, section 2.2)."""
    address = ipaddress.ip_address(source)
    here = bytes(len(address.packed))
    rest = address.packed + here + struct.pack("!HH", port, 443) + more
    return SIGNATURE + bytes([command, TCP4 if address.version == 4 else TCP6]) + struct.pack("!H", len(rest)) + rest


def line(source: str = "203.0.113.7", port: int = 4321) -> bytes:
    """Build a header of version 1 (section 2.1)."""
    family, here = ("TCP6", "::1") if ":" in source else ("TCP4", "127.0.0.1")
    return f"PROXY {family} {source} {here} {port} 443\r\n".encode()
