"""The files and empty directories below a directory, with what an archive says of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from restante.client.errors import UnsendableFileError
from restante.client.files.names import name_fault, quoted_path, unportable_names
from restante.common.errors import plain
from restante.common.texts import counted

MAX_ENTRIES: Final = 1_000_000
"""How many files and directories are sent or unpacked. Links that multiply a directory would otherwise never end."""

MAX_DEPTH: Final = 100
"""How many parts a name in an archive has. With a path of Linux's 4,096 bytes one member would create 2,000
directories."""

MAX_DOUBTFUL: Final = 5
"""How many names that other systems cannot store are noted. A user who reads these knows what to do about all."""

KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileEntry(NamedTuple):
    """A file, or an empty directory, whose path ends with a slash. `path[start:]` is its name in an archive."""

    path: str
    start: int
    size: int
    mode: int
    modified: float
    parents: tuple[int, ...] = ()
    """Modes (st_mode) of the directories above it, from the one that is sent on. 0: that one is not on the disk."""

    @property
    def name(self) -> str:
        """Its name in an archive."""
        return self.path[self.start :]

    @property
    def is_directory(self) -> bool:
        """Whether it is an empty directory."""
        return self.path.endswith("/")


def path_with_name(path: Path) -> Path:
    """Return a path that ends with a name: `.` and `..` are none, and are replaced by what they stand for."""
    return path.resolve() if path.name in {"", ".."} else path


class Walk:
    """What is below directories. What cannot be sent is an error, or is left out and named in `left_out`."""

    def __init__(self, *, ignore_unsendable: bool) -> None:
        self.left_out: list[str] = []
        self.directories = 0
        """How many directories there are, without the one that is sent."""
        self.doubtful: list[str] = []
        """A sentence for each of the first files that a receiver on another system cannot store."""
        self._ignore_unsendable = ignore_unsendable
        self._count = 0

    def below(self, directory: Path) -> Iterator[FileEntry]:
        """Yield what is below a directory, named relative to it. Raises UnsendableFileError."""
        path = os.fspath(directory).rstrip("/")
        try:
            status, names = directory.stat(), sorted(os.listdir(directory))  # noqa: PTH208 - texts, as below
        except OSError as error:
            raise _unsendable(path, plain(error)) from error
        self.note_doubtful(path, names)
        for name in names:
            ancestors = ((status.st_dev, status.st_ino),)
            yield from self._walk(f"{path}/{name}", name, len(path) + 1, ancestors, (status.st_mode,))

    def entries(self, path: Path) -> Iterator[FileEntry]:
        """Yield a file, or what is below a directory, named relative to its parent. Raises UnsendableFileError."""
        yield from self._walk(os.fspath(path), path.name, len(os.fspath(path)) - len(path.name), (), (0,))

    def _walk(
        self, path: str, name: str, start: int, ancestors: tuple[tuple[int, int], ...], parents: tuple[int, ...]
    ) -> Iterator[FileEntry]:
        """Yield a file or a directory. Paths are texts: a Path for each of 100,000 files takes a second."""
        try:
            status = os.stat(path)  # noqa: PTH116
            kind, identity = stat.S_IFMT(status.st_mode), (status.st_dev, status.st_ino)
            fault = _fault(name, kind, path.count("/", start), identity in ancestors)
            if not fault and not os.access(path, os.R_OK):
                fault = os.strerror(errno.EACCES)
            names = sorted(os.listdir(path)) if kind == stat.S_IFDIR and not fault else []  # noqa: PTH208
        except OSError as error:
            fault = plain(error)
        if fault:
            self._leave_out(path, fault)
            return
        self._count += 1
        if self._count > MAX_ENTRIES:
            raise UnsendableFileError(f"a directory with more than {counted(MAX_ENTRIES, 'file')} cannot be sent")
        if kind == stat.S_IFREG:
            yield FileEntry(path, start, status.st_size, status.st_mode, status.st_mtime, parents)
            return
        self.directories += 1
        self.note_doubtful(path, names)
        if not names:
            yield FileEntry(f"{path}/", start, 0, status.st_mode, status.st_mtime, parents)
        for entry in names:
            yield from self._walk(f"{path}/{entry}", entry, start, (*ancestors, identity), (*parents, status.st_mode))

    def note_doubtful(self, folder: str, names: Iterable[str]) -> None:
        """Note which names in one directory other systems cannot store."""
        remaining = MAX_DOUBTFUL - len(self.doubtful)
        for name, fault in islice(unportable_names(names), remaining):
            self.doubtful.append(f"{quoted_path(f'{folder}/{name}' if folder else name)}: its name {fault}")

    def _leave_out(self, path: str, reason: str) -> None:
        error = _unsendable(path, reason)
        if not self._ignore_unsendable:
            raise error
        self.left_out.append(str(error))


def _fault(name: str, kind: int, depth: int, in_itself: bool) -> str:
    """Return why a file or directory cannot be sent, or nothing. Our receiver would refuse an unsafe name."""
    if fault := name_fault(name):
        return f"its name {fault}"
    if kind in KINDS:
        return f"it is {KINDS[kind]}"
    if in_itself:
        return "it is a link to a directory that it is in"
    if depth >= MAX_DEPTH:
        return f"it is more than {MAX_DEPTH - 1} directories deep"
    return ""


def _unsendable(path: str, reason: str) -> UnsendableFileError:
    return UnsendableFileError(f"cannot send {quoted_path(path)}: {reason}")
