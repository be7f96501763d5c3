"""The URL of a mailbox server, and how it is reached."""

from __future__ import annotations

import ssl as tls
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from restante.client.arguments import is_integer
from restante.client.connection.options import DEFAULT_OPTIONS, ConnectionOptions
from restante.client.connection.work import DEFAULT_MAX_BITS
from restante.client.errors import ServerGoneError
from restante.common.errors import Misuse
from restante.common.texts import redacted_url

SCHEMES: Final = ("ws", "wss")
WEBSOCKET_SCHEMES: Final = {"http": "ws", "https": "wss"}
"""What to write for the scheme of a web page."""

PROXY_SCHEMES: Final = ("socks5", "socks4", "http", "https")

SERVER_EXAMPLE: Final = "wss://example.org/v1"
PROXY_EXAMPLE: Final = "socks5://example.org:1080"


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
        check_server_url(self.url)
        if self.proxy is not None:
            check_proxy_url(self.proxy)
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
        advice = "" if opened else f": {self.advice}"
        return ServerGoneError(f"{self.url} did not answer within {self.options.connect_seconds:g} s{advice}")


def check_server_url(url: object) -> None:
    """Raise Misuse if no mailbox server can have a URL. Its text does not show a password."""
    if isinstance(url, str) and "@" in url:  # RFC 6455 section 3
        raise _misuse("a server's URL has no user and no password: leave out what is before the @ of", url)
    parts = _parts(url, "a server's URL", SCHEMES, SERVER_EXAMPLE)
    if parts.fragment:
        raise _misuse("a server's URL has no fragment: leave out the # of", parts.geturl())


def check_proxy_url(url: object) -> None:
    """Raise Misuse if no proxy can have a URL. Its text does not show a password."""
    parts = _parts(url, "a proxy's URL", PROXY_SCHEMES, PROXY_EXAMPLE)
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise _misuse("a proxy's URL has no path: leave out what is behind the port of", parts.geturl())
    if parts.port is None:
        raise _misuse(f"a proxy's URL has a port, like {PROXY_EXAMPLE}, not", parts.geturl())
    if parts.username is not None and parts.password is None:
        raise _misuse(
            "a proxy's URL has USER:PASSWORD@ before the host, also without a password, not", parts.geturl()
        )


def _parts(url: object, kind: str, schemes: tuple[str, ...], example: str) -> SplitResult:
    """Return the parts of a URL with one of the schemes, a host, and a valid port if any. Raises Misuse."""
    beginnings = ", ".join(f"{scheme}://" for scheme in schemes[:-1]) + f" or {schemes[-1]}://"
    if not isinstance(url, str):
        raise Misuse(f"{kind} begins with {beginnings} and is a text, not {type(url).__name__}")
    if " " in url or not url.isprintable():
        raise _misuse(f"{kind} has no spaces and no control characters, not", url)
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        raise _misuse(f"{kind} has a valid host, not", url) from None
    if parts.scheme not in schemes:
        scheme, path = WEBSOCKET_SCHEMES.get(parts.scheme), parts.path if parts.path not in {"", "/"} else "/v1"
        advice = f": write {parts._replace(scheme=scheme, path=path).geturl()}" if scheme in schemes else ""
        raise Misuse(f"{_misuse(f'{kind} begins with {beginnings}, like {example}, not', url)}{advice}")
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise _misuse(f"{kind} has %2F, %3F and %23 for a /, ? and # in its password, not", url)
    if not host:
        raise _misuse(f"{kind} names a host, like {example}, not", url)
    try:
        is_valid = parts.port != 0
    except ValueError:  # its text has what may be a part of a password
        is_valid = False
    if not is_valid:
        raise _misuse(f"{kind} has a port from 1 to 65535, not", url)
    return parts


def _misuse(requirement: str, url: str) -> Misuse:
    return Misuse(f"{requirement} '{redacted_url(url)}'")
