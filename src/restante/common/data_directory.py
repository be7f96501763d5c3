"""The lock of a data directory: one process uses it at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from restante.common.errors import InUse, Misuse, StoreError
from restante.common.lock_file import NO_DIRECTORY_LOCKS, Locks, lock_directory

LOCK_FILE: Final = "lock"


def lock_data_directory(data: Path, left: Sequence[int] = ()) -> Locks:
    """Lock a data directory for this process. Closing what is returned releases the lock.

    `left`: descriptors that hold the lock, because the program that this process ran before has left them. Those of
    another directory are closed. The directory is made if it does not exist. Raises InUse if another process has
    locked it, and another StoreError or Misuse if it cannot be used.
    """
    refuse_unusable_directory(data)
    locks = Locks(left)
    if holds_lock(left, data):
        return locks
    locks.close()
    try:
        data.mkdir(mode=0o700, exist_ok=True)  # readable by its owner only: it holds private data
        for pause in (0.2, 0.2, 0.2):  # `is_running` locks it for a moment
            with suppress(BlockingIOError):
                return lock_directory(data, LOCK_FILE)
            time.sleep(pause)
        return lock_directory(data, LOCK_FILE)
    except BlockingIOError:
        raise InUse(
            f"another process is using the data directory {data}: stop it, or name another with --data"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error


def holds_lock(descriptors: Sequence[int], data: Path) -> bool:
    """Return whether descriptors of `lock_data_directory` are those of this directory."""
    try:
        return bool(descriptors) and os.path.samestat(os.fstat(descriptors[0]), data.stat())
    except OSError:
        return False


def give_to_owner(data: Path, *names: str) -> None:
    """Give files that root has made in a data directory to the owner of the directory, who runs the server.

    Links are left as they are: the owner may have put one there. No file may be open as a database: closing a file
    ends the locks of its process (sqlite.org/howtocorrupt.html, 2.2). Raises StoreError if that fails.
    """
    if os.geteuid() != 0:
        return
    try:
        owner = data.stat()
        for name in names:
            with suppress(FileNotFoundError):
                descriptor = os.open(data / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                    if status.st_uid == 0 and status.st_nlink == 1 and stat.S_ISREG(status.st_mode):
                        os.fchown(descriptor, owner.st_uid, owner.st_gid)
                finally:
                    os.close(descriptor)
    except OSError as error:
        raise StoreError(f"cannot give the files in {data} to its owner: {error.strerror}") from error


def refuse_unusable_directory(data: Path) -> None:
    """Raise Misuse if a path is not a data directory and none can be made there: its parent must exist.

    A parent that is missing is mostly a disk that is not mounted, or a misspelt name.
    """
    try:
        if not data.is_dir() and (data.exists() or data.is_symlink()):
            raise Misuse(f"{data} is not a directory: name a directory with --data")
        if not data.exists() and not data.parent.is_dir():
            if data.parent.exists():
                raise Misuse(f"cannot create {data}: {data.parent} is not a directory: name another with --data")
            raise Misuse(f"cannot create {data}: there is no directory {data.parent}: create that first")
    except OSError as error:
        raise StoreError(f"cannot use the data directory {data}: {error.strerror} (--data names another)") from error


def is_running(data: Path) -> bool:
    """Return whether another process holds the lock. Raises Misuse if this user may not know."""
    for path, flags in ((data, os.O_DIRECTORY), (data / LOCK_FILE, os.O_NONBLOCK)):  # it may be a named pipe
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Misuse(f"cannot read {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in NO_DIRECTORY_LOCKS:
                raise Misuse(f"cannot lock {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
    return False
