"""The URL that clients use: what the operator gives to users, and the first lines on a terminal."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from restante.common.listening import ListenAddress
from restante.common.net import host_and_port, parse_ip
from restante.common.terminal import command_line

UNENCRYPTED: Final = (
    "clients of other machines connect without TLS: others on their network see what they send, and can end their"
    " transfers. Use --tls-cert, or a proxy with TLS and --trust-proxy. If this is intended, write"
    " plain: before the address of --listen"
)

NOWHERE: Final = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses of documents (RFC 5737, RFC 3849): the route to them is the one to the internet."""


USUAL_PORT: Final = {"ws": ":80", "wss": ":443"}
"""The port that a URL does not name (RFC 6455 section 3)."""


class UserAddress(NamedTuple):
    """The URL of a listening socket."""

    url: str
    reachable: bool
    """Whether clients of other machines can use it."""
    unencrypted: bool
    """Whether these clients connect without TLS, and the operator has not said that this is intended."""


def own_address(version: int) -> str:
    """Return an address of this machine that other machines know, or its name. `version`: 4 or 6, of IP."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((NOWHERE[version], 9))  # sends nothing: the kernel chooses the address of the route
            name: str = probe.getsockname()[0]
            return name
    except OSError:
        return socket.gethostname()


def user_address(
    listen: ListenAddress,
    bound_address: str,
    *,
    tls: bool,
    names: Sequence[str] = (),
    proxies: bool = False,
    own: Callable[[int], str] = own_address,
) -> UserAddress:
    """Return the URL, for people, of a socket that listens at `bound_address`.

    `names` are those of the certificate. `proxies`: whether proxies are trusted, to which clients connect.
    """
    scheme = "wss" if tls else "ws"
    host, _, port = bound_address.rpartition(":")
    address = parse_ip(host.strip("[]"))
    if listen.is_unix or address is None:
        return UserAddress(listen.url(bound_address, scheme, "/v1"), reachable=False, unencrypted=False)
    reachable = not address.is_loopback
    name = host.strip("[]")
    if reachable and tls and names:
        name = names[0]
    elif address.is_unspecified:
        name = own(address.version)
    return UserAddress(
        f"{scheme}://{host_and_port(name, int(port)).removesuffix(USUAL_PORT[scheme])}/v1",
        reachable=reachable,
        unencrypted=reachable and not tls and not (listen.plain or listen.proxied or proxies),
    )


def best(addresses: Sequence[UserAddress]) -> UserAddress | None:
    """Return the address to give to users: one that other machines can use if there is one. None: all are paths."""
    usable = [address for address in addresses if address.url.startswith("ws")]
    return next((address for address in usable if address.reachable), next(iter(usable), None))


def first_lines(addresses: Sequence[UserAddress], *, proxies: bool) -> str:
    """Return what an operator needs first: the address, and commands to try. Empty: the server has no TCP port."""
    address = best(addresses)
    if address is None:
        return ""
    url = address.url
    if proxies:
        users = "Users connect to your proxy. On this machine the server is"
    else:
        users = "Users connect to" if address.reachable else "Users of this machine connect to"
    return (
        f"{users} {url}\n"
        "To try it, send a text with one of these, and receive it in another terminal with the code that is shown:\n"
        f"    wormhole --relay-url {url} send --text hello\n"
        f"    wormhole --relay-url {url} receive CODE\n"
        f"    {command_line('send', '--server', url, '--text', 'hello')}\n"
        f"    {command_line('receive', '--server', url, 'CODE')}\n"
    )
