"""The addresses of this computer at which a peer may reach it."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915
"""Linux: the IPv4 address of an interface (netdevice(7))."""

_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
"""Linux: a line for each IPv6 address, which begins with it in hex (proc(5))."""


def own_addresses() -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses of this computer's interfaces. Loopback addresses are returned if there are no others."""
    found = {(socket.AF_INET, ipaddress.ip_address(each)) for each in _ipv4()}
    found |= {(socket.AF_INET6, ipaddress.ip_address(each)) for each in _ipv6()}
    usable = {each for each in found if not (each[1].is_loopback or each[1].is_link_local)}
    loopback = {each for each in found if each[1].is_loopback}
    return sorted((family, str(address)) for family, address in usable or loopback)


def _ipv4() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _ipv6() -> list[str]:
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # no IPv6
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines]
