"""Sources of files: one, a folder of them, or a glob."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from restante.common.errors import plain
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import MAX_TEXT_CHARACTERS
from restante.pipeline.sources.source import PREVIEW_BYTES, Inode, SourceError, is_glob

STABLE_AFTER_SECONDS: Final = 10.0
"""Seconds after which a file's time of change tells of every later one: file systems count in up to two of them."""


class SourceFile(NamedTuple):
    """A file as it was found; it must be the same when it is read."""

    path: Path
    size: int
    changed: int
    """When, in nanoseconds."""
    number: int
    """The inode's."""
    device: int
    touched: int
    """When anything of the inode changed, in nanoseconds: its content, times, names or rights."""

    @property
    def inode(self) -> Inode:
        """Which file it is, whatever its name."""
        return self.device, self.number

    @property
    def shown(self) -> str:
        """Its name without the folder, fit for a terminal: what the lake may know of it."""
        return _escaped(self.path.name)

    def seen(self, now: float) -> str:
        """Give what is another when it is written to again.

        Size, which file of which device it is, and the inode's time of change, which nobody can set back. "" where it
        was written to a moment before `now`: what is written in the same tick of that clock would not show.
        """
        if now - self.touched / 1e9 < STABLE_AFTER_SECONDS:
            return ""
        return f"{self.size} {self.touched} {self.number} {self.device}"


def shown(path: Path) -> str:
    """Give a path for the operator: the folder as it was named, and what a stranger may have named, escaped."""
    return str(path.with_name(_escaped(path.name)))


def _escaped(name: str) -> str:
    return ascii(os.fsencode(name).decode(errors="replace")[:MAX_TEXT_CHARACTERS])[1:-1]


def files(path: Path, suffixes: frozenset[str] | None = None) -> list[SourceFile]:
    """Give the files of a path, in the order of their names; of a folder, those that are not hidden.

    With suffixes, a folder's others are left out. Raises SourceError.
    """
    try:
        return [_found(each) for each in _paths(path, suffixes)]
    except OSError as error:
        raise SourceError(f"cannot read {path}: {plain(error)}") from error


def _paths(path: Path, suffixes: frozenset[str] | None) -> list[Path]:
    if path.is_dir():
        some = [each for each in path.iterdir() if not each.name.startswith(".")]
        return sorted(each for each in some if each.is_file() and (suffixes is None or each.suffix in suffixes))
    if is_glob(path):
        return sorted(each for each in map(Path, glob.glob(str(path))) if each.is_file())  # noqa: PTH207 - any path
    return [path]


def _found(path: Path) -> SourceFile:
    found = path.stat()
    return SourceFile(path, found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev, found.st_ctime_ns)


@contextmanager
def opened(file: SourceFile) -> Iterator[BufferedReader]:
    """Open a file that was found. Raises SourceError where it cannot be read, or is another before or after it."""
    with growing(file) as data:
        _must(file, os.fstat(data.fileno()).st_size == file.size)
        yield data
        found = os.fstat(data.fileno())
        _must(file, (found.st_size, found.st_mtime_ns) == (file.size, file.changed))


@contextmanager
def growing(file: SourceFile) -> Iterator[BufferedReader]:
    """Open a file that was found, and to which somebody may be appending. Raises SourceError, likewise."""
    try:
        with file.path.open("rb") as data:
            found = os.fstat(data.fileno())
            _must(file, found.st_ino == file.number and found.st_size >= file.size)
            yield data
    except OSError as error:
        raise SourceError(f"cannot read {shown(file.path)}: {plain(error)}") from error


def inodes(files: Iterable[SourceFile]) -> frozenset[Inode]:
    """Tell which files have something in them."""
    return frozenset(file.inode for file in files if file.size)


def head(file: SourceFile) -> bytes:
    """Give its first bytes. Raises SourceError."""
    with growing(file) as data:
        return data.read(PREVIEW_BYTES)


def digest(file: SourceFile) -> str:
    """Give its SHA-256, hexadecimal. Raises SourceError."""
    with opened(file) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def marked(
    found: Mapping[str, SourceFile], rows: Mapping[str, int], marks: Mapping[str, Mark], now: float
) -> dict[str, Mark]:
    """Mark files by their digests: so many rows were read of the new ones; and how each was found by now."""
    new = {name: Mark(count - 1, "", 0, "") for name, count in rows.items()}
    known = {**marks, **new}
    return known | {name: structs.replace(known[name], seen=file.seen(now)) for name, file in found.items()}


def named(files: Iterable[SourceFile], marks: Mapping[str, Mark], now: float) -> dict[str, SourceFile]:
    """Give files by their digests. One that is as it was when it was marked is not read for it. Raises SourceError.

    The same under two names is there once, under the first of them.
    """
    known = {mark.seen: name for name, mark in marks.items() if mark.seen}
    found: dict[str, SourceFile] = {}
    for file in files:
        found.setdefault(known.get(file.seen(now)) or digest(file), file)
    return found


def changed(path: Path) -> SourceError:
    """Say that a file is not what it was."""
    return SourceError(f"{shown(path)} changed while it was read: ingest it again when it does not")


def _must(file: SourceFile, unchanged: bool) -> None:
    if not unchanged:
        raise changed(file.path)
