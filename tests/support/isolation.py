"""A network of its own for the programs of a test: nothing that they dial is outside of it.

Clients of Magic Wormhole dial what they please: public relays, STUN servers, and whatever address the other side
names. wormhole-william has no option for the transit relay, and a send fails where it cannot be reached (1.0.8,
wormhole/send.go:302, file_transport.go:472). So the server and the clients run in a Linux network namespace that has
a loopback interface and no other. /etc/hosts of its own leads the names of the public servers there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from support.processes import child, run

Words = tuple[str, ...]

ADDRESS: Final = "198.51.100.1"
"""An address of the loopback interface outside of 127.0.0.0/8 (RFC 5737), since clients offer their peers none of
those."""

RELAY_PORT: Final = 4001

PUBLIC_RELAY: Final = "transit.magic-wormhole.io"
PUBLIC: Final = ("relay.magic-wormhole.io", PUBLIC_RELAY)

NAMESPACES: Final = ("--user", "--mount", "--net")
UNSHARE: Final = ("unshare", *NAMESPACES, "--map-root-user")

LOOPBACK: Final = ("ip", "link", "set", "lo", "up")
VETH: Final = ("ip", "link", "add", "probe", "type", "veth", "peer", "name", "other")
"""What is tried first for isolated networks, and for networks apart. Tests are skipped if it fails."""

SET_UP: Final = f"""\
mount --bind "$0" /etc/hosts && ip link set lo up && ip address add {ADDRESS}/32 dev lo && exec "$@"
"""

RELAY: Final = f"""
import socket
with socket.create_server(("127.0.0.1", {RELAY_PORT})) as relay:
    print("ready", flush=True)
    accepted = [relay.accept() for _ in iter(int, 1)]
"""
"""A transit relay that accepts connections and says nothing: transfers take a direct connection, or fail."""


def unavailable(*command: str) -> str | None:
    """Return why this machine has no namespaces, or does not do this in them; None if it does."""
    for program, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(program) is None and (program != "ip" or program in command):
            return f"{program} is missing (Debian: apt install {package})"
    tried = run(*UNSHARE, *(command or ("true",)))
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else None


@asynccontextmanager
async def isolated_network(folder: Path, public: str = "127.0.0.1") -> AsyncIterator[Words]:
    """Make the network; give the words that put a command into it. It ends with the processes that it has.

    The names of public servers lead to the address `public`.
    """
    _need(*LOOPBACK)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{public} {' '.join(PUBLIC)}\n")
    async with child(*UNSHARE, "sh", "-c", SET_UP, str(hosts), sys.executable, "-c", RELAY) as holder:
        await holder.says("ready")
        yield _entering(holder.pid)


def _need(*command: str) -> None:
    if reason := unavailable(*command):
        pytest.skip(f"networks of their own: {reason}")


def _entering(holder: int) -> Words:
    return ("nsenter", "--target", str(holder), *NAMESPACES, "--preserve-credentials")


@asynccontextmanager
async def networks_apart(folder: Path, *, ipv6: bool) -> AsyncIterator[tuple[Words, Words, Words, str]]:
    """Make a public network and two private ones that reach it; give the words for each, and the public address.

    All of them end with the processes that they have. With IPv4 neither private network reaches the other, as behind
    routers that translate addresses: what is sent there is lost. With IPv6, and no IPv4, they reach one another.
    """
    _need(*VETH)
    address = "2001:db8::1" if ipv6 else ADDRESS
    async with AsyncExitStack() as ends:
        public = await ends.enter_async_context(isolated_network(folder, address))

        def inside(network: Words, line: str) -> None:
            done = run(*network, "sh", "-c", line)
            assert done.returncode == 0, (line, done.stderr)

        if ipv6:
            inside(public, f"ip address add {address}/128 dev lo nodad")
            inside(public, "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        else:
            inside(public, "echo 0 > /proc/sys/net/ipv4/ip_forward")
        private = []
        for number in (1, 2):
            wait = ("unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity")
            holder = await ends.enter_async_context(child(*public, *wait))
            await holder.says("ready")
            network = _entering(holder.pid)
            prefix, bits, flag = (f"fd00:{number}::", 64, " nodad") if ipv6 else (f"10.{number}.0.", 24, "")
            inside(public, f"ip link add to-{number} type veth peer name eth0 netns {holder.pid}")
            inside(public, f"ip address add {prefix}1/{bits} dev to-{number}{flag}")
            inside(public, f"ip link set to-{number} up")
            inside(network, "ip link set lo up")
            inside(network, f"ip address add {prefix}2/{bits} dev eth0{flag}")
            inside(network, "ip link set eth0 up")
            inside(network, f"ip route add default via {prefix}1")
            private.append(network)
        one, other = private
        yield public, one, other, address
