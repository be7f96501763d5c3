"""Finds and opens the files of a source: one file, a folder of files, or a glob."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from restante.common.errors import plain
from restante.common.texts import counted
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import MAX_TEXT_CHARACTERS
from restante.pipeline.sources.source import PREVIEW_BYTES, Inode, Say, SourceError, is_glob
from restante.pipeline.spark.workers import SharedFile

STABLE_AFTER_SECONDS: Final = 10.0
"""Seconds after which a file's change time reveals every later change: file systems have a resolution of up to
two."""


class SourceFile(NamedTuple):
    """A file as it was found. It must be unchanged when it is read."""

    path: Path
    size: int
    changed: int
    """Time of the last modification (mtime), in nanoseconds."""
    number: int
    """Inode number."""
    device: int
    touched: int
    """Time of the inode's last change (ctime), in nanoseconds: of its content, times, names or permissions."""

    @property
    def inode(self) -> Inode:
        """Return the device and inode number, which identify the file whatever its name."""
        return self.device, self.number

    @property
    def shown(self) -> str:
        """Return the name without the folder, escaped for a terminal. The lake stores no more of the path."""
        return _escaped(self.path.name)

    @property
    def absolute(self) -> SourceFile:
        """Return the file with a path that workers can open, whose working directories are others."""
        return self._replace(path=Path(os.path.abspath(self.path)))  # noqa: PTH100 - links stay, as in a lake's path

    @property
    def shared(self) -> SharedFile:
        """Return what tells a worker whether it sees the file."""
        return SharedFile(str(self.absolute.path), self.size, self.number)

    def seen(self, now: float) -> str:
        """Return a text that differs after the file is written to again.

        It consists of the size, the inode's change time, which programs cannot set, the inode number and the device.
        It is "" if the file was written to just before `now`: another write in the same tick of that clock would not
        change the text.
        """
        if now - self.touched / 1e9 < STABLE_AFTER_SECONDS:
            return ""
        return f"{self.size} {self.touched} {self.number} {self.device}"


def shown(path: Path) -> str:
    """Return a path for the operator: the folder as the operator named it, and the file's name escaped."""
    return str(path.with_name(_escaped(path.name)))


def _escaped(name: str) -> str:
    return ascii(os.fsencode(name).decode(errors="replace")[:MAX_TEXT_CHARACTERS])[1:-1]


def files(path: Path, suffixes: frozenset[str] | None = None) -> list[SourceFile]:
    """Return the files of a path, sorted by name; of a folder, those that are not hidden.

    With `suffixes`, a folder's files with other suffixes are left out. Raises SourceError, also for a link whose
    target is missing.
    """
    try:
        found = _paths(path, suffixes)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {plain(error)}") from error
    return [_found(each) for each in found]


def say_empty(source: str, found: Sequence[SourceFile], say: Say) -> None:
    """Show the operator that files are empty, in one sentence."""
    empty = [file for file in found if not file.size]
    if not empty:
        return
    first, more = shown(empty[0].path), len(empty) - 1
    words = f"and {counted(more, 'other file')} are empty: nothing was written to them yet"
    say(f"source {source}: {first} {words if more else 'is empty: nothing was written to it yet'}")


def _paths(path: Path, suffixes: frozenset[str] | None) -> list[Path]:
    if path.is_dir():
        some = [each for each in path.iterdir() if not each.name.startswith(".")]
        return sorted(each for each in some if _is_file(each) and (suffixes is None or each.suffix in suffixes))
    if is_glob(path):
        return sorted(each for each in map(Path, glob.glob(str(path))) if _is_file(each))  # noqa: PTH207 - any path
    return [path]


def _is_file(path: Path) -> bool:
    """Return whether a path is a file, or a link whose target is missing."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _found(path: Path) -> SourceFile:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"cannot read {shown(path)}: {plain(error)}") from error
    return SourceFile(path, found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev, found.st_ctime_ns)


@contextmanager
def opened(file: SourceFile) -> Iterator[BufferedReader]:
    """Yield a found file, open for reading. Raises SourceError if it cannot be read, or has changed.

    It is checked before and after it is read.
    """
    with growing(file) as data:
        _must(file, os.fstat(data.fileno()).st_size == file.size)
        yield data
        found = os.fstat(data.fileno())
        _must(file, (found.st_size, found.st_mtime_ns) == (file.size, file.changed))


@contextmanager
def growing(file: SourceFile) -> Iterator[BufferedReader]:
    """Yield a found file, open for reading; it may grow.

    Raises SourceError if it cannot be read, became shorter, or was replaced by another file.
    """
    try:
        with file.path.open("rb") as data:
            found = os.fstat(data.fileno())
            _must(file, found.st_ino == file.number and found.st_size >= file.size)
            yield data
    except OSError as error:
        raise SourceError(f"cannot read {shown(file.path)}: {plain(error)}") from error


def inodes(files: Iterable[SourceFile]) -> frozenset[Inode]:
    """Return the inodes of the files that are not empty."""
    return frozenset(file.inode for file in files if file.size)


def head(file: SourceFile) -> bytes:
    """Return a file's first bytes. Raises SourceError."""
    with growing(file) as data:
        return data.read(PREVIEW_BYTES)


def digest(file: SourceFile) -> str:
    """Return a file's SHA-256, hexadecimal. Raises SourceError."""
    with opened(file) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def marked(
    found: Mapping[str, SourceFile], rows: Mapping[str, int], marks: Mapping[str, Mark], now: float
) -> dict[str, Mark]:
    """Return the marks by digest: new ones with the rows that were read, found ones with their current state."""
    new = {name: Mark(count - 1, "", 0, "") for name, count in rows.items()}
    known = {**marks, **new}
    return known | {name: structs.replace(known[name], seen=file.seen(now)) for name, file in found.items()}


def named(files: Iterable[SourceFile], marks: Mapping[str, Mark], now: float) -> dict[str, SourceFile]:
    """Return the files by digest. A file that is unchanged since it was marked is not read again. Raises SourceError.

    A file with two names is returned once, under the first of them.
    """
    known = {mark.seen: name for name, mark in marks.items() if mark.seen}
    found: dict[str, SourceFile] = {}
    for file in files:
        found.setdefault(known.get(file.seen(now)) or digest(file), file)
    return found


def changed(path: Path) -> SourceError:
    """Return the error for a file that changed while it was read."""
    return SourceError(f"{shown(path)} changed while it was read: ingest it again when it does not")


def gone(name: str, path: Path) -> SourceError:
    """Return the error for a source whose files disappeared after it was recognised."""
    return SourceError(f"source {name}: the files of {path} disappeared: put them back, and run this again")


def _must(file: SourceFile, unchanged: bool) -> None:
    if not unchanged:
        raise changed(file.path)
