"""Envelopes in files: what is exported from an archive, and what is imported into one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from restante.waku.envelope.envelope import Envelope, parse
from restante.waku.envelope.rlp import RlpError


class UnreadableItem(msgspec.Struct, frozen=True):
    """What stands where an envelope should, and is none."""

    where: str
    """In its file: a byte, a row or a key."""
    reason: str


FileItem: TypeAlias = Envelope | UnreadableItem
FileItems: TypeAlias = Iterator[FileItem]


def read(raw: bytes, where: str) -> FileItem:
    """Read what should be an envelope's RLP."""
    try:
        return parse(raw)
    except RlpError as error:
        return UnreadableItem(where, str(error))
