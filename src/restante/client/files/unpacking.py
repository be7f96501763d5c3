"""Unpacking an archive that a hostile peer made: only below one folder, and never more than was agreed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from restante.client.errors import ArchiveError, UnsafeNameError
from restante.client.files.member import Member
from restante.client.files.names import name_fault, quoted
from restante.client.files.tar_reader import tar_members
from restante.client.files.walk import MAX_DEPTH, MAX_ENTRIES
from restante.client.files.zip_reader import zip_members
from restante.common.errors import StoreError, plain
from restante.common.texts import counted

CLASHES: Final = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
"""What the system answers if a name is there already, or is once a file and once a directory."""

PERMISSIONS: Final = 0o777
"""What is kept of a mode. Set-user-ID, set-group-ID and the sticky bit are not."""

INHERITED: Final = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
"""What new directories have from the one in which they are, and keep: the archive neither sets nor removes it."""

OTHERS: Final = 0o077
"""What all but the owner may do."""

OWNER_READS: Final = 0o500
"""What the owner of a directory may do in any case. Otherwise the user could neither see nor remove what came."""

MAX_REMEMBERED: Final = 15_000
"""How many directories are remembered at once while they are counted. These take 1 MB, whatever a peer sends."""


class ArchiveLimits(NamedTuple):
    """The most that an archive may contain: what the peer offered."""

    files: int
    directories: int
    size: int
    """Bytes of all files together."""
    top: str | None = None
    """The one folder that all of it is in, as in Rust's tar files. What is inside it is unpacked."""


def unpack(
    archive: BinaryIO,
    into: Path,
    limits: ArchiveLimits,
    progress: Callable[[int], None],
    check_counts: Callable[[int, int], None] | None = None,
) -> None:
    """Unpack a zip or tar file into an empty directory, which others cannot read until all of it is there.

    `progress` is called with the number of bytes that were written, also with 0. `check_counts` is called before with
    how many files and directories it makes.

    Raises ArchiveError and UnsafeNameError for what the peer did, StoreError for the disk. Times are not restored:
    Python's and Go's clients restore none.
    """
    with _store_errors("cannot unpack what was received"), _opened(into) as directory:
        mode = stat.S_IMODE(os.fstat(directory).st_mode)
        _change_mode(directory, mode & ~OTHERS)
        _check_own(directory)
        target = _Target(directory, limits, progress)
        with _store_errors(
            "cannot read what was received"
        ):  # not of the target: its errors are StoreErrors already (_error_about)
            archive.seek(0)
            members = zip_members if archive.read(2) == b"PK" else tar_members
            if check_counts is not None:
                check_counts(*target.count(members(archive)))
            for member in members(archive):
                target.add(member)
            if target.restricts:
                for member in members(archive):
                    target.restrict(member)
            _change_mode(directory, mode & (target.mode | INHERITED))


