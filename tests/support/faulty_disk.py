"""A disk of a server that runs as a process: it hangs, or turns read-only."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

HANGS: Final = "the disk hangs: a write has not finished for 1 s\n"

SHIM: Final = Path(__file__).with_name("disk_shim.c")


def compiled(folder: Path) -> str:
    if shutil.which("cc") is None:
        pytest.skip("cc is missing (Debian: apt install gcc)")
    library = folder / "disk_shim.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    return str(library)


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
