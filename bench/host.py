"""What the figures were measured on: printed above every table, because none means anything without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = (
    "restante",
    "magic-wormhole-mailbox-server",
    "picows",
    "uvloop",
    "msgspec",
    "twisted",
    "autobahn",
)
RAM_BACKED = ("tmpfs", "ramfs")


def facts(scratch: Path, libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries)
    return {
        "cpu": f"{len(os.sched_getaffinity(0))} x {_cpu_model()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "libraries": versions,
        "disk": f"{filesystem(scratch)}, {_flushes_per_second(scratch):,.0f} fdatasync/s (4 KiB overwritten)",
    }


def filesystem(folder: Path) -> str:
    """Return the type of the file system `folder` is on: the mount with the longest matching path."""
    where = str(folder.resolve())
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _flushes_per_second(folder: Path, seconds: float = 0.5) -> float:
    count = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - start)


def scratch_root(asked: Path | None) -> Path:
    """Return a folder on a real disk: in memory a flush costs nothing and the figures mislead."""
    temporary = Path(tempfile.gettempdir())
    root = asked or (Path.cwd() if filesystem(temporary) in RAM_BACKED else temporary)
    if filesystem(root) in RAM_BACKED:
        print(f"warning: {root} is in memory, where a flush costs nothing", file=sys.stderr)
    return root
