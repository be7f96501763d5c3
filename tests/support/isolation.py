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
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from support.processes import child, run

Words = tuple[str, ...]

ADDRESS: Final = "198.51.100.1"
"""Of the loopback interface, but not in 127.0.0.0/8 (RFC 5737), since clients offer their peers none of those."""

RELAY_PORT: Final = 4001

PUBLIC_RELAY: Final = "transit.magic-wormhole.io"
PUBLIC: Final = ("relay.magic-wormhole.io", PUBLIC_RELAY)

NAMESPACES: Final = ("--user", "--mount", "--net")
UNSHARE: Final = ("unshare", *NAMESPACES, "--map-root-user")

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
    """Make the network, where public servers are at `public`; give the words that put a command into it."""
    need("ip", "link", "set", "lo", "up")
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{public} {' '.join(PUBLIC)}\n")
    async with child(*UNSHARE, "sh", "-c", SET_UP, str(hosts), sys.executable, "-c", RELAY) as holder:
        await holder.says("ready")
        yield entering(holder.pid)


def need(*command: str) -> None:
    if reason := unavailable(*command):
        pytest.skip(f"networks of their own: {reason}")


def entering(holder: int) -> Words:
    """Return the words that put a command into the network of this process."""
    return ("nsenter", "--target", str(holder), *NAMESPACES, "--preserve-credentials")
