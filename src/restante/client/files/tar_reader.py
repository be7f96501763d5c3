"""The members of a tar file that a hostile peer made, one after the other, in flat memory.

Rust's client sends a directory as one (transfer/v1.rs:280-341 of 0.8.1): GNU headers, long names as members of their
own, no links. The standard library's tarfile keeps all members, and reads names and lists of holes of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, Final

from restante.client.errors import ArchiveError
from restante.client.files.member import Member, blocks_at, decoded_name, read_at
from restante.client.files.names import quoted

BLOCK: Final = 512
"""Headers and contents fill whole blocks (POSIX.1-2017, pax, "ustar Interchange Format")."""

MAX_EXTENDED_BYTES: Final = 64 << 10
"""The longest extended header (pax). Ordinary ones have some hundred bytes."""

FILES: Final = {b"0", b"\0", b"7"}
DIRECTORY: Final = b"5"
LONG_NAME: Final = b"L"
EXTENDED: Final = b"x"
EXTENDED_FOR_ALL: Final = b"g"

REFUSED: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"S": "a sparse file",
}
"""Members that are never unpacked: links lead elsewhere, and shipped clients send none of them."""


def tar_members(archive: BinaryIO) -> Iterator[Member]:
    """Yield the members of a tar file. Raises ArchiveError, and OSError if it cannot be read."""
    end = archive.seek(0, 2)
    position, overrides = 0, dict[str, bytes]()
    while True:
        head = read_at(archive, position, BLOCK)
        if not any(head):
            return  # a second such block follows, which nobody needs
        position += BLOCK
        kind, raw_name, size = _parse_header(head)
        if kind in {LONG_NAME, EXTENDED, EXTENDED_FOR_ALL}:
            if size > MAX_EXTENDED_BYTES:
                raise ArchiveError("the archive has a name or a header that is too long")
            data = read_at(archive, position, size)
            fields = {"path": data.rstrip(b"\0")} if kind == LONG_NAME else _parse_extended(data)
            if kind != EXTENDED_FOR_ALL:
                overrides |= fields
            elif fields:
                raise ArchiveError("the archive has one name or size for all its files")
        else:
            name = decoded_name(overrides.get("path", raw_name))
            size = _decimal(overrides["size"]) if "size" in overrides else size
            overrides = {}
            if position + size > end:
                raise ArchiveError(f"the archive is broken: {quoted(name)} is cut off")
            yield _member(archive, position, kind, name, _octal(head[100:108]), size)
        position += size + -size % BLOCK


def _parse_header(head: bytes) -> tuple[bytes, bytes, int]:
    """Return kind, name and size of a header."""
    if head[257:262] != b"ustar" or sum(head) - sum(head[148:156]) + 8 * ord(" ") != _octal(head[148:156]):
        raise ArchiveError("the archive is not a tar file, or it is broken")
    name = head[:100].split(b"\0", 1)[0]
    prefix = head[345:500].split(b"\0", 1)[0]
    if head[262:263] == b"\0" and prefix:  # GNU's has a space there, and other fields in the prefix's place
        name = prefix + b"/" + name
    return head[156:157], name, _octal(head[124:136])


def _member(archive: BinaryIO, position: int, kind: bytes, name: str, mode: int, size: int) -> Member:
    if kind in REFUSED:
        raise ArchiveError(f"the archive has {quoted(name)}, which is {REFUSED[kind]}")
    if kind not in FILES | {DIRECTORY}:
        raise ArchiveError(f"the archive has {quoted(name)}, which is neither a file nor a directory")
    is_directory = kind == DIRECTORY or name.endswith("/")
    if is_directory and size:
        raise ArchiveError(f"the archive is broken: the directory {quoted(name)} has contents")
    return Member(name, is_directory, (), mode, size, partial(blocks_at, archive, position, size))


def _parse_extended(data: bytes) -> dict[str, bytes]:
    """Return path and size of an extended header: lines of `LENGTH KEY=VALUE`, of which LENGTH counts all."""
    fields = {}
    while data:
        digits, _, _ = data.partition(b" ")
        length = _decimal(digits)
        line, data = data[:length], data[length:]
        key, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(line) < length or line[-1:] != b"\n":
            raise ArchiveError("the archive is broken: a header cannot be read")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveError("the archive has a sparse file")
        if key in {b"path", b"size"}:
            fields[key.decode()] = value
    return fields


def _octal(field: bytes) -> int:
    """Return a number of a header. The first bit says that it is binary, as numbers above 8 GiB are."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not all(digit in b"01234567" for digit in digits):
        raise ArchiveError("the archive is broken: a number cannot be read")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise ArchiveError("the archive is broken: a number cannot be read")
    return int(digits)
