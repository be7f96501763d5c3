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
from restante.common.net import networks
from restante.common.settings import address, cannot_listen, unusable

# ──────────
# Addresses on which a server cannot listen: found before slow imports, so that the error comes at once.
#


def refuse_unusable(host: str | None, port: int, flag: str) -> None:
    """Raise Misuse if another program listens there, or if none of the host's addresses can be listened on.

    The port is not kept, so listening may still fail later. It binds as asyncio does (create_server: SO_REUSEADDR,
    IPV6_V6ONLY).
    """
    failed: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise unusable(host, port, flag, error) from error
    usable = False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(where)
                usable = True
        except OSError as error:
            failed = error
            if error.errno == errno.EADDRINUSE:
                break
    if failed is not None and (failed.errno == errno.EADDRINUSE or not usable):
        raise unusable(host, port, flag, failed) from failed


# ── listening ─────────────────────────────────────────────────────────────────────────────────────


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

    def url(self, shown: str, scheme: str, path: str) -> str:
        """Return a URL for people. `shown` is where the socket listens. A Unix socket has no URL of its own."""
        return shown if self.is_unix else f"{scheme}://{shown}{path}"


def listen_address(text: str, flag: str) -> ListenAddress:
    """Parse one address. Raises Misuse."""
    rest, proxied, plain_ = text, False, False
    while True:
        if rest.startswith("proxy:"):
            rest, proxied = rest.removeprefix("proxy:"), True
        elif rest.startswith("plain:"):
            rest, plain_ = rest.removeprefix("plain:"), True
        else:
            break
    found = ListenAddress(text, proxied=proxied, plain=plain_)
    kind, _, name = rest.partition(":")
    if kind == "unix" and name:
        return msgspec.structs.replace(found, path=name, is_unix=True, plain=True)
    if kind == "fd" and name.isascii() and name.isdigit() and len(name) <= MAX_DESCRIPTOR_DIGITS:
        return _of_descriptor(found, int(name))
    try:
        host, port = address(rest, flag)
    except Misuse:
        examples = "127.0.0.1:4000, [::1]:4000, *:4000 or unix:/run/restante.sock"
        raise Misuse(f"{flag}: '{text}' is not {FORMS}, like {examples}") from None
    return msgspec.structs.replace(found, host=host, port=port)


