"""A disk without room, and what a crash leaves on one."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file grow beyond a size (setrlimit(2)); write no bytecode, of which Python 3.11 would keep a part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def crashing(data: Path) -> Iterator[None]:
    """Leave of a database directory to which nothing is being written what a crash would: a copy of its files."""
    files = {file.name: file.read_bytes() for file in data.iterdir()}
    yield
    for file in data.iterdir():
        file.unlink()
    for name, content in files.items():
        if not name.endswith("-shm"):
            (data / name).write_bytes(content)
