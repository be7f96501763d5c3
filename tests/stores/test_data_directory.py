"""The lock of a data directory (common/data_directory.py)."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from restante.common.data_directory import LOCK, lock, running
from restante.common.errors import InUse


def test_a_data_directory_stays_locked_when_its_lock_file_is_removed(tmp_path: Path) -> None:
    with lock(tmp_path):
        for _ in range(2):  # a process that is refused leaves a new file, which it has not locked
            (tmp_path / LOCK).unlink()
            assert running(tmp_path)
            with pytest.raises(InUse, match=r"another process is using the data directory"):
                lock(tmp_path)
            (tmp_path / LOCK).touch()
    assert not running(tmp_path)
    lock(tmp_path).close()


def test_a_process_of_an_earlier_version_locks_only_the_file(tmp_path: Path) -> None:
    lock(tmp_path).close()
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert running(tmp_path)
        with pytest.raises(InUse, match=r"another process is using the data directory"):
            lock(tmp_path)


def test_a_lock_file_that_is_a_named_pipe_lets_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    assert not running(tmp_path)
    with lock(tmp_path):
        assert running(tmp_path)


def test_where_directories_cannot_be_locked_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def flock_of_nfs(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    assert not running(tmp_path)
    with lock(tmp_path):
        assert running(tmp_path)
        with pytest.raises(InUse, match=r"another process is using the data directory"):
            lock(tmp_path)
