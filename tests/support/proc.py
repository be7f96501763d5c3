"""What a process holds, from /proc."""

import os
from pathlib import Path


def resident(pid: int) -> int:
    """Return the resident memory in bytes (man 5 proc, statm: its second number counts pages)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
