"""A network of its own for the programs of a test: nothing that they dial is outside of it.

Clients of Magic Wormhole dial what they please: public relays, STUN servers, and whatever address the other side
names. wormhole-william has no option for the transit relay, and a send fails where it cannot be reached (1.0.8,
wormhole/send.go:302, file_transport.go:472). So the server and the clients run in a Linux network namespace that has
a loopback interface and no other. /etc/hosts of its own leads the names of the public servers there.

    python -m support.isolation HOSTS    sets this up, inside the namespaces that `unshare` has made
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from support.processes import child

ADDRESS: Final = "198.51.100.1"
"""An address of the loopback interface outside of 127.0.0.0/8 (RFC 5737), since clients offer their peers none of
those."""

RELAY_PORT: Final = 4001
"""Where a transit relay accepts connections and says nothing: transfers take a direct connection, or fail."""

PUBLIC: Final = ("relay.magic-wormhole.io", "transit.magic-wormhole.io")

SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8913, 0x8914, 1
"""linux/sockios.h, linux/if.h"""

NAMESPACES: Final = ("--user", "--mount", "--net")


def unavailable() -> str | None:
    """Return why this machine has no such networks; None if it has."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare and nsenter are missing (Debian: apt install util-linux)"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--map-root-user", "true"], capture_output=True, text=True, check=False, timeout=60
    )
    return f"the kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else None


@asynccontextmanager
async def isolated_network(folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """Make the network; give the words that put a command into it. It ends with the processes that it has."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(PUBLIC)}\n")
    inside = ("unshare", *NAMESPACES, "--map-root-user", sys.executable, "-m", "support.isolation", str(hosts))
    async with child(*inside) as holder:
        await holder.says("ready")
        yield ("nsenter", "--target", str(holder.pid), *NAMESPACES, "--preserve-credentials")


def main(hosts: str) -> None:
    """Set up the interface, the names and the relay; then keep the namespaces until this process is killed."""
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16s16s8x", b"lo:1", address))
    with socket.create_server(("127.0.0.1", RELAY_PORT)) as relay:
        print("ready", flush=True)  # noqa: T201 (the test waits for it)
        accepted = []
        while True:
            accepted.append(relay.accept())


if __name__ == "__main__":
    main(sys.argv[1])
