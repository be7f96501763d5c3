"""Where a server listens: HOST:PORT, unix:PATH and fd:N, and what connections there begin with."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from restante.common.errors import Misuse, plain
from restante.common.net import host_and_port, parse_networks
from restante.common.settings import cannot_listen, check_host_names, parse_address, unusable_address

FORMS: Final = "HOST:PORT, unix:PATH or fd:N, with plain: or proxy: before it if you wish"

MAX_DESCRIPTOR_DIGITS: Final = 9
"""Digits of a descriptor. It is an int of C, which has 31 bits."""

UNIX_MODE: Final = 0o666
"""Who may connect to a Unix socket: every process that may enter its directory, as on loopback. The proxy usually
runs as another user."""


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to listen, and what connections there begin with."""

    text: str
    """As the operator wrote it."""
    host: str | None = None
    """None: every interface, or it is no TCP address."""
    port: int = 0
    path: str = ""
    """The path of a Unix socket that the server opens. Empty for TCP and for inherited sockets."""
    descriptor: int = -1
    """A listening socket that the server was started with; -1: it opens one."""
    is_unix: bool = False
    """Whether it is a Unix socket."""
    proxied: bool = False
    """Whether connections begin with a PROXY header."""
    plain: bool = False
    """Whether connections have no TLS, although the server has a certificate."""

    def url(self, address: str, scheme: str, path: str) -> str:
        """Return a URL for people. `address` is where the socket listens. A Unix socket has no URL of its own."""
        return address if self.is_unix else f"{scheme}://{address}{path}"


def parse_listen_address(text: str, flag: str) -> ListenAddress:
    """Parse one address. Raises Misuse."""
    remaining, proxied, without_tls = text, False, False
    while True:
        if remaining.startswith("proxy:"):
            remaining, proxied = remaining.removeprefix("proxy:"), True
        elif remaining.startswith("plain:"):
            remaining, without_tls = remaining.removeprefix("plain:"), True
        else:
            break
    address = ListenAddress(text, proxied=proxied, plain=without_tls)
    kind, _, name = remaining.partition(":")
    if kind == "unix" and name:
        return msgspec.structs.replace(address, path=name, is_unix=True, plain=True)
    if kind == "fd" and name.isascii() and name.isdigit() and len(name) <= MAX_DESCRIPTOR_DIGITS:
        return _with_descriptor(address, int(name))
    try:
        host, port = parse_address(remaining, flag)
    except Misuse:
        examples = "127.0.0.1:4000, [::1]:4000, *:4000 or unix:/run/restante.sock"
        raise Misuse(f"{flag}: '{text}' is not {FORMS}, like {examples}") from None
    return msgspec.structs.replace(address, host=host, port=port)


