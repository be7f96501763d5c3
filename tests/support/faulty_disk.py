"""Disks of servers that run as processes: one that hangs, turns read-only or is noted, and one that fills."""

from __future__ import annotations

import asyncio
import shutil
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from restante.common.disk_probe import INTERVAL_SECONDS
from support.bounds import bounded
from support.events import watching
from support.isolation import unavailable
from support.metrics import counts
from support.processes import child, run

READY: Final = (200, "ok\n")
HANGS: Final = "the disk hangs: a write has not finished for 1 s\n"
FULL: Final = "the disk cannot be written: No space left on device\n"
READ_ONLY: Final = "the disk cannot be written: Read-only file system\n"

SHIM: Final = Path(__file__).with_name("disk_shim.c")
NAMESPACES: Final = ("--user", "--mount")
KIB: Final = 1024


def compiled(folder: Path) -> str:
    """Compile the library that a server preloads."""
    if shutil.which("cc") is None:
        pytest.skip("cc is missing (Debian: apt install gcc)")
    library = folder / "disk_shim.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    return str(library)


class Call(NamedTuple):
    """A system call that ended. `begin` and `end` count the begins and the ends of all noted calls."""

    begin: int
    end: int
    kind: str
    """`write`, to a write-ahead log; `send`, to a socket; or `sync`."""
    file: str
    """The path of a file, or `socket:[inode]`."""
    data: bytes
    """What was written, no more."""


def noting(folder: Path) -> dict[str, str]:
    """Return the variables of a server whose calls `read_notes` is to find."""
    return {"LD_PRELOAD": compiled(folder), "DISK_SHIM_NOTES": str(folder / "notes")}


def read_notes(folder: Path) -> list[Call]:
    """Return what a server did, by `begin`."""
    notes, head = (folder / "notes").read_bytes(), struct.Struct("=5Q")
    calls: list[Call] = []
    at = 0
    while at < len(notes):
        begin, end, kind, name, size = head.unpack_from(notes, at)
        data = at + head.size + name
        kinds = ("write", "send", "sync")
        calls.append(Call(begin, end, kinds[kind], notes[data - name : data].decode(), notes[data : data + size]))
        at = data + size
    return sorted(calls)


class CommandedDisk:
    """The disk of a server that is started with `variables`."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        hangs, read_only = folder / "hangs", folder / "read-only"
        self.hang, self.go_on = hangs.touch, hangs.unlink
        self.turn_read_only, self.turn_writable = read_only.touch, read_only.unlink
        self.variables = {
            "LD_PRELOAD": compiled(folder),
            "DISK_SHIM_HANGS": str(hangs),
            "DISK_SHIM_READ_ONLY": str(read_only),
            "DISK_SHIM_DATA": str(self.data),
        }


@dataclass(frozen=True)
class SmallDisk:
    """A disk in a mount namespace."""

    enter: tuple[str, ...]
    """The words that put a command into the namespace."""
    folder: Path
    """The disk as a process in the namespace sees it."""
    outside: Path
    """The same as we see it, also after the server has ended."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def fill(self) -> None:
        """Another program writes until there is no room for another KiB."""
        with (self.outside / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            filler.write(bytes(shutil.disk_usage(self.outside).free))
            while True:
                filler.write(bytes(KIB))

    def make_room(self) -> None:
        (self.outside / "filler").unlink()


@asynccontextmanager
async def small_disk(folder: Path, size: int) -> AsyncIterator[SmallDisk]:
    """Make a disk of so many KiB. It ends with the processes that are in its namespace."""
    if reason := unavailable():
        pytest.skip(f"disks of their own: {reason}")
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size}k none "$0" && echo ready && exec sleep infinity'
    async with child("unshare", *NAMESPACES, "--map-root-user", "sh", "-c", mount, str(disk)) as holder:
        await holder.says("ready")
        enter = ("nsenter", "--target", str(holder.pid), *NAMESPACES, "--preserve-credentials")
        assert run(*enter, "true").returncode == 0
        yield SmallDisk(enter, disk, Path(f"/proc/{holder.pid}/root{disk}"))


class Look:
    """Whoever asks the admin port of a server."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with bounded(path), self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def counts(self) -> dict[str, float]:
        status, text = await self.get("/metrics")
        assert status == 200, text
        return counts(text)

    async def reports(self, begin_fault: Callable[[], None], *words: str) -> None:
        """Begin a fault, and ask /readyz until it is 503; it must say one of these.

        A result of the probe is kept for a moment, and the fault comes when there is one. No request that begins
        later may be answered with 200.
        """
        assert await self.get("/readyz") == READY
        begin_fault()
        status, text = await self.get("/readyz")
        fresh = time.monotonic() + INTERVAL_SECONDS
        async with bounded("503"):
            while status == READY[0]:
                begun = time.monotonic()
                status, text = await self.get("/readyz")
                assert status == 503 or begun < fresh, "a fresh probe does not notice it"
        assert text in words

    async def recovers(self, *words: str) -> None:
        """Ask /readyz until it is 200. It may say these until then."""
        async with bounded("200"):
            while (found := await self.get("/readyz")) != READY:
                assert found[1] in words

    async def works(self) -> str:
        """All other pages are answered. Return the metrics."""
        paths = ("/healthz", "/metrics", "/varz", "/connz", "/limitz")
        answers = await asyncio.gather(*map(self.get, paths))
        assert [status for status, _ in answers] == [200] * len(paths), answers
        return answers[1][1]

    async def shown(self) -> dict[str, Any]:
        """Return what a dashboard shows that is opened now."""
        async with watching(self.session, self.url) as events:
            return await events.until("now")


@asynccontextmanager
async def looking(port: int) -> AsyncIterator[Look]:
    async with aiohttp.ClientSession() as session:
        yield Look(session, port)