@contextmanager
def _store_errors(failure: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{failure}: {plain(error)}").with_peer_text() from error


@contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    """Open a directory. What is then written goes into it, even if another program puts a link at its path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_own(directory: int) -> None:
    """Raise StoreError if another user has put the directory there, or something in it while they still could.

    Such a user could lead what is unpacked to another directory, by links. On some file systems of a network the
    owner of a new file is not the user of the process.
    """
    owner, planted = os.fstat(directory).st_uid, os.listdir(directory)
    if owner != os.geteuid():
        name = f".restante-{secrets.token_hex(8)}"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            os.unlink(name, dir_fd=directory)
            planted += [] if os.fstat(descriptor).st_uid == owner else [name]
        finally:
            os.close(descriptor)
    if planted:
        reason = "another program has changed the unfinished directory"
        raise StoreError(f"cannot unpack what was received: {reason}").with_peer_text()


class _Target:
    """A directory that is being filled, and what it may still get."""

    def __init__(self, directory: int, limits: ArchiveLimits, progress: Callable[[int], None]) -> None:
        self.mode = PERMISSIONS
        """What is left of the mode of the directory itself."""
        self.restricts = False
        """Whether `restrict` is to be called for each member when all are there."""
        self._directory = directory
        self._restricted: tuple[list[str], tuple[int, ...]] = ([], ())
        self._files_left = limits.files
        self._directories_left = limits.directories
        self._bytes_left = limits.size
        self._top = limits.top
        self._entries_left = MAX_ENTRIES
        self._progress = progress

    def count(self, members: Iterable[Member]) -> tuple[int, int]:
        """Return how many files and directories the members make, also directories that only their paths name.

        Hashes of paths are remembered. If there are more than MAX_REMEMBERED, all are forgotten, and a directory that
        comes again is counted again. Clients send what is in a directory together, so only those above it come again.
        Beyond MAX_ENTRIES, `add` refuses the archive in any case.
        """
        files = directories = 0
        hashes = set[int]()
        for member in members:
            parts = self._parts(member.name)
            if not member.is_directory:
                files += 1
                del parts[-1:]
            while parts and directories <= MAX_ENTRIES and (path := hash("/".join(parts))) not in hashes:
                if len(hashes) == MAX_REMEMBERED:
                    hashes.clear()
                hashes.add(path)
                directories += 1
                parts.pop()
            self._progress(0)
        return files, directories

    def add(self, member: Member) -> None:
        """Unpack one member."""
        parts = self._parts(member.name)
        modes = self._modes(parts, member)
        try:
            if member.is_directory:
                self._add_directories(parts, modes)
            else:
                self._add_file(parts, modes, member)
        except OSError as error:
            raise _error_about(member, error) from error
        self._progress(0)

    def restrict(self, member: Member) -> None:
        """Take from the directories of a member's path what the archive does not allow, and add nothing.

        The owner may write in them until then, since files and directories come in any order.
        """
        parts = self._parts(member.name)
        modes = self._modes(parts, member)
        if (parts[: len(modes)], modes) == self._restricted:  # of the member before, mostly
            return
        self._restricted = (parts[: len(modes)], modes)
        try:
            for number, mode in enumerate(modes, 1):
                if mode:
                    with _opened("/".join(parts[:number]), self._directory) as descriptor:
                        current_mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                        _change_mode(descriptor, current_mode & (mode | OWNER_READS | INHERITED))
        except OSError as error:
            raise _error_about(member, error) from error
        self._progress(0)

    def _modes(self, parts: list[str], member: Member) -> tuple[int, ...]:
        """Return what the archive says of the directories of a path, 0 for nothing."""
        if not parts:
            self.mode &= (member.mode or PERMISSIONS) | OWNER_READS
            return ()
        above = member.parents if len(member.parents) == len(parts) else (0,) * len(parts)
        self.mode &= (above[0] or PERMISSIONS) | OWNER_READS
        return (*above[1:], member.mode) if member.is_directory else above[1:]

    def _parts(self, name: str) -> list[str]:
        """Return the parts of a member's name, each of which is safe. The directory itself has none."""
        if name.startswith("/"):
            raise UnsafeNameError(f"the archive has {quoted(name)}, which is outside of the directory")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        for part in parts:
            if fault := name_fault(part):
                raise UnsafeNameError(f"the archive has {quoted(name)}, whose path has a part that {fault}")
        if self._top is not None:
            if parts[:1] != [self._top]:
                raise UnsafeNameError(f"the archive has {quoted(name)}, which is outside of {quoted(self._top)}")
            del parts[0]
        if len(parts) > MAX_DEPTH:
            raise ArchiveError(f"the archive has {quoted(name)}, which is more than {MAX_DEPTH - 1} directories deep")
        return parts

    def _add_file(self, parts: list[str], modes: tuple[int, ...], member: Member) -> None:
        if not parts:
            raise ArchiveError("the archive has a file without a name")
        if member.size > self._bytes_left or not self._files_left:
            raise ArchiveError("the archive has more than was offered")
        self._bytes_left -= member.size
        self._files_left -= 1
        self._count()
        mode = (member.mode or 0o666) & PERMISSIONS | 0o400
        try:
            descriptor = self._create(parts, mode)
        except FileNotFoundError:
            self._add_directories(parts[:-1], modes)
            descriptor = self._create(parts, mode)
        try:  # os.fdopen would take a sixth of the processor time of a small file
            for block in member.blocks():
                _write(descriptor, block)
                self._progress(len(block))
        finally:
            os.close(descriptor)

    def _create(self, parts: list[str], mode: int) -> int:
        # With O_EXCL neither an existing file nor a link is written to (open(2)).
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open("/".join(parts), flags, mode, dir_fd=self._directory)

    def _add_directories(self, parts: list[str], modes: tuple[int, ...]) -> None:
        """Create a directory and those above it. One that is there already gets its mode from `restrict`."""
        for number, mode in enumerate(modes, 1):
            path = "/".join(parts[:number])
            self._check_room(path)
            try:
                os.mkdir(path, (mode or PERMISSIONS) & PERMISSIONS | 0o700, dir_fd=self._directory)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path, dir_fd=self._directory).st_mode):
                    raise
                self.restricts |= number == len(modes) and mode != 0
            else:
                self.restricts |= mode != 0 and mode & 0o700 != 0o700
                self._directories_left -= 1
                self._count()

    def _check_room(self, path: str) -> None:
        """Raise ArchiveError if a directory would be one too many."""
        if self._directories_left and self._entries_left:
            return
        with suppress(FileNotFoundError):
            os.lstat(path, dir_fd=self._directory)
            return
        if not self._directories_left:
            raise ArchiveError("the archive has more directories than were offered")
        self._count()

    def _count(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise ArchiveError(f"the archive has more than {counted(MAX_ENTRIES, 'file')}")


def _change_mode(descriptor: int, mode: int) -> None:
    with suppress(OSError):  # some file systems have no modes (FAT)
        os.fchmod(descriptor, mode)


def _error_about(member: Member, error: OSError) -> ArchiveError | StoreError:
    if error.errno in CLASHES:
        return ArchiveError(f"the archive has {quoted(member.name)} twice")
    if error.errno == errno.ENAMETOOLONG:
        return ArchiveError(f"the archive has {quoted(member.name)}, whose path is too long")
    return StoreError(f"cannot write {quoted(member.name)}: {plain(error)}").with_peer_text()


def _write(file: int, block: bytes) -> None:
    """Write all of a block: a single call may write less (write(2))."""
    view = memoryview(block)
    while view:
        view = view[os.write(file, view) :]
