"""Locks between processes: a file that one of them has locked."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path, mode: int = 0o600) -> int:
    """Lock a file, which is created if it does not exist, and return the descriptor that holds the lock.

    The lock ends when the descriptor is closed, also by the end of the process. Raises BlockingIOError if the file is
    locked already, and another OSError if it cannot be locked.
    """
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held
