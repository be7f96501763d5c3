"""The URL of a mailbox server, and how it is reached."""

from __future__ import annotations

import re
import ssl as tls
from typing import Final
from urllib.parse import urlsplit

import msgspec

from restante.client.arguments import is_integer
from restante.client.connection.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.errors import ServerGoneError
from restante.common.errors import Misuse

SCHEMES: Final = ("ws", "wss")
PROXY_SCHEMES: Final = ("socks5", "socks4", "http", "https")
SPACE: Final = re.compile(r"\s")


class ServerEndpoint(msgspec.Struct, frozen=True):
    """The URL of a server, its proxy, its TLS, and the options of its connection."""

    url: str
    """ws:// or wss://, with its path: shipped servers are at /v1."""
    proxy: str | None = None
    """socks5://, socks4://, http:// or https://, with USER:PASSWORD@ before the host if needed."""
    ssl: tls.SSLContext | None = None
    """How a wss:// server proves who it is. None: by the system's certificates."""
    max_work_bits: int = DEFAULT_MAX_BITS
    """The most work that is done if the server demands it."""
    options: ConnectionOptions = DEFAULT_OPTIONS
    """Its times and sizes."""

    def __post_init__(self) -> None:
        """Raise Misuse if one of them cannot be used."""
        _check(self.url, SCHEMES, "a server's URL")
        if self.proxy is not None:
            _check(self.proxy, PROXY_SCHEMES, "a proxy's URL")
        if self.ssl is not None and not isinstance(self.ssl, tls.SSLContext):
            raise Misuse(f"`ssl` is an ssl.SSLContext, not {self.ssl!r}")
        if not is_integer(self.max_work_bits, 0):
            raise Misuse(f"`max_work_bits` is a whole number, 0 or more, not {self.max_work_bits!r}")
        if not isinstance(self.options, ConnectionOptions):
            raise Misuse(f"`options` are ConnectionOptions, not {self.options!r}")

    @property
    def is_secure(self) -> bool:
        """Whether the server is reached with TLS."""
        return urlsplit(self.url).scheme == "wss"

    @property
    def has_secure_proxy(self) -> bool:
        """Whether the proxy is reached with TLS."""
        return self.proxy is not None and urlsplit(self.proxy).scheme == "https"

    def with_scheme(self, scheme: str) -> str:
        """Return the URL with another scheme."""
        return urlsplit(self.url)._replace(scheme=scheme).geturl()

    def with_path(self, path: str) -> str:
        """Return the URL with another path, and no query."""
        return urlsplit(self.url)._replace(path=path, query="", fragment="").geturl()

    @property
    def advice(self) -> str:
        """What to do about a server that hangs up, or that does not understand the scheme and waits for more."""
        if self.has_secure_proxy:
            return "try again later"  # it may be the proxy
        scheme, condition = ("ws", "has no TLS") if self.is_secure else ("wss", "has TLS")
        return f"check its host and port, write {self.with_scheme(scheme)} if it {condition}, or try again later"

    def no_answer(self, *, opened: bool) -> ServerGoneError:
        """Return the error for a server that sent nothing in time, on a WebSocket that is open, or before."""
        advice = f": {self.advice}" if self.is_secure and not opened else ""
        return ServerGoneError(f"{self.url} did not answer within {self.options.connect_seconds:g} s{advice}")


def _check(url: str, schemes: tuple[str, ...], what: str) -> None:
    beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
    requirement = f"{what} begins with {beginnings} and names a host, not {url!r}"
    if not isinstance(url, str):
        raise Misuse(requirement)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in schemes and parts.hostname and parts.hostname.encode("idna") and parts.port != 0
    except ValueError as error:
        raise Misuse(f"{requirement} ({error})") from error
    if not usable or SPACE.search(url):
        raise Misuse(requirement)
