"""Files that appear under their name when they are complete, or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, StoreError

NO_HARDLINK_CODES: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What link(2) answers on a file system without hard links, as on USB sticks (FAT)."""


@contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """Yield a temporary file in the same directory; on success flush it and give it the name.

    On an error the temporary file is removed. Raises Misuse if the file exists or its directory does not, StoreError
    if it cannot be written.
    """
    _refuse_existing(file)
    if not file.parent.is_dir():
        raise Misuse(f"there is no directory {file.parent} to write {file.name} in")
    try:
        with draft_of(file, replace=False) as draft:
            yield draft
            _refuse_existing(file)  # another process may have written it meanwhile
    except FileExistsError:  # or while it was flushed
        raise _existing(file) from None
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error


def _refuse_existing(file: Path) -> None:
    try:
        exists = file.is_symlink() or file.exists()
    except OSError as error:
        raise Misuse(f"cannot write {file}: {error.strerror}") from error
    if exists:
        raise _existing(file)


def _existing(file: Path) -> Misuse:
    return Misuse(f"{file} exists already: name another file, or move it away")


@contextmanager
def draft_of(file: Path, *, mode: int = 0o600, replace: bool = True, locked: bool = False) -> Iterator[Path]:
    """Yield a temporary file in the same directory; on success flush it and give it the name and the mode.

    On an error the temporary file is removed. If no other process writes the file, because it is `locked`, the
    temporary one has always the same name: of those that killed processes leave behind, there is one at most.
    Raises OSError; without `replace` FileExistsError if the file exists.
    """
    if locked:
        draft = file.with_name(f".{file.name}.restante-draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    else:
        descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)  # readable only by its owner
        draft = Path(name)
    try:
        yield draft
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)  # flushes the file, whichever descriptor it was written through
        if replace:
            draft.rename(file)
        else:
            give_name(draft, file)
        flush(file.parent)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def give_name(draft: Path, file: Path) -> None:
    """Rename a file. Raises FileExistsError if something has the name, and other OSErrors."""
    try:
        os.link(draft, file)
    except OSError as error:
        if error.errno not in NO_HARDLINK_CODES:
            raise
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))  # reserves the name
        draft.rename(file)


def write_output(file: Path, content: bytes, *, new_mode: int = 0o600) -> None:
    """Write a file that the user named: replace it in one step, and keep its mode. Raises OSError.

    A new file gets `new_mode`.

    A link stays one. A device, a pipe, or what a process has open, like /dev/stdout, is not replaced; the content is
    appended to it.
    """
    if file.exists() and (not file.is_file() or leads_to_open_file(file)):
        with file.open("ab") as output:
            output.write(content)
        return
    mode = file.stat().st_mode & 0o777 if file.exists() else new_mode
    with draft_of(Path(os.path.realpath(file)), mode=mode) as draft:
        draft.write_bytes(content)


def mode_of_umask() -> int:
    """Return the mode of a new file that others may read: what the umask leaves of 0666."""
    umask = os.umask(0o077)  # it can only be read by setting it (umask(2)); another thread's new files are private
    os.umask(umask)
    return 0o666 & ~umask


def leads_to_open_file(path: Path) -> bool:
    """Return whether a path that exists is a link in /proc, or leads to one, as /dev/stdout and /dev/fd/1 do."""
    while path.is_symlink():
        if os.path.realpath(path.parent).startswith("/proc/"):
            return True
        path = path.parent / path.readlink()
    return False


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk (fsync(2), NOTES).

    A directory in which the user may write need not be readable, as a drop box. Then all disks are flushed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        os.sync()
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
