"""The lock of a data directory: one process uses it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, StoreError
from restante.common.lock_file import lock_file

LOCK: Final = "lock"


def lock(data: Path) -> int:
    """Lock a data directory for this process and return the descriptor that holds the lock.

    The directory is made if it does not exist. Closing the descriptor releases the lock. Raises StoreError if another
    process holds it or the directory cannot be made.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # readable by its owner only: it holds private data
        for patience in (0.2, 0.2, 0.2):  # `running` locks it for a moment
            with suppress(BlockingIOError):
                return lock_file(data / LOCK)
            time.sleep(patience)
        return lock_file(data / LOCK)
    except BlockingIOError:
        raise StoreError(
            f"another process is using the data directory {data}: stop it, or name another with --data"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error


def running(data: Path) -> bool:
    """Return whether another process holds the lock. Raises Misuse if this user may not know."""
    try:
        held = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Misuse(f"cannot read {data / LOCK}: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(held)
