"""Finds and opens the files of a source: one file, a folder of files, or a glob."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from restante.common.errors import plain
from restante.common.texts import counted
from restante.pipeline.lake.commit_info import Mark
from restante.pipeline.schemas import ARCHIVED, MAX_TEXT_CHARACTERS
from restante.pipeline.sources.source import (
    PREVIEW_BYTES,
    Inode,
    Say,
    SourceError,
    Span,
    Task,
    is_glob,
)

STABLE_AFTER_SECONDS: Final = 10.0
"""Seconds after which a file's change time reveals every later change: file systems have a resolution of up to
two."""


class SourceFile(NamedTuple):
    """A file as it was found. It must be unchanged when it is read."""

    path: Path
    size: int
    mtime_ns: int
    """Time of the last modification."""
    inode_number: int
    device: int
    ctime_ns: int
    """Time of the inode's last change: of its content, times, names or permissions."""

    @property
    def inode(self) -> Inode:
        """Return the device and inode number, which identify the file whatever its name."""
        return self.device, self.inode_number

    @property
    def printable_name(self) -> str:
        """Return the name without the folder, escaped for a terminal. The lake stores no more of the path."""
        return _escaped(self.path.name)

    @property
    def absolute(self) -> SourceFile:
        """Return the file with a path that workers can open, whose working directory may be another."""
        return self._replace(path=Path(os.path.abspath(self.path)))  # noqa: PTH100 - links stay, as in a lake's path

    def fingerprint(self, now: float) -> str:
        """Return a text that differs after the file is written to again.

        It consists of the size, the inode's change time, which programs cannot set, the inode number and the device.
        It is "" if the file was written to just before `now`: another write in the same tick of that clock would not
        change the text.
        """
        if now - self.ctime_ns / 1e9 < STABLE_AFTER_SECONDS:
            return ""
        return f"{self.size} {self.ctime_ns} {self.inode_number} {self.device}"


def path_text(path: Path) -> str:
    """Return a path for the operator: the folder as the operator named it, and the file's name escaped."""
    return str(path.with_name(_escaped(path.name)))


def _escaped(name: str) -> str:
    return ascii(os.fsencode(name).decode(errors="replace")[:MAX_TEXT_CHARACTERS])[1:-1]


def find_files(path: Path, suffixes: frozenset[str] | None = None) -> list[SourceFile]:
    """Return the files of a path, sorted by name; of a folder, those that are not hidden.

    With `suffixes`, a folder's files with other suffixes are left out. Raises SourceError, also for a link whose
    target is missing.
    """
    try:
        file_paths = _paths(path, suffixes)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {plain(error)}") from error
    return [_stat_file(file) for file in file_paths]


def files_to_read(name: str, path: Path, say: Say, suffixes: frozenset[str] | None = None) -> list[SourceFile]:
    """Return the files of a source of this name that was recognised before, and say which are empty.

    Raises SourceError, also if there are none: what unmounting leaves is an empty folder.
    """
    files = find_files(path, suffixes)
    if not files:
        raise SourceError(f"source {name}: the files of {path} disappeared: put them back, and run this again")
    if empty := [file for file in files if not file.size]:
        text, more = path_text(empty[0].path), len(empty) - 1
        if more:
            say(f"source {name}: {text} and {counted(more, 'other file')} are empty: nothing was written to them yet")
        else:
            say(f"source {name}: {text} is empty: nothing was written to it yet")
    return files


def _paths(path: Path, suffixes: frozenset[str] | None) -> list[Path]:
    if path.is_dir():
        visible = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        return sorted(file for file in visible if _is_file(file) and (suffixes is None or file.suffix in suffixes))
    if is_glob(path):
        return sorted(file for file in map(Path, glob.glob(str(path))) if _is_file(file))  # noqa: PTH207 - any path
    return [path]


def _is_file(path: Path) -> bool:
    """Return whether a path is a file, or a link whose target is missing."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _stat_file(path: Path) -> SourceFile:
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"cannot read {path_text(path)}: {plain(error)}") from error
    return SourceFile(path, status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns)


@contextmanager
def open_unchanged(file: SourceFile) -> Iterator[BufferedReader]:
    """Yield a found file, open for reading. Raises SourceError if it cannot be read, or has changed.

    It is checked before and after it is read.
    """
    with open_growing(file) as data:
        if os.fstat(data.fileno()).st_size != file.size:
            raise changed_error(file.path)
        yield data
        status = os.fstat(data.fileno())
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise changed_error(file.path)


@contextmanager
def open_growing(file: SourceFile) -> Iterator[BufferedReader]:
    """Yield a found file, open for reading; it may grow.

    Raises SourceError if it cannot be read, became shorter, or was replaced by another file.
    """
    try:
        with file.path.open("rb") as data:
            status = os.fstat(data.fileno())
            if status.st_ino != file.inode_number or status.st_size < file.size:
                raise changed_error(file.path)
            yield data
    except OSError as error:
        raise SourceError(f"cannot read {path_text(file.path)}: {plain(error)}") from error


def inodes(files: Iterable[SourceFile]) -> frozenset[Inode]:
    """Return the inodes of the files that are not empty."""
    return frozenset(file.inode for file in files if file.size)


def read_head(file: SourceFile) -> bytes:
    """Return a file's first bytes. Raises SourceError."""
    with open_growing(file) as data:
        return data.read(PREVIEW_BYTES)


def file_digest(file: SourceFile) -> str:
    """Return a file's SHA-256, hexadecimal. Raises SourceError."""
    with open_unchanged(file) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def find_new_files(
    table: str,
    files: Iterable[SourceFile],
    marks: Mapping[str, Mark],
    now: float,
    count_rows: Callable[[SourceFile], int | None],
    task: Callable[[SourceFile, str], Task],
) -> Span | None:
    """Return what is new of files that are read whole, each by one task, or None if nothing is.

    A file that is unchanged since it was marked is not read again. Of a file with two names the first counts.
    `count_rows` returns the rows of a new file; None leaves it out, without a mark, so that every run examines it
    again. `task` returns the task that reads a file, given with its digest. Raises SourceError.
    """
    digests = {mark.seen: digest for digest, mark in marks.items() if mark.seen}
    by_digest: dict[str, SourceFile] = {}
    for file in files:
        by_digest.setdefault(digests.get(file.fingerprint(now)) or file_digest(file), file)
    counts = {digest: count_rows(file) for digest, file in by_digest.items() if digest not in marks}
    rows = {digest: count for digest, count in counts.items() if count is not None}
    if not rows:
        return None
    all_marks = dict(marks) | {digest: Mark(count - 1, "", 0, "") for digest, count in rows.items()}
    for digest in by_digest.keys() & all_marks.keys():
        all_marks[digest] = structs.replace(all_marks[digest], seen=by_digest[digest].fingerprint(now))
    new = {digest: by_digest[digest].absolute for digest, count in rows.items() if count}
    envelope_bytes = sum(file.size for file in new.values()) if table == ARCHIVED.name else 0
    tasks = [task(file, digest) for digest, file in new.items()]
    return Span(table, sum(rows.values()), all_marks, tasks, envelope_bytes=envelope_bytes)


def changed_error(path: Path) -> SourceError:
    """Return the error for a file that changed while it was read."""
    return SourceError(f"{path_text(path)} changed while it was read: ingest it again when it does not")
