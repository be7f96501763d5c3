"""PNG files: texts in them, and smaller ones of the same picture."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"

Chunk = tuple[bytes, bytes]


def chunks(png: bytes) -> Iterator[Chunk]:
    """Return the type and the data of each chunk."""
    assert png.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(kind + data),)
        yield kind, data
        at += 12 + length


def png_of(each: Iterator[Chunk] | list[Chunk]) -> bytes:
    """Return a PNG file of these chunks."""
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in each
    )


def with_text(png: bytes, keyword: str, text: str) -> bytes:
    """Return the same picture with a text in ASCII, compressed anew."""
    head, *rest = chunks(png)
    pixels = zlib.decompress(b"".join(data for kind, data in rest if kind == b"IDAT"))
    return png_of(
        [
            head,
            (b"tEXt", keyword.encode("ascii") + b"\0" + text.encode("ascii")),
            *(each for each in rest if each[0] not in {b"IDAT", b"IEND", b"tEXt"}),
            (b"IDAT", zlib.compress(pixels, 9)),
            (b"IEND", b""),
        ]
    )


def text_of(png: bytes, keyword: str) -> str | None:
    """Return the text with this keyword."""
    start = keyword.encode("ascii") + b"\0"
    for kind, data in chunks(png):
        if kind == b"tEXt" and data.startswith(start):
            return data.removeprefix(start).decode("ascii")
    return None
