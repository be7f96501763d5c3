"""Archives to unpack: what shipped clients send, and what a hostile peer may make of it."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from restante.client.files.unpacking import unpack

CONTENTS = {"a": b"1" * 3000, "d/b": b"22", "d/e/ü": b"", "年": bytes(range(256)) * 4}
"""The files of an ordinary directory."""

OFFERED = len(CONTENTS), sum(map(len, CONTENTS.values()))
"""What was offered of it: files and bytes."""

Make = Callable[[dict[str, bytes]], bytes]
"""Makes an archive of files."""


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip as Go's client and older Python clients make it: deflated, without directories."""
    return zip_of_members(files.items(), method)


def zip_of_members(members: Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for member, data in members:
            archive.writestr(member, data)
    return made.getvalue()


def zip64_of(data: bytes, offset: int = 0) -> bytes:
    """Return a zip with one stored file `a`, whose sizes and offset are in a ZIP64 record."""
    head, end = zip_of({"a": data}, zipfile.ZIP_STORED)[:-22].split(b"PK\1\2")
    extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), offset)
    central = bytearray(b"PK\1\2" + end + extra)
    central[20:28], central[30:32], central[42:46] = b"\xff" * 8, struct.pack("<H", len(extra)), b"\xff" * 4
    return head + central + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(head), 0)


def member(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def tar_of(
    files: dict[str, bytes], change: Callable[[tarfile.TarInfo], object] = bool, form: int = tarfile.GNU_FORMAT
) -> bytes:
    """Return a tar as Rust's client makes it: GNU's format."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def unpacked(
    data: bytes,
    into: Path,
    offered: tuple[int, int] = (100, 1 << 20),
    top: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, bytes]:
    """Unpack an archive into a directory, which is made if it is missing, and return its files."""
    into.mkdir(exist_ok=True)
    unpack(io.BytesIO(data), into, max_files=offered[0], max_bytes=offered[1], progress=progress, top=top)
    return files_in(into)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
