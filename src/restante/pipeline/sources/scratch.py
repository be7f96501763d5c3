"""The folder for copies of a lake's sources while a run reads them, and for Spark's temporary files.

It is outside the lake, and no other user may read it: copies hold data that the lake never has. A run that was killed
leaves its folder behind. A lock shows which folders are in use; the kernel releases it when the process ends. The
next run removes unused folders, whichever lake it works on. The sticky bit marks the folders of runs: users may have
folders of such names, too.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from restante.common.errors import StoreError, plain

SCRATCH_PREFIX: Final = "restante-pipeline-"

_NAME: Final = re.compile(rf"{SCRATCH_PREFIX}[a-z0-9_]{{8}}")
"""A name that mkdtemp makes."""

_MARKED: Final = stat.S_ISVTX | 0o700
"""The mode of a run's folder. The mark is no file: a run that is killed while it removes the folder may have removed
the file already."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield this run's own folder, after removing those of runs that were killed. Raises StoreError if it cannot."""
    try:
        for old_folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
            with suppress(OSError):
                if _NAME.fullmatch(old_folder.name) and old_folder.lstat().st_uid == os.getuid():
                    _remove_unused(old_folder)
        folder, descriptor = _make_locked_folder()
    except OSError as error:
        raise StoreError(
            f"cannot make a folder for copies of sources: {plain(error)} (the variable TMPDIR names where)"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _make_locked_folder() -> tuple[Path, int]:
    """Make a folder, lock it and mark it. Try again if another run removed it in between."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                os.fchmod(descriptor, _MARKED)
                return folder, descriptor
            os.close(descriptor)


def _remove_unused(folder: Path) -> None:
    """Remove a run's folder, or an empty one: a run may have been killed before it marked it.

    Raises OSError if a run is using it, if it is a link, or if it has files and no mark.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) == _MARKED:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.rmdir()
    finally:
        os.close(descriptor)
