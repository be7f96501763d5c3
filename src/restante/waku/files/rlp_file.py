"""Files of envelopes in their form on the wire: concatenated RLP and nothing else (suffix .rlp).

`split_items` does not parse the items further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from restante.waku import files
from restante.waku.archive.records import Archived
from restante.waku.envelope import rlp

MAX_ITEM_BYTES: Final = 1 << 24
"""Maximum bytes of an envelope that can have been on the wire: the size limit of a frame (devp2p, rlpx.md
"Framing")."""

WINDOW_BYTES: Final = 4 << 20
"""Bytes that are read at a time."""

ITEM_TOO_LARGE: Final = "larger than any envelope"

_HEAD_BYTES: Final = 9
"""Maximum bytes of an item's tag and length."""


class RlpItem(NamedTuple):
    """An item, or the bytes in the place of one."""

    at: int
    """Offset in the file."""
    raw: bytes
    """Only the first bytes if the item has a fault."""
    fault: str | None = None
    is_last: bool = False
    """Whether the rest of the file cannot be read, because the start of the next item is unknown."""


def split_items(data: BinaryIO, size: int, *, lists: bool = False) -> Iterator[RlpItem]:
    """Yield the items. Stop at an invalid length; with `lists` also at an item that is no list. Raises OSError."""
    window, start, at = b"", 0, 0  # the window begins at `start` in the file; `at` is in the window
    while start + at < size:
        if len(window) - at < _HEAD_BYTES:
            window, start, at = window[at:] + data.read(WINDOW_BYTES), start + at, 0
        try:
            stop = _item_end(window, at, size - start, lists)
        except rlp.RlpError as error:
            yield RlpItem(start + at, window[at : at + _HEAD_BYTES], str(error), is_last=True)
            return
        if stop - at > MAX_ITEM_BYTES:
            yield RlpItem(start + at, window[at : at + _HEAD_BYTES], ITEM_TOO_LARGE)
            data.seek(start + stop)
            window, start, at = b"", start + stop, 0
            continue
        if stop > len(window):
            missing = stop - len(window)
            window, start, stop, at = window[at:] + data.read(max(missing, WINDOW_BYTES)), start + at, stop - at, 0
        yield RlpItem(start + at, window[at:stop])
        at = stop


def _item_end(window: bytes, at: int, end: int, lists: bool) -> int:
    """Return where the item that begins at `at` ends, which is at most `end`. Raises RlpError."""
    if window[at] == 0xF9 and len(window) - at > 2 and window[at + 1]:  # most envelopes; faster than below
        stop = at + 3 + (window[at + 1] << 8 | window[at + 2])
        if stop <= end:
            return stop
    span = rlp.item_span(window, at, end)
    if lists and not span.is_list:
        raise rlp.RlpError("an envelope is a list")
    return span.stop


def write(file: Path, pages: Iterable[list[Archived]]) -> None:
    """Write the envelopes in the given order. Raises OSError."""
    with file.open("wb") as output:
        for page in pages:
            output.writelines(row.raw for row in page)


def read(file: Path) -> files.FileItems:
    """Yield each item. Stop at an invalid length, because the start of the next item is unknown. Raises OSError."""
    with file.open("rb") as data:
        for item in split_items(data, file.stat().st_size):
            where = f"byte {item.at}"
            if item.fault is None:
                yield files.parse_item(item.raw, where)
            else:
                suffix = "; the rest of the file cannot be read" if item.is_last else ""
                yield files.UnreadableItem(where, item.fault + suffix)
