"""File descriptors: how many a server may open, how many it needs, and how many are free."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse

UNLIMITED_DESCRIPTORS: Final = 1 << 20
"""The number of descriptors that stands for no limit."""

RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that stay free, in addition to a tenth of all. They are for the database, the admin port, and
connections that are accepted before the server can count them."""

OWN_DESCRIPTORS: Final = 32
"""Maximum number of descriptors that a server without connections holds: streams, event loop, database and ports."""

MIN_FREE_DESCRIPTORS: Final = 8
"""With fewer free descriptors the server accepts no connections. It is more than 1, because closing the listeners
frees their descriptors, one per address."""


def raise_descriptors(required: int = 0) -> int:
    """Raise the limit of descriptors to its maximum and return it. Each connection needs one.

    Raises Misuse if fewer than `required` are allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    descriptors = UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    if descriptors < required:
        raise too_few_descriptors(descriptors, required)
    return descriptors


def too_few_descriptors(descriptors: int, required: int) -> Misuse:
    """Return the error for a limit of descriptors that is too low."""
    return Misuse(
        f"the server may open {descriptors} file descriptors and needs {required}: raise the limit (ulimit -Hn)"
    )


def required_descriptors(in_use: int) -> int:
    """Return the lowest limit of descriptors that leaves RESERVED_DESCRIPTORS for connections if so many are open."""
    return math.ceil((in_use + 2 * RESERVED_DESCRIPTORS) * 10 / 9)


def open_descriptors() -> int:
    """Return how many descriptors the process has open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def free_descriptors(any_open: int, limit: int, at_most: int) -> int:
    """Return how many descriptors below `limit` are free, counting up to `at_most`.

    It duplicates `any_open`, which must be an open descriptor, to find free ones. 100 take 0.05 ms.
    """
    duplicates: list[int] = []
    try:
        while len(duplicates) < at_most:
            duplicates.append(os.dup(any_open))  # the system returns the lowest free descriptor
    except OSError:
        pass  # no more are free
    finally:
        for descriptor in duplicates:
            os.close(descriptor)
    return sum(descriptor < limit for descriptor in duplicates)
