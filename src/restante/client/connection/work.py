"""Hashcash, format 1: find a stamp, a text whose SHA-1 begins with so many zero bits, on all processors.

A server may demand one (spec 002, "Permission to Use the Server"). Run as a program, this module searches one share
of the stamps; `find_stamp` starts one such process on each processor. `multiprocessing` would demand a `__main__`
guard of the programs that use the library.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha1
from typing import Final

from restante.client.errors import PermissionNeededError
from restante.client.events import Working
from restante.common.errors import plain

# ── The search ────────────────────────────────────────────────────────────────────────────────────


HASHES_PER_STEP: Final = 1 << 16
"""Hashes between two reports: about 50 ms."""

FOUND: Final = "found"
TRIED: Final = "tried"
"""First words of the lines that a process writes."""


def stamp_prefix(bits: int, resource: str, date: str, random: str) -> str:
    """Return a stamp without its counter. `date` is YYMMDD; `random` makes it ours."""
    return f"1:{bits}:{date}:{resource}::{random}:"


def search_stamps(prefix: str, bits: int, start: int, stride: int) -> Iterator[str | None]:
    """Try the counters start, start + stride, … Yield None after each step, and the stamp at last."""
    base = sha1(prefix.encode(), usedforsecurity=False)
    shift = 160 - bits
    step = HASHES_PER_STEP * stride
    for step_start in itertools.count(start, step):
        for counter in range(step_start, step_start + step, stride):
            attempt = base.copy()
            attempt.update(b"%x" % counter)
            if not int.from_bytes(attempt.digest()) >> shift:
                yield f"{prefix}{counter:x}"
                return
        yield None


def search_in_process(prefix: str, bits: str, start: str, stride: str) -> None:
    """Search, and write a line after each step."""
    try:
        for stamp in search_stamps(prefix, int(bits), int(start), int(stride)):
            print(TRIED if stamp is None else f"{FOUND} {stamp}", flush=True)  # noqa: T201 - `_search_in_processes` reads it
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)  # whoever waited for it is gone


# ── The processes ─────────────────────────────────────────────────────────────────────────────────


DEFAULT_MAX_BITS: Final = 26
"""Bits of work that is done without asking: 15 s on average on four processors of 1.2 million hashes a second. Each
further bit doubles it, and a server of this project waits for five minutes (`bind` in mailbox/core/limits.py)."""

BITS_IN_PROCESS: Final = 14
"""Work that takes less than a process takes to start: some 10 ms."""

FORBIDDEN: Final = (":", "\n", "\0")
"""Characters that a resource cannot have: a colon ends a stamp's field, and a zero ends a program's argument."""

MAX_LINE_BYTES: Final = 4096


def check_demand(bits: int, resource: str, max_bits: int) -> None:
    """Raise PermissionNeededError if a server demands more than `max_bits`, or names an unusable resource."""
    if bits > max_bits:
        raise PermissionNeededError(
            f"the server demands {bits} bits of work, and at most {max_bits} are allowed here: "
            "use another server, or allow more (max_work_bits)"
        )
    if any(char in resource for char in FORBIDDEN):
        raise PermissionNeededError("the server demands work for a resource that no stamp can name")


async def find_stamp(bits: int, resource: str, report: Callable[[Working], None]) -> str:
    """Return a stamp. If the task is cancelled, the processes end.

    Raises PermissionNeededError if no process can be started.
    """
    prefix = stamp_prefix(bits, resource, time.strftime("%y%m%d", time.gmtime()), os.urandom(8).hex())
    if bits <= BITS_IN_PROCESS:
        return next(stamp for stamp in search_stamps(prefix, bits, 0, 1) if stamp is not None)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return await _search_in_processes(prefix, bits, processors, report)


async def _search_in_processes(prefix: str, bits: int, count: int, report: Callable[[Working], None]) -> str:
    start_time, steps = time.monotonic(), 0

    async def listen(process: asyncio.subprocess.Process) -> str:
        nonlocal steps
        assert process.stdout is not None
        async for line in process.stdout:
            word, _, stamp = line.decode().strip().partition(" ")
            if word == FOUND:
                return stamp
            steps += 1
            report(Working(bits, 2**bits, steps * HASHES_PER_STEP, time.monotonic() - start_time))
        raise PermissionNeededError("the process that searched for a stamp ended without one")

    processes: list[asyncio.subprocess.Process] = []
    listeners: list[asyncio.Task[str]] = []
    try:
        for start in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                prefix,
                str(bits),
                str(start),
                str(count),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
            )
            processes.append(process)
            listeners.append(asyncio.create_task(listen(process)))
        done, _ = await asyncio.wait(listeners, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    except OSError as error:
        raise PermissionNeededError(f"cannot start a process that does the demanded work: {plain(error)}") from error
    finally:
        for listener in listeners:
            listener.cancel()
        for process in processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*listeners, *(process.wait() for process in processes), return_exceptions=True)


if __name__ == "__main__":
    search_in_process(*sys.argv[1:])
