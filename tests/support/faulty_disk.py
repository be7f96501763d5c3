"""Disks of servers that run as processes: one that hangs, turns read-only or is noted, and one that fills."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from support.isolation import unavailable
from support.processes import child, run

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
