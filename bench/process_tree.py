"""Runs a command and measures all its processes: time, CPU time, and memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

SAMPLE_SECONDS: Final = 0.2
"""Seconds between two looks at the memory. Each takes some milliseconds, because the kernel walks the page tables."""

PR_SET_CHILD_SUBREAPER: Final = 36
"""prctl(2)."""


class Used(msgspec.Struct, frozen=True):
    """What a command and its descendants used. Sizes are in bytes, the largest sum of any moment."""

    wall: float
    """Seconds from exec until the command itself ended."""
    cpu: float
    """Seconds of CPU time, user and system, of all processes: also of those that ended later than the command."""
    pss: int
    """Proportional set size: a page that several processes share counts once. Spark's Python workers are forked, so
    they share most of what they have imported."""
    rss: int
    """Resident set size: a shared page counts in each process."""
    exit_code: int


def adopt() -> None:
    """Make orphans of this process's descendants its own children, so that their CPU time is counted.

    Java ends after the command that started it, which does not wait for it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def measure(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Used:
    """Run a command to its end. Call `adopt` first, and have no other child meanwhile.

    The CPU time is that of the kernel's accounting of processes that ended and were waited for (getrusage), so no
    sample misses any of it.
    """
    before = _ended_cpu()
    over = threading.Event()
    peaks = [0, 0]
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        sampler = threading.Thread(target=_sample, args=(over, peaks))
        sampler.start()
        try:
            code = process.wait()
        finally:
            over.set()
            sampler.join()
    wall = time.perf_counter() - start
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    pss, rss = peaks
    return Used(wall, _ended_cpu() - before, pss, rss, code)


def _ended_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sample(over: threading.Event, peaks: list[int]) -> None:
    while not over.wait(SAMPLE_SECONDS):
        sizes = [_sizes(each) for each in descendants(os.getpid())]
        for place in range(len(peaks)):
            peaks[place] = max(peaks[place], sum(size[place] for size in sizes))


def _sizes(process: int) -> tuple[int, int]:
    """Return the PSS and RSS of a process; 0 if it has ended."""
    found = {"Pss:": 0, "Rss:": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, *value = line.split()
            if name in found:
                found[name] = int(value[0]) << 10
    return found["Pss:"], found["Rss:"]


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started, and so on."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, thread.read_text().split()):
                found += [child, *descendants(child)]
    return found
