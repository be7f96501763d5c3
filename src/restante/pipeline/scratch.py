"""Where copies of a lake's sources are while a run reads them.

It is outside the lake, and nobody else may read it: copies hold what the lake never does. A run that was killed left
its own behind; it is told from one that is in use by the lock, which the kernel takes back with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch(lake: Path) -> Iterator[Path]:
    """Make a folder of this run's own; remove what runs on this lake that were killed left."""
    prefix = f"restante-{hashlib.sha256(os.fsencode(lake)).hexdigest()[:16]}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            if left.lstat().st_uid == os.getuid() and not left.is_symlink():
                _remove_unused(left)
    place, held = _own(prefix)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(held)


def _own(prefix: str) -> tuple[Path, int]:
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix))
        held = os.open(place, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        if os.fstat(held).st_nlink:
            return place, held
        os.close(held)  # another run took it for a dead one's before it was locked


def _remove_unused(folder: Path) -> None:
    """Remove a folder. Raises BlockingIOError where a run is using it."""
    held = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
