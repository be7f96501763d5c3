"""Stamps of hashcash: texts whose SHA-1 begins with so many zero bits (hashcash.org, format 1).

A server may demand one (spec 002, "Permission to Use the Server"). Run as a program, this module searches one share
of the stamps; work.py starts a process for each processor. `multiprocessing` would demand a `__main__` guard of the
programs that use the library.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from hashlib import sha1
from typing import Final

HASHES_PER_STEP: Final = 1 << 16
"""Hashes between two reports: about 50 ms."""

FOUND: Final = "found"
TRIED: Final = "tried"
"""First words of the lines that a process writes."""


def prefix_of(bits: int, resource: str, date: str, random: str) -> str:
    """Return a stamp without its counter. `date` is YYMMDD; `random` makes it ours."""
    return f"1:{bits}:{date}:{resource}::{random}:"


def search(prefix: str, bits: int, start: int, stride: int) -> Iterator[str | None]:
    """Try the counters start, start + stride, … Yield None after each step, and the stamp at last."""
    base = sha1(prefix.encode(), usedforsecurity=False)
    shift = 160 - bits
    step = HASHES_PER_STEP * stride
    for first in itertools.count(start, step):
        for counter in range(first, first + step, stride):
            attempt = base.copy()
            attempt.update(b"%x" % counter)
            if not int.from_bytes(attempt.digest()) >> shift:
                yield f"{prefix}{counter:x}"
                return
        yield None


def main(prefix: str, bits: str, start: str, stride: str) -> None:
    """Search, and write a line after each step."""
    try:
        for stamp in search(prefix, int(bits), int(start), int(stride)):
            print(TRIED if stamp is None else f"{FOUND} {stamp}", flush=True)  # noqa: T201 - read by work.py
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)  # whoever waited for it is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
