"""The client of a connection: its address, from the connection and from the headers of a trusted proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from restante.common.net import Address, Network, is_in_any, parse_ip


class Client(msgspec.Struct, frozen=True, gc=False):
    """The client of a connection, as far as the server can know it."""

    address: Address
    port: int
    """The client's port; 0: not known."""
    counted: bool
    """Whether limits per address apply. They do not apply to a loopback or private peer, which may stand for many
    clients, unless it is a trusted proxy that names the client."""
    untrusted_proxy: bool = False
    """Whether the peer may be a proxy that names its clients but is not trusted."""
    other_address: Address | None = None
    """The address in X-Real-IP if X-Forwarded-For names another; the proxy's if X-Real-IP cannot be parsed. The
    client may have forged one of the headers."""


def identify(peer: Sequence[Any], headers: Mapping[str, str], trusted: Sequence[Network]) -> Client:
    """Return the client of a connection from this peer, whose request had these headers.

    Headers count only if the peer is a trusted proxy. The client's address is then the last entry of X-Forwarded-For
    that is not a trusted proxy, or X-Real-IP if there is no X-Forwarded-For. If both are present and differ,
    `other_address` is the address in X-Real-IP. Repeated headers must be joined with commas. A header whose address
    cannot be parsed names the proxy itself.
    """
    address, shared = _peer_address(str(peer[0]))
    forwarded, real = headers.get("X-Forwarded-For"), headers.get("X-Real-IP")
    if not (trusted and is_in_any(address, trusted)):
        return Client(address, int(peer[1]), counted=not shared, untrusted_proxy=shared and bool(forwarded or real))
    real_ip = parse_ip(_without_port((real or "").rpartition(",")[2].strip()))
    named_address = _last_untrusted(forwarded, trusted) if forwarded else real_ip
    if real and real_ip is None:
        other_address = None if named_address is None else address
    else:  # if one proxy is behind another, its X-Real-IP may be the other proxy
        other_address = (
            None if real_ip is None or real_ip == named_address or is_in_any(real_ip, trusted) else real_ip
        )
    if named_address is None:
        return Client(address, int(peer[1]), counted=bool(forwarded or real), other_address=other_address)
    port = headers.get("X-Real-Port", "").rpartition(",")[2].strip()
    readable = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return Client(named_address, int(port) if readable else 0, counted=True, other_address=other_address)


_PRIVATE: Final = [
    # RFC 1918, RFC 3927, RFC 4193, RFC 4291. Python's is_private includes more networks, which are routed or unused.
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
]


@lru_cache(1024)  # checking all private networks takes 10 µs
def _peer_address(text: str) -> tuple[Address, bool]:
    """Return the address, and whether it is loopback or private, so that many clients may share it."""
    address = parse_ip(text)
    assert address is not None, "the kernel returns valid addresses"
    return address, address.is_loopback or is_in_any(address, _PRIVATE)


def _last_untrusted(forwarded: str, trusted: Sequence[Network]) -> Address | None:
    """Return the last entry that is not a trusted proxy, or None if that entry cannot be parsed.

    Only the last 16 entries are checked. If all of them are trusted proxies, return the first of them.
    """
    address = None
    for entry in reversed(forwarded.split(",")[-16:]):
        address = parse_ip(_without_port(entry.strip()))
        if address is None or not is_in_any(address, trusted):
            return address
    return address


def _without_port(entry: str) -> str:
    """Return an address without its port: 192.0.2.1:443, [2001:db8::1]:443."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry
