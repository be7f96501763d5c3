"""A directory as an uncompressed zip file whose size is known before its first byte.

As magic-wormhole 0.24 sends it (cmd_send.py:358-386): only empty directories are members, symbolic links lead to
their files, and sizes and CRC are behind the contents. The modes of all directories are in extra fields.
"""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from restante.client.errors import UnsendableFileError
from restante.client.files.names import quoted, quoted_path
from restante.client.files.walk import FileEntry, Walk, path_with_name
from restante.client.files.zip_layout import (
    CENTRAL,
    CENTRAL_MARK,
    DESCRIPTOR_MARK,
    END,
    END_64,
    END_64_MARK,
    END_MARK,
    FULL_16,
    FULL_32,
    LOCAL,
    LOCAL_MARK,
    LOCATOR,
    LOCATOR_MARK,
    MODE_MASK,
    PARENTS_EXTRA,
    SIZES_BEHIND,
    STORED,
    UTF_8,
    ZIP64_EXTRA,
)
from restante.common.errors import Misuse, plain

CHUNK_BYTES: Final = 256 << 10
"""How much is read of a file at once, and the largest chunk."""

GATHERED_BYTES: Final = 64 << 10
"""Smaller pieces are gathered up to this size: small files, and the records between them."""

ZIP_VERSION: Final = 20
"""Version 2.0 (4.4.3): directories."""

ZIP64_VERSION: Final = 45
"""Version 4.5 (4.4.3): sizes of more than 32 bits."""

UNIX: Final = 3
"""Where the archive was made (4.4.2). Then the upper half of a member's attributes is its mode."""

IS_DIRECTORY: Final = 0x10
"""MS-DOS's mark of a directory in the lower half."""

EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
LATEST: Final = (2107, 12, 31, 23, 59, 58)
"""The times that a zip file can say (4.4.6)."""

Common = tuple[int, int, int, int]
"""What a member's two records have in common: flags, method, time and date."""


