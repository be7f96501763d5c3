"""Files of envelopes, for export from an archive and import into one, and files of missing ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from restante.waku.envelope.envelope import Envelope, parse
from restante.waku.envelope.rlp import RlpError


class UnreadableItem(msgspec.Struct, frozen=True):
    """An item of a file that is not an envelope."""

    where: str
    """Its position in the file: a byte, a row or a key."""
    reason: str


FileItem: TypeAlias = Envelope | UnreadableItem
FileItems: TypeAlias = Iterator[FileItem]


def parse_item(raw: bytes, where: str) -> FileItem:
    """Parse an item of a file as an envelope's RLP."""
    try:
        return parse(raw)
    except RlpError as error:
        return UnreadableItem(where, str(error))
