"""A file that appears when it is complete, under its name, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restante.common.errors import Misuse, StoreError


@contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """Give another name in the same directory to write to; afterwards it is flushed and gets its own.

    Raises Misuse where the file exists already, its name is none or there is no such directory, StoreError where it
    cannot be written.
    """
    try:
        exists = file.exists()
    except OSError as error:
        raise Misuse(f"cannot write {file}: {error.strerror}") from error
    if exists:
        raise Misuse(f"{file} exists already: name another file, or move it away")
    if not file.parent.is_dir():
        raise Misuse(f"there is no directory {file.parent} to write {file.name} in")
    try:
        made, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from error
    unfinished = Path(name)
    try:
        yield unfinished
        os.fsync(made)  # whatever it was written through: the flush is of the file
        unfinished.rename(file)
        _flush(file.parent)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        os.close(made)
        unfinished.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
    """Have the names in a directory on disk (fsync(2), NOTES)."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
