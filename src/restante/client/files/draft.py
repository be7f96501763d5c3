"""Unfinished files and directories: they have another name in the same folder until they are complete.

A process that is killed leaves its draft, whose name says so: `.NAME.part-0123456789abcdef`. What a new directory
replaces is `.NAME.old-0123456789abcdef` until it is removed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

from restante.client.files.names import MAX_NAME_BYTES, quoted, quoted_path
from restante.common.atomic_file import flush, give_name, leads_to_open_file
from restante.common.errors import Misuse, StoreError, plain
from restante.common.texts import counted

EXISTS: Final = "a file or directory of this name exists already"
"""The text that the sender gets."""

BUFFER_BYTES: Final = 64 << 10
"""How many bytes are gathered before they are written: the records of other clients have 16 KiB."""

WRITE_OUT_BYTES: Final = 16 << 20
"""After how many bytes the disk is told to write, so that little is left for the flush at the end."""

SYNC_FILE_RANGE_WRITE: Final = 2
"""linux/fs.h. Python's os module has no sync_file_range(2)."""


DRAFT: Final = re.compile(r"\..*\.part-[0-9a-f]{16}", re.DOTALL)
"""The name of a draft (`_sibling_path`)."""

MAX_NUMBER: Final = 9999
"""The highest number that `rename` adds to a name."""


MAX_SUFFIX: Final = 32
"""Characters of the suffix before which the number is put. What is longer is rather a part of the name."""


class OpenDraft:
    """A file that is being written. `file` is for those who read it again."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self._path = path
        self._size = self._written_out = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises StoreError if the disk is full or fails."""
        with _store_errors("write", self._path):
            self.file.write(data)
        self._size += len(data)
        if self._size - self._written_out >= WRITE_OUT_BYTES:
            _start_write_out(self.file.fileno(), self._written_out, self._size - self._written_out)
            self._written_out = self._size


@contextmanager
def draft_file(
    path: Path,
    *,
    replace: bool = False,
    rename: bool = False,
    before_naming: Callable[[], None] = lambda: None,
    on_named: Callable[[Path], None] = lambda _: None,
) -> Iterator[OpenDraft]:
    """Yield a new file beside `path`; on success flush it and give it the name, on an error remove it.

    With `rename` it gets a number if something has the name. `before_naming` may raise an error when all is flushed,
    which takes time. `on_named` is called with the path that it got.

    Its mode is what the umask leaves of 0666. Raises Misuse, before and after, if something has the name and neither
    `replace` nor `rename` is set, or if it is a directory; StoreError if the disk fails.
    """
    check_target(path, replace=replace, rename=rename, directory=False)
    real_path = _resolved(path)
    draft = _sibling_path(real_path, "part")
    with _store_errors("write", path):
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        file = os.fdopen(descriptor, "w+b", buffering=BUFFER_BYTES)
        _mark_in_use(descriptor)
        try:
            yield OpenDraft(file, path)
            with _store_errors("write", path):
                file.flush()
                os.fsync(descriptor)
        finally:
            with suppress(OSError):  # nobody needs the bytes that are not written yet
                file.close()
        before_naming()
        check_target(real_path, replace=replace, rename=rename, directory=False)
        with _store_errors("write", path):
            if replace:
                draft.replace(real_path)
            elif rename:
                real_path = _give_free_name(real_path, lambda free: give_name(draft, free), directory=False)
            else:
                give_name(draft, real_path)
            flush(real_path.parent)
        on_named(path.with_name(real_path.name))
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def draft_directory(
    path: Path,
    *,
    replace: bool = False,
    rename: bool = False,
    before_naming: Callable[[], None] = lambda: None,
    on_named: Callable[[Path], None] = lambda _: None,
    on_error: Callable[[Callable[[], None]], None] = lambda remove: remove(),
) -> Iterator[Path]:
    """Yield a new directory beside `path`; on success flush it and give it the name, on an error remove it.

    After an error, `on_error` is called with a function that removes it, which takes long if there are many files.

    With `rename` it gets a number if something has the name. `on_named` is called with the path that it got. With
    `replace` what has the name is moved aside, and removed when the new directory has its name. A directory that came
    meanwhile is not replaced: nobody agreed to it. Raises as `draft_file` does; a directory may replace a file, and a
    file no directory.
    """
    check_target(path, replace=replace, rename=rename, directory=True)
    real_path = _resolved(path)
    draft = _sibling_path(real_path, "part")
    with _store_errors("create", path):
        draft.mkdir()
    try:
        with _opened_directory(real_path) as replaceable, _opened_directory(draft, os.O_RDONLY) as descriptor:
            if descriptor is not None:
                _mark_in_use(descriptor)
            yield draft
            with _store_errors("write", path):
                _flush_file_system(descriptor)
            before_naming()
            check_target(real_path, replace=replace, rename=rename, directory=True)
            with _store_errors("write", path):
                aside = _exchange(draft, real_path, replaceable) if replace and os.path.lexists(real_path) else None
                if rename:
                    real_path = _give_free_name(real_path, draft.rename, directory=True)
                elif aside is None:
                    # rename(2) fails if something has the name by now, unless it is an empty directory.
                    draft.rename(real_path)
        with _store_errors("flush", path.parent, aside):
            flush(real_path.parent)
        if aside is not None:  # and not before the new directory has its name on disk
            _remove(aside)
        on_named(path.with_name(real_path.name))
    except BaseException:
        on_error(lambda: _remove_tree(draft))
        raise


