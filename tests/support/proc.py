"""What a process holds, and what waits for it, from /proc."""

import asyncio
import os
import signal
from pathlib import Path

from support.bounds import bounded


def resident(pid: int) -> int:
    """Return the resident memory in bytes (man 5 proc, statm: its second number counts pages)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def waiting(pid: int) -> set[signal.Signals]:
    """Return the signals that the process has not taken yet (man 5 proc, status: ShdPnd)."""
    [bits] = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:"))
    return {each for each in signal.Signals if int(bits.split()[1], 16) >> (each - 1) & 1}


async def stopped(pid: int) -> None:
    """Wait until SIGSTOP has stopped every thread of the process (man 5 proc, stat: its third field)."""
    async with bounded("a process that is stopped"):
        while _states(pid) != {"T"}:  # noqa: ASYNC110 - the kernel tells only the parent
            await asyncio.sleep(0)


def _states(pid: int) -> set[str]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads}
