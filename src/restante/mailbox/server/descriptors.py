"""File descriptors: how many are needed, and how many are free."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse

RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that are kept free, and a tenth of all: for the database, the admin port, and for connections that are
taken before anybody can count them: the loop empties the kernel's queue before it looks at any of it."""

OWN_DESCRIPTORS: Final = 32
"""Descriptors that a server holds without connections, at most: its streams, loop, database and ports."""

MIN_FREE_DESCRIPTORS: Final = 8
"""With fewer free descriptors nobody is accepted. It is not 1: closed listeners leave theirs, one per address."""


def needed_descriptors(own: int) -> int:
    """Return the lowest limit of descriptors that leaves RESERVED_DESCRIPTORS for connections; `own` are open."""
    return math.ceil((own + 2 * RESERVED_DESCRIPTORS) * 10 / 9)


def too_few(descriptors: int, needed: int) -> Misuse:
    return Misuse(f"the limit of descriptors is {descriptors}, and {needed} are needed: raise it (ulimit -Hn)")


def open_descriptors() -> int:
    """Return how many descriptors are open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def free_descriptors(any_open: int, most: int, at_most: int) -> int:
    """Return how many descriptors below `most` are free, up to `at_most`, with one that is open. 100 take 0.05 ms."""
    taken: list[int] = []
    try:
        while len(taken) < at_most:
            taken.append(os.dup(any_open))  # the lowest that is free
    except OSError:
        pass  # there are no more
    finally:
        for each in taken:
            os.close(each)
    return sum(each < most for each in taken)
