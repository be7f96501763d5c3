"""A member of an archive, whichever kind of archive it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

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