class ZipPlan:
    """The members of a zip file, and how large it will be.

    `left_out` has a sentence for each file that cannot be sent, if these are ignored, and `doubtful` for the first
    files that a receiver on another system cannot store.
    """

    def __init__(self, members: Iterable[FileEntry], walk: Walk) -> None:
        self.left_out, self.doubtful = walk.left_out, walk.doubtful
        self.number_of_files = 0
        self.number_of_bytes = 0
        self._members: list[FileEntry] = []
        position = directory = 0
        for member in members:
            self._members.append(member)
            local_size, central_size = _sizes(member, position)
            position += local_size
            directory += central_size
            if not member.is_directory:
                self.number_of_files += 1
                self.number_of_bytes += member.size
        self.number_of_directories = walk.directories
        self.size = position + directory + len(_end(len(self._members), position, directory))

    def chunks(self) -> Iterator[bytes]:
        """Yield the zip file in chunks of 64 to 320 KiB, of which only the last may be smaller, reading the files.

        Raises UnsendableFileError if a file cannot be read any more, or has no longer the size that it had.
        """
        return _gathered(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        position, directory = 0, bytearray()
        for member in self._members:
            name, crc = member.name.encode(), 0
            common = _common(member, name)
            yield _local(member.size, name, common)
            if not member.is_directory:
                for piece in _contents(member):
                    crc = zlib.crc32(piece, crc)
                    yield piece
                yield _descriptor(member.size, crc)
            directory += _central(member, name, common, crc, position)
            position += _sizes(member, position)[0]
        for offset in range(0, len(directory), CHUNK_BYTES):
            yield bytes(directory[offset : offset + CHUNK_BYTES])
        yield _end(len(self._members), position, len(directory))


def plan_directory(directory: Path, *, ignore_unsendable: bool = False) -> ZipPlan:
    """Return the plan of a zip file with what is in a directory. Raises UnsendableFileError."""
    walk = Walk(ignore_unsendable=ignore_unsendable)
    return ZipPlan(walk.below(directory), walk)


def plan_paths(paths: Iterable[Path], *, ignore_unsendable: bool = False) -> ZipPlan:
    """Return the plan of a zip file with several files and directories, named by the last part of their paths.

    Raises UnsendableFileError, and Misuse if two have the same name.
    """
    walk, named_paths = Walk(ignore_unsendable=ignore_unsendable), list(map(path_with_name, paths))
    names = {path.name for path in named_paths}
    if len(names) < len(named_paths):
        raise Misuse("two of the files have the same name, and the receiver could store only one")
    walk.note_doubtful("", sorted(names))
    return ZipPlan(chain.from_iterable(walk.entries(path) for path in named_paths), walk)


def _contents(member: FileEntry) -> Iterator[bytes]:
    """Yield the bytes of a file, as many as it had when it was planned."""
    remaining = member.size
    try:
        # Without O_NONBLOCK a named pipe that took the file's place would wait for a writer (open(2)).
        descriptor = os.open(member.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                remaining = -1
            # One byte more shows that the file has grown.
            while remaining >= 0 and (piece := os.read(descriptor, min(CHUNK_BYTES, remaining + 1))):
                remaining -= len(piece)
                if remaining >= 0:
                    yield piece
            if os.fstat(descriptor).st_mtime_ns != status.st_mtime_ns:  # of the same size, and perhaps a mixture
                remaining = -1
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unsendable(member, plain(error)) from error
    if remaining:
        raise _unsendable(member, "it changed while it was sent")


def _unsendable(member: FileEntry, reason: str) -> UnsendableFileError:
    error = UnsendableFileError(f"cannot send {quoted_path(member.path)}: {reason}")
    return error.with_peer_text(f"cannot send {quoted(member.name)}: {reason}")


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    small_pieces: list[bytes] = []
    size = 0
    for piece in pieces:
        small_pieces.append(piece)
        size += len(piece)
        if size >= GATHERED_BYTES:
            yield b"".join(small_pieces)
            small_pieces.clear()
            size = 0
    if size:
        yield b"".join(small_pieces)


def _sizes(member: FileEntry, position: int) -> tuple[int, int]:
    """Return how many bytes a member takes at its position, and in the central directory."""
    name, large = len(member.name.encode()), member.size >= FULL_32
    central_size = CENTRAL.size + name + (4 + 2 * len(member.parents) if member.parents else 0)
    if large or position >= FULL_32:
        central_size += 4 + 16 * large + 8 * (position >= FULL_32)
    if member.is_directory:
        return LOCAL.size + name, central_size
    return LOCAL.size + name + member.size + (20 + 24 if large else 16), central_size


def _local(size: int, name: bytes, common: Common) -> bytes:
    large = size >= FULL_32
    extra = struct.pack("<HHQQ", ZIP64_EXTRA, 16, 0, 0) if large else b""
    sizes = FULL_32 if large else 0  # the true ones are in the descriptor
    version = ZIP64_VERSION if large else ZIP_VERSION
    head = LOCAL.pack(LOCAL_MARK, version, *common, 0, sizes, sizes, len(name), len(extra))
    return head + name + extra


def _descriptor(size: int, crc: int) -> bytes:
    return struct.pack("<4sIQQ" if size >= FULL_32 else "<4sIII", DESCRIPTOR_MARK, crc, size, size)


def _central(member: FileEntry, name: bytes, common: Common, crc: int, position: int) -> bytes:
    large = [member.size] * 2 if member.size >= FULL_32 else []
    if position >= FULL_32:
        large.append(position)
    extra = struct.pack(f"<HH{len(large)}Q", ZIP64_EXTRA, 8 * len(large), *large) if large else b""
    if parents := member.parents:
        modes = [mode & MODE_MASK for mode in parents]
        extra += struct.pack(f"<HH{len(modes)}H", PARENTS_EXTRA, 2 * len(modes), *modes)
    version, size = ZIP64_VERSION if large else ZIP_VERSION, min(member.size, FULL_32)
    attributes = (member.mode & MODE_MASK) << 16 | (IS_DIRECTORY if member.is_directory else 0)
    head = CENTRAL.pack(
        CENTRAL_MARK,
        UNIX << 8 | version,
        version,
        *common,
        crc,
        size,
        size,
        len(name),
        len(extra),
        0,  # no comment
        0,  # first disk
        0,  # not known to be text
        attributes,
        min(position, FULL_32),
    )
    return head + name + extra


def _common(member: FileEntry, name: bytes) -> Common:
    time_fields = max(EARLIEST, min(LATEST, time.localtime(member.modified)[:6]))
    flags = 0 if member.is_directory else SIZES_BEHIND
    return (
        flags if name.isascii() else flags | UTF_8,
        STORED,
        time_fields[3] << 11 | time_fields[4] << 5 | time_fields[5] // 2,
        (time_fields[0] - EARLIEST[0]) << 9 | time_fields[1] << 5 | time_fields[2],
    )


def _end(count: int, position: int, size: int) -> bytes:
    """Return the records behind the central directory, which begins at a position and has a size."""
    records = b""
    if count >= FULL_16 or position >= FULL_32 or size >= FULL_32:
        size_64 = END_64.size - 12  # without the signature and this number
        records = END_64.pack(END_64_MARK, size_64, ZIP64_VERSION, ZIP64_VERSION, 0, 0, count, count, size, position)
        records += LOCATOR.pack(LOCATOR_MARK, 0, position + size, 1)
    count_16 = min(count, FULL_16)
    return records + END.pack(END_MARK, 0, 0, count_16, count_16, min(size, FULL_32), min(position, FULL_32), 0)
