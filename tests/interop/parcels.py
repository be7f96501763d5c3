"""What the tests of transfers send: files of many sizes and names, and a directory; and how they are compared."""

from __future__ import annotations

import filecmp
import os
import random
from pathlib import Path
from typing import Final

from restante.client.transit.pipe import RECORD_BYTES

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
LARGE: Final = 100 * MIB
"""More than the sockets of two connections and a relay between them hold."""
MEDIUM: Final = 32 * MIB
"""For the Rust client, which is slow as it is built here: more than the sockets of a connection hold by default, up
to 6 MiB at the one end and up to 4 MiB at the other (tcp(7))."""

PARCELS: Final = {
    "parcel.bin": 300_000,
    "nothing.bin": 0,
    "-leading dash": 1,
    "Grüße, naïve señor.txt": 16 * KIB - 16,  # what Go sends in a record
    "Καλημέρα κόσμε.pdf": 16 * KIB - 1,
    "مرحبا بالعالم.txt": 16 * KIB,  # what Python and Rust send in a record
    "Доброе утро": 16 * KIB + 1,
    "日本語 한국어 中文.tar.gz": RECORD_BYTES - 1,
    "👩‍🚀📦.bin": RECORD_BYTES,  # what we send in a record
    "e\u0301tude $(id) 'quotes' \"double\" #1 %41 & co.txt": RECORD_BYTES + 1,
    "שלום עולם": 5 * MIB + 7,
    "n" * 200: 2,
    "д" * 100: 5,
    " a b  ": 3,
    ".hidden": 4,
}
"""Sizes of files, by name."""


def write_parcel(folder: Path, name: str) -> Path:
    """Write the file of this name, whose bytes are always the same."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(random.Random(name).randbytes(PARCELS[name]))
    return path


def write_sparse(folder: Path, size: int) -> Path:
    """Write a file that takes no room on disk, but for a few bytes at its ends and in its middle."""
    folder.mkdir(exist_ok=True)
    path = folder / "sparse.bin"
    with path.open("wb") as file:
        for place in (0, size // 2, size - 4):
            file.seek(place)
            file.write(b"mark")
    assert path.stat().st_size == size
    return path


def same_bytes(one: Path, other: Path) -> bool:
    return filecmp.cmp(one, other, shallow=False)


TREE: Final[dict[str, bytes | None]] = {
    "read me.txt": b"some words\n",
    "empty file": b"",
    "empty directory": None,
    "one/two/three/deep.bin": random.Random(3).randbytes(70_000),
    "one/run.sh": b"#!/bin/sh\nexit 0\n",
    "Ελληνικά/مرحبا/📦.txt": "é".encode(),
    "one/-dash": b"-",
    ".hidden/x": b"x",
}
"""Files of a directory, by path; None is a directory."""

FILES: Final = {path: content for path, content in TREE.items() if content is not None}
"""`TREE` as clients send it that leave out empty directories."""


def write_tree(folder: Path, name: str) -> Path:
    """Write a directory of this name."""
    top = folder / name
    for path, content in TREE.items():
        place = top / path
        if content is None:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    (top / "one/run.sh").chmod(0o755)
    return top


def read_tree(top: Path) -> dict[str, bytes | None]:
    """Return what is in a directory, as `TREE` has it."""
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
        for path in top.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


def is_executable(top: Path) -> bool:
    return os.access(top / "one/run.sh", os.X_OK)
