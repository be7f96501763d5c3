"""Addresses, and whom they count as: an IPv4 address, or an IPv6 /64, which is what one household gets."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


LONGEST: Final = 60
"""Characters of an address: 39, and a zone."""


def read(text: str) -> Address | None:
    """Read an address, an IPv4 one also where it is written as IPv6; None where it is none."""
    return _read(text) if len(text) <= LONGEST else None


@lru_cache(1024)  # to read one takes 8 µs, and each connection does it twice
def _read(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def household(address: Address) -> bytes:
    """Give what is the same for all addresses that count as one: 4 bytes, or 8."""
    return address.packed if address.version == 4 else address.packed[:8]


def shown(text: str) -> str:
    """Give the household of an address that is written, for people; what is no address is given as it is."""
    if ":" not in text:
        return text  # an IPv4 address has one form, and to find that out takes 8 µs of each connection
    address = read(text)
    if address is None or address.version == 4:
        return text if address is None else str(address)
    return str(ipaddress.IPv6Network((household(address) + bytes(8), 64)))