def _with_descriptor(address: ListenAddress, descriptor: int) -> ListenAddress:
    """Return an address with its descriptor. A Unix socket has no TLS."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as tried:
            is_unix = tried.family == socket.AF_UNIX
    except OSError:
        is_unix = False  # `open_listener` says what is wrong with it
    return msgspec.structs.replace(address, descriptor=descriptor, is_unix=is_unix, plain=address.plain or is_unix)


def parse_listen_addresses(texts: Sequence[str], flag: str) -> list[ListenAddress]:
    """Parse the addresses of a server. Raises Misuse if the list is empty, or an address cannot be used."""
    if not texts:
        raise Misuse(f"{flag}: name at least one address: {FORMS}")
    return [parse_listen_address(text, flag) for text in texts]


def checked_addresses(
    texts: Sequence[str], admin: str, trusted: Sequence[str], origins: Mapping[str, str]
) -> list[ListenAddress]:
    """Parse `listen` of a server, and check it with the others. Raises Misuse that names their origins."""
    parse_networks(trusted, origins["trust_proxy"])
    addresses = parse_listen_addresses(texts, origins["listen"])
    ports = [(origins["listen"], address.host, address.port) for address in addresses if address.port]
    if admin != "off":
        ports.append((origins["admin"], *parse_address(admin, origins["admin"])))
    for (_, host, port), (origin, other_host, other_port) in itertools.combinations(ports, 2):
        if port and port == other_port and (host == other_host or None in {host, other_host}):
            raise Misuse(
                f"{origin}: the server listens on port {port} already ({origins['listen']}): name another port"
            )
    paths = [os.path.abspath(address.path) for address in addresses if address.path]  # noqa: PTH100 - NULs are refused later
    for path in paths:
        if paths.count(path) > 1:
            raise Misuse(f"{origins['listen']}: {path} is named twice: leave one out")
    for address in addresses:
        if address.proxied and not trusted:
            raise Misuse(
                f"{origins['listen']}: '{address.text}' needs a proxy that may name clients: name its network with"
                f" {origins['trust_proxy']}"
            )
    return addresses


def check_network(settings: Any, origins: Mapping[str, str]) -> None:
    """Check the addresses, the TLS files and the admin hosts of a server that has TLS. Raises Misuse."""
    checked_addresses(settings.listen, settings.admin, settings.trust_proxy, origins)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise Misuse(f"{origins['tls_cert']} and {origins['tls_key']} belong together: set both or neither")
    check_host_names(settings.admin_host, origins["admin_host"])


# ── addresses on which a server cannot listen: found before slow imports, so that the error comes at once ─


def refuse_unusable_addresses(texts: Sequence[str], flag: str, data: Path) -> None:
    """Raise Misuse if one of the addresses cannot be listened on. The data directory need not exist yet."""
    for address in parse_listen_addresses(texts, flag):
        if address.descriptor >= 0:
            _inherited_socket(address, flag).close()
        elif not address.path:
            refuse_unusable_address(address.host, address.port, flag)
        elif (folder := Path(address.path).parent).exists() or folder.absolute() != data.absolute():
            try:
                _is_abandoned(address.path, flag)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, "")
            except OSError as error:
                raise cannot_listen(address.text, flag, error) from error


def refuse_unusable_address(host: str | None, port: int, flag: str) -> None:
    """Raise Misuse if another program listens there, or if none of the host's addresses can be listened on.

    The port is not kept, so listening may still fail later. It binds as asyncio does (create_server: SO_REUSEADDR,
    IPV6_V6ONLY).
    """
    failure: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise unusable_address(host, port, flag, error) from error
    usable = False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(address)
                usable = True
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:
                break
    if failure is not None and (failure.errno == errno.EADDRINUSE or not usable):
        raise unusable_address(host, port, flag, failure) from failure


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────


async def open_listener(
    address: ListenAddress, protocol: Callable[[], Any], *, backlog: int, flag: str
) -> tuple[asyncio.Server, list[socket.socket], os.stat_result | None]:
    """Listen. Return the listener, duplicates of its sockets, and the status of a path that was bound.

    `protocol` makes the protocol of a connection. Raises Misuse if the address cannot be used.
    """
    loop = asyncio.get_running_loop()
    bound = None
    try:
        if address.path:
            unix_socket = bind_unix_socket(address.path, flag)
            bound = os.lstat(address.path)
            listener = await serve_socket(unix_socket, protocol, backlog=backlog)
        elif address.descriptor >= 0:
            listener = await serve_socket(_inherited_socket(address, flag), protocol, backlog=backlog)
        else:
            listener = await loop.create_server(protocol, address.host, address.port, backlog=backlog)
    except OSError as error:
        if address.path or address.descriptor >= 0:
            raise cannot_listen(address.text, flag, error) from error
        raise unusable_address(address.host, address.port, flag, error) from error
    return listener, [socket.socket(fileno=os.dup(sock.fileno())) for sock in listener.sockets], bound


async def serve_socket(listening: socket.socket, protocol: Callable[[], Any], *, backlog: int) -> asyncio.Server:
    """Accept connections of a socket that listens already or is bound."""
    loop = asyncio.get_running_loop()
    if listening.family == socket.AF_UNIX:
        # The path of an inherited socket is its owner's, and we listen on ours again after a shortage of descriptors.
        # `remove_path` removes it at the end. From Python 3.13 on, a server would remove it whenever it is closed.
        if sys.version_info >= (3, 13):
            return await loop.create_unix_server(protocol, sock=listening, backlog=backlog, cleanup_socket=False)
        return await loop.create_unix_server(protocol, sock=listening, backlog=backlog)
    return await loop.create_server(protocol, sock=listening, backlog=backlog)


def bind_unix_socket(path: str, flag: str) -> socket.socket:
    """Bind a Unix socket. A socket that nobody listens on any more is replaced. Raises Misuse and OSError."""
    if _is_abandoned(path, flag):
        Path(path).unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(path)
        Path(path).chmod(UNIX_MODE)
    except OSError:
        bound.close()
        raise
    return bound


def _is_abandoned(path: str, flag: str) -> bool:
    """Return whether a path is a socket that nobody listens on any more, and False if nothing is there.

    Raises Misuse if another program listens there, or something else has the path, and OSError.
    """
    with socket.socket(socket.AF_UNIX) as tried:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise Misuse(f"{flag}: {path} is there already and is no socket: name another path, or remove it")
            tried.setblocking(False)
            tried.connect(path)
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            pass  # its queue is full: who listens there is slow
        except FileNotFoundError:
            if not Path(path).parent.is_dir():
                raise
            return False
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:  # a socket of another type, which is in use
                raise
    raise cannot_listen(f"unix:{path}", flag, OSError(errno.EADDRINUSE, ""))


def _inherited_socket(address: ListenAddress, flag: str) -> socket.socket:
    """Return a listening socket that the server was started with (man 3 sd_listen_fds). Raises Misuse."""
    try:
        inherited = socket.socket(fileno=os.dup(address.descriptor))
    except OSError as error:
        raise Misuse(f"{flag}: {address.text} is no socket: {plain(error)}") from error
    usable = inherited.type == socket.SOCK_STREAM and inherited.family in {
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_UNIX,
    }
    if not usable or not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        inherited.close()
        raise Misuse(f"{flag}: {address.text} is not a listening socket of TCP or Unix")
    return inherited


def status_of(path: str) -> os.stat_result | None:
    """Return the status of the path of a Unix socket that this process has bound before. None: it has no path."""
    try:
        return os.lstat(path)
    except OSError:  # it is removed, or the path is empty, because it is a socket of TCP
        return None


def remove_path(address: ListenAddress, bound: os.stat_result | None) -> None:
    """Remove the path of a Unix socket that `open_listener` has bound, unless another file has taken it.

    Close the socket afterwards: until then no other file has its inode.
    """
    with contextlib.suppress(FileNotFoundError):
        if bound is not None and os.path.samestat(bound, os.lstat(address.path)):
            Path(address.path).unlink()


def shown_address(listening: socket.socket) -> str:
    """Return where a socket listens, as it is written in --listen."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    return host_and_port(*name[:2])
