"""The lock of a data directory: one process uses it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from restante.common.errors import StoreError

LOCK: Final = "lock"


def lock(data: Path) -> int:
    """Lock a data directory for this process and return the descriptor that holds the lock.

    The directory is made if it does not exist. Closing the descriptor releases the lock. Raises StoreError if another
    process holds it or the directory cannot be made.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # readable by its owner only: it holds private data
        held = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error
    for patience in (0.2, 0.2, 0.2, None):  # `running` locks it for a moment
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if patience is None:
                os.close(held)
                raise StoreError(
                    f"another process is using the data directory {data}: stop it, or name another with --data"
                ) from None
            time.sleep(patience)
        else:
            break
    return held


def running(data: Path) -> bool:
    """Return whether another process holds the lock."""
    try:
        held = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(held)
