"""A member of an archive, whichever kind of archive it is, and how one reads an archive that may be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

from restante.client.errors import ArchiveError

READ_BYTES: Final = 256 << 10
"""How much is read of an archive at once."""

MAX_PATH_BYTES: Final = 4096
"""The longest name of a member (PATH_MAX of Linux)."""


class Member(NamedTuple):
    """A file or directory as the archive describes it. Nothing of it is checked but that it is in the archive."""

    name: str
    is_directory: bool
    parents: tuple[int, ...]
    """The same as `mode` of the directories above it, from the one that is unpacked on; empty if it says nothing."""

    mode: int
    """Its kind and permissions (st_mode), or 0 if the archive says nothing of them."""

    size: int
    blocks: Callable[[], Iterator[bytes]]
    """Yields its contents, `size` bytes and never more; for a directory nothing. To be called before the next member
    is read, or not at all. Raises ArchiveError."""


def decoded_name(name: bytes, encoding: str = "utf-8") -> str:
    """Return the name of a member. Raises ArchiveError."""
    if len(name) > MAX_PATH_BYTES:
        raise ArchiveError(f"the archive has a name of more than {MAX_PATH_BYTES} bytes")
    try:
        return name.decode(encoding)
    except UnicodeDecodeError as error:
        raise ArchiveError("the archive has a name that is not UTF-8") from error


def read_at(archive: BinaryIO, position: int, size: int) -> bytes:
    """Return bytes from inside an archive. Raises ArchiveError if it has fewer."""
    if position >= 0:
        archive.seek(position)
        data = archive.read(size)
        if len(data) == size:
            return data
    raise ArchiveError("the archive is broken: it is too short")


def blocks_at(archive: BinaryIO, position: int, size: int) -> Iterator[bytes]:
    """Yield the same in blocks."""
    while size:
        block = read_at(archive, position, min(READ_BYTES, size))
        position += len(block)
        size -= len(block)
        yield block
