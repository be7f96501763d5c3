"""Locks between processes: a file or a directory that one of them has locked."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

LOCKS: Final = Path("/proc/locks")
"""The locks of this machine (proc_locks(5))."""

NO_DIRECTORY_LOCKS: Final = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of a file system that cannot lock a directory. NFS needs a descriptor that can write (flock(2))."""


def lock_file(path: Path, mode: int = 0o600) -> int:
    """Lock a file, which is created if it does not exist, and return the descriptor that holds the lock.

    The lock ends when the descriptor is closed, also by the end of the process. Raises BlockingIOError if the file is
    locked already, and another OSError if it cannot be locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Locks(ExitStack):
    """Locks that are released when this is closed."""

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        """Own descriptors that hold locks."""
        super().__init__()
        self.descriptors = list(descriptors)
        for descriptor in descriptors:
            self.callback(os.close, descriptor)


def lock_directory(directory: Path, name: str, mode: int = 0o600) -> Locks:
    """Lock a directory and the file `name` in it. Closing what is returned releases both locks.

    Somebody may remove the file while it is locked. Another process then locks a new file, but not the directory. The
    file is locked for earlier versions of this program, which lock nothing else, and for file systems that cannot
    lock a directory. Raises BlockingIOError if either is locked already, another OSError if they cannot be locked.
    """
    with ExitStack() as locks:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        locks.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_DIRECTORY_LOCKS:
                raise
        file = lock_file(directory / name, mode)
        locks.pop_all()
        return Locks((descriptor, file))


def is_locked(path: Path) -> bool:
    """Return whether a process of this machine has locked a file or directory, as far as it can be seen."""
    return bool(lock_holders(path))


def lock_holders(path: Path) -> list[int]:
    """Return the processes of this machine that may have locked a file or directory, as far as they can be seen.

    It takes no lock, not even for a moment: a process that wants one then would fail. Locks that cannot be seen are
    those of other machines and of other containers.
    """
    try:
        inode = str(path.stat().st_ino)
        locks = LOCKS.read_text()
    except OSError:
        return []
    # The device is not compared: on Btrfs and overlayfs stat(2) returns another one.
    fields = (line.split() for line in locks.splitlines())
    return [
        int(lock[4])
        for lock in fields
        if lock[1] == "FLOCK" and lock[3] == "WRITE" and lock[5].rpartition(":")[2] == inode
    ]