def _of_descriptor(found: ListenAddress, descriptor: int) -> ListenAddress:
    """Return the address of a descriptor. A Unix socket has no TLS."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as tried:
            is_unix = tried.family == socket.AF_UNIX
    except OSError:
        is_unix = False  # `listen` says what is wrong with it
    return msgspec.structs.replace(found, descriptor=descriptor, is_unix=is_unix, plain=found.plain or is_unix)


def listen_addresses(texts: Sequence[str], flag: str) -> list[ListenAddress]:
    """Parse the addresses of a server. Raises Misuse if the list is empty, or an address cannot be used."""
    if not texts:
        raise Misuse(f"{flag}: name at least one address: {FORMS}")
    return [listen_address(each, flag) for each in texts]


def checked_addresses(
    texts: Sequence[str], admin: str, trusted: Sequence[str], places: Mapping[str, str]
) -> list[ListenAddress]:
    """Parse `listen` of a server, and check it with the others. Raises Misuse that names their places."""
    networks(trusted, places["trust_proxy"])
    found = listen_addresses(texts, places["listen"])
    ports = [(places["listen"], each.host, each.port) for each in found if each.port]
    if admin != "off":
        ports.append((places["admin"], *address(admin, places["admin"])))
    for (_, host, port), (place, other_host, other_port) in itertools.combinations(ports, 2):
        if port and port == other_port and (host == other_host or None in {host, other_host}):
            raise Misuse(
                f"{place}: the server listens on port {port} already ({places['listen']}): name another port"
            )
    paths = [os.path.abspath(each.path) for each in found if each.path]  # noqa: PTH100 - NULs are refused later
    for path in paths:
        if paths.count(path) > 1:
            raise Misuse(f"{places['listen']}: {path} is named twice: leave one out")
    for each in found:
        if each.proxied and not trusted:
            raise Misuse(
                f"{places['listen']}: '{each.text}' needs a proxy that may name clients: name its network with"
                f" {places['trust_proxy']}"
            )
    return found


def refuse_unusable_addresses(texts: Sequence[str], flag: str, data: Path) -> None:
    """Raise Misuse if one of the addresses cannot be listened on. The data directory need not exist yet."""
    for each in listen_addresses(texts, flag):
        if each.descriptor >= 0:
            _inherited(each, flag).close()
        elif not each.path:
            refuse_unusable(each.host, each.port, flag)
        elif (folder := Path(each.path).parent).exists() or folder.absolute() != data.absolute():
            try:
                _is_abandoned(each.path, flag)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, "")
            except OSError as error:
                raise cannot_listen(each.text, flag, error) from error


async def listen(
    where: ListenAddress, protocol: Callable[[], Any], *, backlog: int, flag: str
) -> tuple[asyncio.Server, list[socket.socket], os.stat_result | None]:
    """Listen. Return the listener, duplicates of its sockets, and the status of a path that was bound.

    `protocol` makes the protocol of a connection. Raises Misuse if the address cannot be used.
    """
    loop = asyncio.get_running_loop()
    bound = None
    try:
        if where.path:
            made = unix_socket(where.path, flag)
            bound = os.lstat(where.path)
            listener = await accept(made, protocol, backlog=backlog)
        elif where.descriptor >= 0:
            listener = await accept(_inherited(where, flag), protocol, backlog=backlog)
        else:
            listener = await loop.create_server(protocol, where.host, where.port, backlog=backlog)
    except OSError as error:
        if where.path or where.descriptor >= 0:
            raise cannot_listen(where.text, flag, error) from error
        raise unusable(where.host, where.port, flag, error) from error
    return listener, [socket.socket(fileno=os.dup(each.fileno())) for each in listener.sockets], bound


async def accept(listening: socket.socket, protocol: Callable[[], Any], *, backlog: int) -> asyncio.Server:
    """Accept connections of a socket that listens already or is bound."""
    loop = asyncio.get_running_loop()
    if listening.family == socket.AF_UNIX:
        # The path of an inherited socket is its owner's, and we listen on ours again after a shortage of descriptors.
        # `remove_path` removes it at the end. From Python 3.13 on, a server would remove it whenever it is closed.
        if sys.version_info >= (3, 13):
            return await loop.create_unix_server(protocol, sock=listening, backlog=backlog, cleanup_socket=False)
        return await loop.create_unix_server(protocol, sock=listening, backlog=backlog)
    return await loop.create_server(protocol, sock=listening, backlog=backlog)


def unix_socket(path: str, flag: str) -> socket.socket:
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


def _inherited(where: ListenAddress, flag: str) -> socket.socket:
    """Return a listening socket that the server was started with (man 3 sd_listen_fds). Raises Misuse."""
    try:
        found = socket.socket(fileno=os.dup(where.descriptor))
    except OSError as error:
        raise Misuse(f"{flag}: {where.text} is no socket: {plain(error)}") from error
    usable = found.type == socket.SOCK_STREAM and found.family in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}
    if not usable or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.close()
        raise Misuse(f"{flag}: {where.text} is not a listening socket of TCP or Unix")
    return found


def remove_path(where: ListenAddress, bound: os.stat_result | None) -> None:
    """Remove the path of a Unix socket that `listen` has bound, unless another file has taken it.

    Close the socket afterwards: until then no other file has its inode.
    """
    with contextlib.suppress(FileNotFoundError):
        if bound is not None and os.path.samestat(bound, os.lstat(where.path)):
            Path(where.path).unlink()


def shown_address(listening: socket.socket) -> str:
    """Return where a socket listens, as it is written in --listen."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
