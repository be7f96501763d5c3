"""The members of a zip file that a hostile peer made, one after the other, in flat memory.

The standard library's zipfile reads the whole central directory, makes an object for each member and then believes
sizes and offsets: with 16 MiB a peer would take 300 MB, and overlapping members turn 46 MB into 4.5 PB (Fifield, "A
better zip bomb", WOOT 2019). This reader takes only what shipped clients write: members in the order of the central
directory, behind one another, stored or deflated, without a comment at the end.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from functools import partial
from struct import unpack_from
from typing import Any, BinaryIO, NamedTuple

from restante.client.errors import ArchiveError
from restante.client.files.member import READ_BYTES, Member, blocks_at, decoded_name, read_at
from restante.client.files.names import quoted
from restante.client.files.zip_layout import (
    CENTRAL,
    CENTRAL_MARK,
    DEFLATED,
    ENCRYPTED,
    END,
    END_64,
    END_64_MARK,
    END_MARK,
    FULL_32,
    LOCAL,
    LOCAL_MARK,
    LOCATOR,
    LOCATOR_MARK,
    PARENTS_EXTRA,
    STORED,
    UTF_8,
    ZIP64_EXTRA,
)


class _Record(NamedTuple):
    """What the central directory says of a member."""

    raw_name: bytes
    name: str
    method: int
    crc: int
    stored_size: int
    size: int
    offset: int
    mode: int
    parents: tuple[int, ...]


def zip_members(archive: BinaryIO) -> Iterator[Member]:
    """Yield the members of a zip file. Raises ArchiveError, and OSError if it cannot be read."""
    start, end, count = _central_directory(archive)
    free = members = 0
    for record in _records(archive, start, end):
        members += 1
        if record.offset < free:
            raise ArchiveError(f"the archive is broken: {quoted(record.name)} overlaps another file")
        if record.offset >= start:  # at an offset of 64 bits, seeking would fail
            raise ArchiveError(f"the archive is broken: {quoted(record.name)} is not in it")
        position = _contents_position(archive, record)
        free = position + record.stored_size
        if free > start:
            raise ArchiveError(f"the archive is broken: {quoted(record.name)} is not in it")
        is_directory = record.name.endswith("/")
        if is_directory and record.size:
            raise ArchiveError(f"the archive is broken: the directory {quoted(record.name)} has contents")
        if stat.S_IFMT(record.mode) not in {0, stat.S_IFDIR if is_directory else stat.S_IFREG}:
            raise ArchiveError(f"the archive has {quoted(record.name)}, which is neither a file nor a directory")
        blocks = partial(_checked_contents, archive, record, position)
        yield Member(record.name, is_directory, record.parents, record.mode, record.size, blocks)
    if members != count:
        raise ArchiveError("the archive is broken: it has another number of files than it says")


def _central_directory(archive: BinaryIO) -> tuple[int, int, int]:
    """Return where the central directory begins and ends, and how many members it has."""
    at_end = archive.seek(0, 2) - END.size
    mark, disk, first_disk, disk_count, count, size, start, comment = END.unpack(read_at(archive, at_end, END.size))
    if mark != END_MARK or comment:
        raise ArchiveError("the archive is not a zip file, or its end is missing")
    at_64, at_locator = at_end - LOCATOR.size - END_64.size, at_end - LOCATOR.size
    if at_64 >= 0:
        locator = LOCATOR.unpack(read_at(archive, at_locator, LOCATOR.size))
        if locator[0] == LOCATOR_MARK:
            if locator[1:] != (0, at_64, 1):
                raise ArchiveError("the archive is broken: its end is not where it says")
            mark, _, _, _, disk, first_disk, disk_count, count, size, start = END_64.unpack(
                read_at(archive, at_64, END_64.size)
            )
            if mark != END_64_MARK:
                raise ArchiveError("the archive is broken: its end is not where it says")
            at_end = at_64
    if disk or first_disk or disk_count != count or start + size != at_end:
        raise ArchiveError("the archive is broken: its list of files is not where it says")
    return start, at_end, count


def _records(archive: BinaryIO, position: int, end: int) -> Iterator[_Record]:
    """Yield the records of the central directory, of which a piece is in memory at a time."""
    while position < end:
        piece = read_at(archive, position, min(READ_BYTES, end - position))
        offset = 0
        while offset + CENTRAL.size <= len(piece):
            fields = CENTRAL.unpack_from(piece, offset)
            end_of_record = offset + CENTRAL.size + sum(fields[10:13])
            if end_of_record > len(piece):
                break
            yield _record(fields, piece[offset + CENTRAL.size : end_of_record])
            offset = end_of_record
        if not offset:
            raise ArchiveError("the archive is broken: its list of files ends too early")
        position += offset


def _record(fields: tuple[Any, ...], texts: bytes) -> _Record:
    mark, _, _, flags, method, _, _, crc, stored_size, size, name_bytes, extra_bytes, _, disk = fields[:14]
    raw_name = texts[:name_bytes]
    if mark != CENTRAL_MARK or disk:
        raise ArchiveError("the archive is broken: its list of files has something else")
    name = decoded_name(raw_name, "utf-8" if flags & UTF_8 else "cp437")
    if flags & ENCRYPTED:
        raise ArchiveError(f"the archive's file {quoted(name)} is encrypted")
    if method not in {STORED, DEFLATED}:
        raise ArchiveError(f"the archive's file {quoted(name)} is compressed in an unknown way")
    extra = texts[name_bytes : name_bytes + extra_bytes]
    size, stored_size, offset = _values_of_64_bits(extra, (size, stored_size, fields[16]))
    if method == STORED and size != stored_size:
        raise ArchiveError(f"the archive is broken: {quoted(name)} has two sizes")
    modes = _field(extra, PARENTS_EXTRA)
    parents = unpack_from(f"<{len(modes) // 2}H", modes)
    return _Record(raw_name, name, method, crc, stored_size, size, offset, fields[15] >> 16, parents)


def _values_of_64_bits(extra: bytes, values: tuple[int, int, int]) -> Iterator[int]:
    """Yield the values, those that do not fit into 32 bits from the extra field (4.5.3)."""
    field, offset = _field(extra, ZIP64_EXTRA), 0
    for value in values:
        if value != FULL_32:
            yield value
            continue
        if offset + 8 > len(field):
            raise ArchiveError("the archive is broken: a size is missing")
        yield unpack_from("<Q", field, offset)[0]
        offset += 8


def _field(extra: bytes, kind: int) -> bytes:
    """Return what an extra field contains. It is empty if there is none."""
    offset = 0
    while offset + 4 <= len(extra):
        field_kind, length = unpack_from("<HH", extra, offset)
        if field_kind == kind:
            return extra[offset + 4 : offset + 4 + length]
        offset += 4 + length
    return b""


def _contents_position(archive: BinaryIO, record: _Record) -> int:
    """Return where a member's contents begin: behind its own record, which must have the same name."""
    head = read_at(archive, record.offset, LOCAL.size + len(record.raw_name))
    fields = LOCAL.unpack_from(head)
    if fields[0] != LOCAL_MARK or fields[9] != len(record.raw_name) or head[LOCAL.size :] != record.raw_name:
        raise ArchiveError(f"the archive is broken: {quoted(record.name)} is not where it says")
    return record.offset + len(head) + int(fields[10])


def _checked_contents(archive: BinaryIO, record: _Record, position: int) -> Iterator[bytes]:
    """Yield a member's contents, as many bytes as it should have. Raises ArchiveError if they are others."""
    pieces = blocks_at(archive, position, record.stored_size)
    remaining, crc = record.size, 0
    try:
        for block in pieces if record.method == STORED else _inflated(pieces):
            remaining -= len(block)
            if remaining < 0:
                break
            crc = zlib.crc32(block, crc)
            yield block
    except zlib.error as error:
        raise ArchiveError(f"the archive is broken: {quoted(record.name)} cannot be expanded") from error
    if remaining or crc != record.crc:
        raise ArchiveError(f"the archive is broken: {quoted(record.name)} has other contents than it says")


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what deflated pieces expand to, in blocks of a bounded size."""
    inflating = zlib.decompressobj(-zlib.MAX_WBITS)
    for piece in pieces:
        compressed = piece
        while True:  # the last block may leave some in the decompressor, which needs no more input for it
            block = inflating.decompress(compressed, READ_BYTES)
            if block:
                yield block
            compressed = inflating.unconsumed_tail
            if not compressed and len(block) < READ_BYTES:
                break
    if not inflating.eof or inflating.unused_data:
        raise zlib.error
