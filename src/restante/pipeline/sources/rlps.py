"""Reads envelopes from files of consecutive RLP items.

restante.waku.files.rlp_file parses each envelope by itself, which is slower than `verify_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from restante.pipeline.clean.envelopes import Stored
from restante.pipeline.sources.archived import UNREADABLE_REST, FoundEnvelopes, groups
from restante.waku.files.rlp_file import split_items


def found(data: BinaryIO, size: int, latest: int) -> Iterator[FoundEnvelopes]:
    """Yield the lists in a file as envelopes that arrived by `latest`. Raises OSError."""
    place = 0
    for some in groups(split_items(data, size, lists=True), lambda item: len(item.raw)):
        yield FoundEnvelopes(
            raws=[item.raw for item in some],
            arrivals=np.arange(place, place + len(some)),
            arrived=None,
            stored=Stored(np.full(len(some), latest)),
            where=[item.at for item in some],
            faults={
                at: UNREADABLE_REST if item.is_last else item.fault for at, item in enumerate(some) if item.fault
            },
        )
        place += len(some)


def count(data: BinaryIO, size: int) -> int:
    """Return the number of items that `found` yields. Raises OSError."""
    return sum(1 for _ in split_items(data, size, lists=True))
