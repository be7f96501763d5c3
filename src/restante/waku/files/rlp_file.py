"""Files of envelopes in their form on the wire: concatenated RLP and nothing else (suffix .rlp)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from restante.waku import files
from restante.waku.archive.records import Archived
from restante.waku.files.rlp_items import items


def write(file: Path, pages: Iterable[list[Archived]]) -> None:
    """Write the envelopes in the given order. Raises OSError."""
    with file.open("wb") as output:
        for page in pages:
            output.writelines(each.raw for each in page)


def read(file: Path) -> files.FileItems:
    """Yield each item. Stop at an invalid length, because the start of the next item is unknown. Raises OSError."""
    with file.open("rb") as data:
        for item in items(data, file.stat().st_size):
            where = f"byte {item.at}"
            if item.fault is None:
                yield files.read(item.raw, where)
            else:
                rest = "; the rest of the file cannot be read" if item.last else ""
                yield files.UnreadableItem(where, item.fault + rest)