@contextmanager
def scratch_file(folder: Path) -> Iterator[OpenDraft]:
    """Yield a file without a name, on the disk of a folder; it is gone when it is closed. Raises StoreError."""
    with _store_errors("write in", folder):
        file = tempfile.TemporaryFile(dir=folder, buffering=BUFFER_BYTES)  # noqa: SIM115
    try:
        yield OpenDraft(file, folder)  # type: ignore[arg-type]
    finally:
        with suppress(OSError):  # nobody needs the bytes that are not written yet
            file.close()


def free_path(target: Path, *, directory: bool) -> Path:
    """Return a path in the same folder that nothing has: `name (1).txt` for `name.txt`. Raises StoreError."""
    count = 2 if target.suffixes[-2:-1] == [".tar"] else 1
    suffix = "".join(target.suffixes[-count:])
    if directory or len(suffix) > MAX_SUFFIX:
        suffix = ""
    if not os.path.lexists(target):
        return target
    for number in range(1, MAX_NUMBER + 1):
        ending = f" ({number}){suffix}"
        start = os.fsencode(target.name.removesuffix(suffix))[: MAX_NAME_BYTES - len(os.fsencode(ending))]
        path = target.with_name(f"{start.decode(errors='ignore')}{ending}")
        if not os.path.lexists(path):
            return path
    reason = f"there are {MAX_NUMBER:,} files and directories with the name and a number already"
    error = StoreError(f"cannot store {quoted_path(str(target))}: {reason}")
    raise error.with_peer_text(f"cannot store it: {reason}")


def _give_free_name(target: Path, give: Callable[[Path], object], *, directory: bool) -> Path:
    """Give a draft a name that nothing has. Return the path. Another program may be faster, also again and again."""
    while True:
        path = free_path(target, directory=directory)
        try:
            give(path)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
        else:
            return path


