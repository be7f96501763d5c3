"""Who is at the other end of a connection, and what a trusted proxy says about it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from restante.common.net import Address, read

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Client(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end, as far as we can know."""

    address: Address
    port: int
    """0: not known."""
    counted: bool
    """Limits per address apply. They do not to a loopback or private peer, behind which anybody may be, unless it is
    a trusted proxy that says who."""
    unheeded: bool = False
    """It may be a proxy that names its clients, and is not trusted."""
    other: Address | None = None
    """What X-Real-IP says, where X-Forwarded-For says something else. The client may have invented one of them."""


def identify(peer: Sequence[Any], headers: Mapping[str, str], trusted: Sequence[Network]) -> Client:
    """Find out who is at the other end of a connection from this peer, whose request had these headers.

    What a header says counts only if a trusted proxy said it. Of X-Forwarded-For that is its last entry that is not
    a trusted proxy's own; without one, X-Real-IP. Where both are there and differ, what X-Real-IP says is `other`. A
    header that is there more than once is given with commas. Clients that a proxy names in a way that cannot be read
    count together, as the proxy.
    """
    address = read(str(peer[0]))
    assert address is not None, "the kernel knows its addresses"
    hidden = _hidden(address)
    forwarded, real = headers.get("X-Forwarded-For"), headers.get("X-Real-IP")
    if not _among(address, trusted):
        return Client(address, int(peer[1]), counted=not hidden, unheeded=hidden and bool(forwarded or real))
    real_ip = read((real or "").rpartition(",")[2].strip())
    named = _last_stranger(forwarded, trusted) if forwarded else real_ip
    # To a proxy behind another one, X-Real-IP may be the other proxy.
    other = None if real_ip is None or real_ip == named or _among(real_ip, trusted) else real_ip
    if named is None:
        return Client(address, int(peer[1]), counted=bool(forwarded or real), other=other)
    port = headers.get("X-Real-Port", "").rpartition(",")[2].strip()
    readable = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return Client(named, int(port) if readable else 0, counted=True, other=other)


_PRIVATE: Final = [
    # RFC 1918, RFC 3927, RFC 4193, RFC 4291. Python's is_private has more, which are routed, or nobody's.
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
]


@lru_cache(1024)  # to look through all private networks takes 10 µs
def _hidden(address: Address) -> bool:
    """Return whether the address is loopback or private, so that many clients may share it."""
    return address.is_loopback or _among(address, _PRIVATE)


def _last_stranger(forwarded: str, trusted: Sequence[Network]) -> Address | None:
    named = None
    for entry in reversed(forwarded.split(",")[-16:]):
        named = read(_bare(entry.strip()))
        if named is None or not _among(named, trusted):
            return named
    return named


def _bare(entry: str) -> str:
    """Take away a port: 192.0.2.1:443, [2001:db8::1]:443."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _among(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def networks(texts: Sequence[str]) -> list[Network]:
    """Read networks like 127.0.0.0/8 and ::1. Raises ValueError, whose text says what is wrong."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]
