"""Cuts files of consecutive RLP items into the items, without parsing them further.

restante.waku.files.rlp_file parses each envelope by itself and takes 0.67 s for a file of 100,000, which takes 0.15 s
here. It also does not report the byte at which each envelope begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from restante.pipeline.clean.envelopes import Stored
from restante.pipeline.sources.archived import UNREADABLE_REST, FoundEnvelopes, groups
from restante.waku.envelope import rlp

MAX_ENVELOPE_BYTES: Final = 1 << 24
"""Bytes of the largest envelope that can be sent: a frame is shorter (devp2p, rlpx.md "Framing")."""

WINDOW_BYTES: Final = 4 << 20
"""Bytes that are read at a time."""

_HEAD_BYTES: Final = 9
"""Maximum bytes of an item's tag and length."""

ENVELOPE_TOO_LARGE: Final = "larger than any envelope"


class RlpItem(NamedTuple):
    """An item, or the bytes in the place of one."""

    at: int
    """Offset in the file."""
    raw: bytes
    """Only the first bytes if the item has a fault."""
    fault: str | None = None


def found(data: BinaryIO, size: int, latest: int) -> Iterator[FoundEnvelopes]:
    """Yield the items as envelopes that arrived by `latest`. Raises OSError."""
    place = 0
    for some in groups(items(data, size), lambda item: len(item.raw)):
        yield FoundEnvelopes(
            raws=[item.raw for item in some],
            arrivals=np.arange(place, place + len(some)),
            arrived=None,
            stored=Stored(np.full(len(some), latest)),
            where=[item.at for item in some],
            faults={at: item.fault for at, item in enumerate(some) if item.fault},
        )
        place += len(some)


def items(data: BinaryIO, size: int) -> Iterator[RlpItem]:
    """Yield the items. Stop at one that is no list: the start of the next one is unknown then. Raises OSError."""
    window, start, at = b"", 0, 0  # the window begins at `start` in the file; `at` is in the window
    while start + at < size:
        if len(window) - at < _HEAD_BYTES:
            window, start, at = window[at:] + data.read(WINDOW_BYTES), start + at, 0
        try:
            stop = _stop(window, at, size - start)
        except rlp.RlpError:
            yield RlpItem(start + at, window[at : at + _HEAD_BYTES], UNREADABLE_REST)
            return
        if stop - at > MAX_ENVELOPE_BYTES:
            yield RlpItem(start + at, window[at : at + _HEAD_BYTES], ENVELOPE_TOO_LARGE)
            data.seek(start + stop)
            window, start, at = b"", start + stop, 0
            continue
        if stop > len(window):
            missing = stop - len(window)
            window, start, stop, at = window[at:] + data.read(max(missing, WINDOW_BYTES)), start + at, stop - at, 0
        yield RlpItem(start + at, window[at:stop])
        at = stop


def _stop(window: bytes, at: int, end: int) -> int:
    """Return where the list that begins at `at` ends, which is at most `end`. Raises RlpError."""
    if window[at] == 0xF9 and len(window) - at > 2 and window[at + 1]:  # most envelopes; faster than below
        stop = at + 3 + (window[at + 1] << 8 | window[at + 2])
        if stop <= end:
            return stop
    whole = rlp.span(window, at, end)
    if not whole.is_list:
        raise rlp.RlpError("an envelope is a list")
    return whole.stop
