"""Files of envelopes in their form on the wire: concatenated RLP and nothing else (suffix .rlp)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from restante.waku import files
from restante.waku.archive import Archived
from restante.waku.envelope import rlp

MAX_HEAD_BYTES: Final = 9
"""Maximum bytes of an item's tag and length."""

MAX_ITEM_BYTES: Final = 1 << 24
"""Maximum bytes of an envelope that can have been on the wire: the size limit of a frame (devp2p, rlpx.md
"Framing")."""


def write(file: Path, pages: Iterable[list[Archived]]) -> None:
    """Write the envelopes in the given order. Raises OSError."""
    with file.open("wb") as output:
        for page in pages:
            output.writelines(each.raw for each in page)


def read(file: Path) -> files.FileItems:
    """Yield each item. Stop at an invalid length, because the start of the next item is unknown. Raises OSError."""
    size = file.stat().st_size
    with file.open("rb", buffering=1 << 20) as data:
        at = 0
        while at < size:
            where = f"byte {at}"
            try:
                whole = rlp.span(data.read(MAX_HEAD_BYTES), 0, size - at)
            except rlp.RlpError as error:
                yield files.UnreadableItem(where, f"{error}; the rest of the file cannot be read")
                return
            data.seek(at)
            if whole.stop > MAX_ITEM_BYTES:
                yield files.UnreadableItem(where, "no envelope is as large")
            else:
                yield files.read(data.read(whole.stop), where)
            at += whole.stop
            data.seek(at)
