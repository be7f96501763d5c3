"""Files that appear under their name when they are complete, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restante.common.errors import Misuse, StoreError


@contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """Yield a temporary file in the same directory; on success flush it and rename it to `file`.

    On an error the temporary file is removed. Raises Misuse if the file exists or its directory does not, StoreError
    if it cannot be written.
    """
    _refuse_existing(file)
    if not file.parent.is_dir():
        raise Misuse(f"there is no directory {file.parent} to write {file.name} in")
    try:
        with draft_of(file) as unfinished:
            yield unfinished
            _refuse_existing(file)  # another process may have written it meanwhile
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error


def _refuse_existing(file: Path) -> None:
    try:
        exists = file.exists()
    except OSError as error:
        raise Misuse(f"cannot write {file}: {error.strerror}") from error
    if exists:
        raise Misuse(f"{file} exists already: name another file, or move it away")


@contextmanager
def draft_of(file: Path, *, mode: int = 0o600, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary file in the same directory; on success flush it and give it the name and the mode.

    On an error the temporary file is removed. Raises OSError; without `replace` FileExistsError if the file exists.
    """
    made, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)  # readable only by its owner
    draft = Path(name)
    try:
        yield draft
        os.fchmod(made, mode)
        os.fsync(made)  # flushes the file, whichever descriptor it was written through
        if replace:
            draft.rename(file)
        else:
            os.link(draft, file)
        flush(file.parent)
    finally:
        os.close(made)
        draft.unlink(missing_ok=True)


def write_output(file: Path, content: bytes) -> None:
    """Write a file that the user named: replace it in one step. Raises OSError.

    A link stays one. A device or a pipe, like /dev/stdout, is not replaced; the content is written into it.
    """
    if file.exists() and not file.is_file():
        file.write_bytes(content)
        return
    with draft_of(Path(os.path.realpath(file))) as draft:
        draft.write_bytes(content)


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk (fsync(2), NOTES)."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