def abandoned_drafts(folder: Path) -> list[Path]:
    """Return the drafts in a folder that a receiver of this user left behind when it was killed."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if DRAFT.fullmatch(entry.name))
        return [folder / name for name in names if _is_abandoned(folder / name)]
    return []


def remove_abandoned_draft(draft: Path) -> None:
    """Remove one of `abandoned_drafts`. What cannot be removed remains."""
    if _is_abandoned(draft):
        _remove(draft)


def _mark_in_use(descriptor: int) -> None:
    """Lock a draft as long as it is open here. Some file systems have no locks: there no draft is abandoned."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _is_abandoned(draft: Path) -> bool:
    with suppress(OSError):
        status = draft.lstat()
        if status.st_uid != os.geteuid() or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return False
        if _has_mount_point(Path(os.path.realpath(draft))):
            return False
        access = os.O_RDONLY | os.O_DIRECTORY if stat.S_ISDIR(status.st_mode) else os.O_RDWR
        descriptor = os.open(draft, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        return True
    return False


def check_target(path: Path, *, replace: bool, directory: bool, rename: bool = False) -> None:
    """Raise Misuse if nothing may be stored at a path."""
    if path.name in {"", ".."}:  # a Path that ends with `.` has lost it
        reason = f"{quoted_path(str(path))} does not end with a name: add the name under which to store it"
        raise Misuse(reason).with_peer_text("its place has no name")
    if not os.path.isdir(path.parent):  # noqa: PTH112 - Path's raises an error for a name that is too long
        reason = f"there is no directory {quoted_path(str(path.parent))} to write {quoted(path.name)} in"
        raise Misuse(reason).with_peer_text("there is no directory to store it in")
    if rename or not os.path.lexists(path):
        return
    if not replace:
        reason = f"{quoted_path(str(path))} exists already: name another place, or move it away"
        raise Misuse(reason).with_peer_text(EXISTS)
    if is_special(path):
        reason = "leads to a device, a pipe or a socket, which is not replaced"
        raise Misuse(f"{quoted_path(str(path))} {reason}").with_peer_text(f"its place {reason}")
    with _store_errors("replace", path):
        cause = _never_replaced(path)
    if cause:
        reason = f"{quoted_path(str(path))} {cause}, and is not replaced: name another place"
        raise Misuse(reason).with_peer_text("what is at its place is never replaced")
    if not directory and path.is_dir() and not path.is_symlink():
        reason = "is a directory, and a file does not replace it"
        raise Misuse(f"{quoted_path(str(path))} {reason}").with_peer_text(f"its place {reason}")


def _never_replaced(path: Path) -> str:
    """Return why what a path leads to is not replaced, even if the user agrees, or nothing.

    Directories are compared by device and inode: links, bind mounts and file systems that ignore case give one
    directory several paths.
    """
    try:
        target = path.stat()
    except OSError:  # a link to nothing
        return ""
    protected = [(path.parent, "leads to a directory that contains it")]
    protected += [(Path(), "leads to the working directory, or to one that contains it")]
    protected += [(home, "leads to the home directory, or to one that contains it") for home in _homes()]
    for folder, cause in protected:
        if any(os.path.samestat(status, target) for status in _self_and_parents(folder)):
            return cause
    if _has_mount_point(Path(os.path.realpath(path))):
        return "leads to a mount point, or to a directory that contains one"
    return ""


def _homes() -> Iterator[Path]:
    """Yield the home directory that the environment names, and that of the account."""
    yield Path(os.path.expanduser("~"))  # noqa: PTH111 - Path's raises an error if there is none
    with suppress(KeyError):  # an account without an entry, as in containers
        yield Path(pwd.getpwuid(os.getuid()).pw_dir)


def _self_and_parents(folder: Path) -> Iterator[os.stat_result]:
    with suppress(OSError):  # the working directory was removed
        real_path = Path(os.path.realpath(folder))
        for path in (real_path, *real_path.parents):
            with suppress(OSError):  # it is in a directory without permission to search, which also forbids renaming
                yield path.stat()


def _has_mount_point(real_path: Path) -> bool:
    """Return whether a file system is mounted at a path without links, or below it (proc(5), mountinfo).

    os.path.ismount does not see all bind mounts.
    """
    with suppress(OSError):  # /proc is not mounted
        for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
            path = re.sub(rb"\\([0-7]{3})", lambda escape: bytes([int(escape[1], 8)]), line.split(b" ")[4])
            if Path(os.fsdecode(path)).is_relative_to(real_path):
                return True
    return False


def _resolved(path: Path) -> Path:
    """Return a path of the same file without links above it.

    `x/../x` would lead nowhere while x is moved aside, and a relative path elsewhere once the program changes its
    working directory.
    """
    with _store_errors("write", path):
        return Path(os.path.realpath(path.parent)) / path.name


@contextmanager
def _opened_directory(path: Path, access: int = os.O_PATH) -> Iterator[int | None]:
    """Yield a descriptor of the directory at a path: while it is open, no other directory gets its inode.

    None: nothing is there, or something else.
    """
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(path, access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_special(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe or a socket, also through links, as /dev/stdout does."""
    try:
        mode = path.stat().st_mode
    except OSError:  # there is nothing, or it is a link to nothing
        return False
    return leads_to_open_file(path) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_writable(folder: Path) -> None:
    """Raise StoreError if nothing can be written in a folder. What a system says of permissions may differ."""
    with scratch_file(folder):
        pass


def check_free_space(folder: Path, size: int, entries: int = 0) -> None:
    """Raise StoreError if the disk of a folder has no room for so many bytes, or so many files and directories."""
    with _store_errors("write in", folder):
        disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < size:  # some file systems of a network or of FUSE do not know
        reason = f"has room for {counted(free, 'byte')}, and {size:,} are offered"
    elif disk.f_files and disk.f_favail < entries:  # others have no fixed number of inodes
        reason = f"has room for {counted(disk.f_favail, 'more file')}, and {entries:,} are offered"
    else:
        return
    raise StoreError(f"{quoted_path(str(folder))} {reason}").with_peer_text(f"the disk {reason}")


@contextmanager
def _store_errors(action: str, path: Path, aside: Path | None = None) -> Iterator[None]:
    """Raise a StoreError for an OSError. It names `aside`, if what had the path is there now."""
    try:
        yield
    except OSError as error:
        cause = plain(error)
        reason = f"cannot {action} {quoted_path(str(path))}: {cause}"
        reason += "" if aside is None else f"; what was there before is {quoted_path(str(aside))} now"
        raise StoreError(reason).with_peer_text(f"cannot store it: {cause}") from error


def _sibling_path(path: Path, kind: str) -> Path:
    """Return a path in the same folder that nothing has."""
    ending = f".{kind}-{secrets.token_hex(8)}"
    start = os.fsencode(path.name)[: MAX_NAME_BYTES - len(ending) - 1]
    return path.with_name(f".{start.decode(errors='ignore')}{ending}")


def _exchange(draft: Path, path: Path, replaceable: int | None) -> Path:
    """Rename a directory to a name that something has. Return the path to which that was moved.

    `replaceable` is a descriptor of the directory that may be replaced. Raises FileExistsError for another directory.
    """
    aside = _sibling_path(path, "old")
    path.rename(aside)
    try:
        status = aside.lstat()
        is_replaceable = replaceable is not None and os.path.samestat(status, os.fstat(replaceable))
        if stat.S_ISDIR(status.st_mode) and not is_replaceable:
            raise FileExistsError(errno.EEXIST, "")
        draft.rename(path)
    except OSError:
        if os.path.lexists(path):  # of another program
            with _store_errors("write", path, aside):
                raise
        aside.rename(path)
        raise
    return aside


def _remove(aside: Path) -> None:
    """Remove what a new directory replaced. What cannot be removed remains, as that of others may."""
    if aside.is_symlink() or not aside.is_dir():
        with suppress(OSError):
            aside.unlink()
    elif not _has_mount_point(Path(os.path.realpath(aside))):  # mounted after the check
        _remove_tree(aside)


def _remove_tree(folder: Path) -> None:
    """Remove a directory, also if its owner may not write in all of it. What cannot be removed remains."""
    with suppress(OSError, RecursionError):  # Python removes at most 1,000 levels (shutil before 3.13)
        shutil.rmtree(folder, ignore_errors=True)
        for _, _, _, descriptor in os.fwalk(folder):
            with suppress(OSError):
                os.fchmod(descriptor, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _start_write_out(file: int, offset: int, count: int) -> None:
    """Let the disk begin to write a part of a file. An error is found again by the flush at the end."""
    libc = _libc()
    if hasattr(libc, "sync_file_range"):  # Linux has it (sync_file_range(2))
        libc.sync_file_range(file, ctypes.c_int64(offset), ctypes.c_int64(count), SYNC_FILE_RANGE_WRITE)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _flush_file_system(folder: int | None) -> None:
    """Flush all that the disk of a folder was given: with many small files much faster than one after the other.

    `folder` is a descriptor. None: it could not be opened, and all disks are flushed.
    """
    libc = _libc()
    if folder is None or not hasattr(libc, "syncfs"):  # Linux has it (syncfs(2))
        os.sync()
    elif libc.syncfs(folder):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
