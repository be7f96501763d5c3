"""A node's address and public key: `enode://<public key, 128 hex digits>@<host>:<port>[?discport=<port>]`.

Sources: ethereum.org "enode URL scheme"; geth p2p/enode/urlv4.go:71,110-166. `discport` is the UDP port of node
discovery, if it differs from the TCP port; 0 means no discovery. It is parsed and written, because others use it;
we have no discovery. Of several, the first counts, and other fields are ignored, as in geth.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec

from restante.common.errors import Misuse, PeerError
from restante.waku.envelope import keys

_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*"
    r"(?!\d+\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
)
"""A DNS name (RFC 1123 section 2.1). Underscores are allowed. The last label must not be all digits, as in an IPv4
address."""


class Enode(msgspec.Struct, frozen=True, gc=False):
    """A node's address and public key. `str` of it is the URL."""

    public: bytes
    """The public key: 64 bytes, X and Y (`keys.PUBLIC_BYTES`)."""
    host: str
    """An IPv4 or IPv6 address, without brackets, or a DNS name."""
    port: int
    discport: int | None = None
    """The UDP port of node discovery. None: the same as the TCP port."""

    @property
    def address(self) -> str:
        """Host and port in the usual notation."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        query = "" if self.discport in {None, self.port} else f"?discport={self.discport}"
        return f"enode://{self.public.hex()}@{self.address}{query}"


def parse(url: str) -> Enode:
    """Parse an enode URL, which may have white space around it. Raises Misuse that says what is wrong with it."""
    try:
        return _parse_parts(urlsplit(url.strip()))
    except ValueError as error:
        raise Misuse(f"not an enode URL: {url!r}: {error}") from None


def as_enode(enode: Enode | str) -> Enode:
    """Return the enode, or parse its URL. Raises Misuse."""
    return parse(enode) if isinstance(enode, str) else enode


def _parse_parts(split: SplitResult) -> Enode:
    port = split.port
    if split.scheme != "enode":
        raise ValueError("it does not begin with enode://")
    if split.path.strip("/") or split.fragment or split.password is not None:
        raise ValueError("it has more than a key, a host, a port and a query")
    if not port:
        raise ValueError("it has no port above 0")
    public = _parse_public_key(split.username)
    return Enode(public, _parse_host(split.hostname or ""), port, _parse_discport(split.query))


def _parse_public_key(digits: str | None) -> bytes:
    if digits is None or not re.fullmatch(f"[0-9A-Fa-f]{{{keys.PUBLIC_BYTES * 2}}}", digits):
        raise ValueError(f"it has no public key of {keys.PUBLIC_BYTES * 2} hex digits before the @")
    public = bytes.fromhex(digits)
    try:
        keys.check(public)
    except PeerError as error:
        raise ValueError(error.text) from None
    return public


def _parse_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        if not _DNS_NAME.fullmatch(host):
            raise ValueError("it has no host that is an address or a name") from None
        return host


def _parse_discport(query: str) -> int | None:
    values = parse_qs(query, keep_blank_values=True).get("discport")
    if values is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", values[0]) or int(values[0]) > 0xFFFF:
        raise ValueError("its discport is not a port")
    return int(values[0])
