"""IP addresses, and the unit that limits apply to: an IPv4 address, or an IPv6 /64, which one household gets."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from restante.common.errors import Misuse

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

EVERYBODY_TRUSTED: Final = (
    "--trust-proxy covers all addresses: a client of another machine can claim any address, and evade the limits of"
    " one address. Name the networks of your proxies"
)

MAX_ADDRESS_CHARACTERS: Final = 60
"""Maximum characters of an address: 39, and a zone."""


def parse_ip(text: str) -> Address | None:
    """Parse an address; None if it is none. An IPv4 address in IPv6 form is returned as IPv4."""
    return _parse_ip(text) if len(text) <= MAX_ADDRESS_CHARACTERS else None


@lru_cache(1024)  # parsing takes 8 µs, and each connection does it twice
def _parse_ip(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(1024)  # as long as parsing, and each connection is told its address
def address_text(address: Address) -> str:
    """Return an address as text."""
    return str(address)


def parse_networks(texts: Sequence[str], flag: str) -> list[Network]:
    """Parse networks like 127.0.0.0/8 and ::1. Raises Misuse."""
    try:
        return [ipaddress.ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise Misuse(f"{flag}: {error}; write a network like 127.0.0.0/8 or fd00::/8") from error


def is_in_any(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    return any(address in network for network in networks)


def trusts_everybody(proxies: Sequence[Network], listening: Iterable[str]) -> bool:
    """Return whether every address counts as a proxy, and other machines reach one of those where we listen."""
    hosts = [parse_ip(text.rpartition(":")[0].strip("[]")) for text in listening]
    is_reachable = any(host is not None and not host.is_loopback for host in hosts)
    return is_reachable and any(network.prefixlen == 0 for network in proxies)


def household(address: Address) -> bytes:
    """Return the bytes that all addresses of a household share: 4 of IPv4, 8 of IPv6."""
    return address.packed if address.version == 4 else address.packed[:8]


def site_of(text: str) -> str:
    """Return the site of a household, both as text: the IPv4 address itself, or the IPv6 /56.

    A customer of a provider gets a /56 or more (RIPE-690, 4.2). Text that is no address is returned unchanged.
    """
    return _prefix(text, 56) if ":" in text else text


def network_of(text: str) -> str:
    """Return the network of a household, both as text: the IPv4 /24 or the IPv6 /48. Each has 256 sites.

    Many customers have several sites of a network: providers also give a /48 to one customer (RIPE-690, 4.2). Text
    that is no address is returned unchanged.
    """
    return _prefix(text, 48 if ":" in text else 24)


def _prefix(text: str, bits: int) -> str:
    address = parse_ip(text.partition("/")[0])
    return text if address is None else str(ipaddress.ip_network((address.packed, bits), strict=False))


def host_and_port(host: str, port: int) -> str:
    """Return an address as it is in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def household_text(text: str) -> str:
    """Return the household of an address as text. Text that is no address is returned unchanged."""
    if ":" not in text:
        return text  # an IPv4 address has one form, and parsing would cost each connection 8 µs
    address = parse_ip(text)
    if address is None or address.version == 4:
        return text if address is None else str(address)
    return str(ipaddress.IPv6Network((household(address) + bytes(8), 64)))
