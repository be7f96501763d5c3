"""RLP, the encoding of devp2p and Waku: byte strings, and lists of items.

Strict: what has a shorter encoding is refused, as go-ethereum's decoder refuses it (rlp/decode.go, ErrCanonSize and
ErrCanonInt). Spans are kept apart from values, since an envelope's hash is that of the very bytes received.

Grammar (Ethereum yellow paper, appendix B):

    00..7f          the byte itself
    80..b7          string of 0-55 bytes, length in the tag
    b8..bf          string, the length follows in 1-8 bytes
    c0..f7          list of 0-55 bytes, length in the tag
    f8..ff          list, the length follows in 1-8 bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from restante.common.errors import PeerError

Item: TypeAlias = "bytes | list[Any]"
"""What was decoded: a string, or a list of items."""

Encodable: TypeAlias = "bytes | bytearray | memoryview | int | Sequence[Any]"
"""What can be encoded; an int becomes its shortest big-endian string, True 1 and False the empty one."""

BREACH: Final = 2
"""Disconnect reason "breach of protocol" (devp2p, rlpx.md "Disconnect")."""

MAX_DEPTH: Final = 16
"""Lists in lists; the deepest packet of Waku has four."""


class RlpError(PeerError):
    """What was received is not canonical RLP, or not of the shape it must have."""

    def __init__(self, words: str) -> None:
        super().__init__(BREACH, words)


class Span(msgspec.Struct, frozen=True, gc=False):
    """Where an item is: its first byte, the first of its payload, and the one after its last."""

    at: int
    start: int
    stop: int
    is_list: bool


def span(data: bytes, at: int = 0, end: int | None = None) -> Span:
    """Find the item that begins at `at`, and must not reach beyond `end`. Raises RlpError."""
    if end is None:
        end = len(data)
    if at >= end:
        raise RlpError("an item is missing")
    tag = data[at]
    if tag < 0x80:
        return Span(at, at, at + 1, False)
    if tag < 0xB8:
        start = at + 1
        stop = start + tag - 0x80
        if tag == 0x81 and start < end and data[start] < 0x80:
            raise RlpError("a byte below 80 has a length")
        is_list = False
    elif 0xC0 <= tag < 0xF8:
        start = at + 1
        stop = start + tag - 0xC0
        is_list = True
    else:
        is_list = tag >= 0xF8
        start, stop = _long(data, at, end, tag - (0xF7 if is_list else 0xB7))
    if stop > end:
        raise RlpError("an item ends early")
    return Span(at, start, stop, is_list)


def _long(data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """Find the payload of an item whose length takes `size` bytes."""
    start = at + 1 + size
    if start > end:
        raise RlpError("an item ends early")
    if not data[at + 1]:
        raise RlpError("a length has a leading zero")
    length = int.from_bytes(data[at + 1 : start], "big")
    if length < 56:
        raise RlpError("a short length is written as a long one")
    return start, start + length


def spans(data: bytes, at: int = 0, end: int | None = None) -> list[Span]:
    """Find the items of the list that begins at `at`. Raises RlpError, also where it is no list."""
    whole = span(data, at, end)
    if not whole.is_list:
        raise RlpError("a list is expected")
    found = []
    here = whole.start
    while here < whole.stop:
        item = span(data, here, whole.stop)
        found.append(item)
        here = item.stop
    return found


def walk(data: bytes, whole: Span) -> Iterator[Span]:
    """Find the items of a list one by one, so that who stops early has not looked at the rest. Raises RlpError."""
    if not whole.is_list:
        raise RlpError("a list is expected")
    here = whole.start
    while here < whole.stop:
        item = span(data, here, whole.stop)
        yield item
        here = item.stop


def decode(data: bytes, *, tail: bool = False) -> Item:
    """Decode one item, which must be all of `data` but for a `tail`, where one is allowed. Raises RlpError."""
    whole = span(data)
    if whole.stop != len(data) and not tail:
        raise RlpError("bytes follow the item")
    return _items(data, whole.start, whole.stop, MAX_DEPTH) if whole.is_list else data[whole.start : whole.stop]


def _items(data: bytes, here: int, end: int, depth: int) -> list[Item]:
    if not depth:
        raise RlpError(f"lists are nested deeper than {MAX_DEPTH}")
    found: list[Item] = []
    while here < end:
        tag = data[here]
        if tag < 0x80:  # these two are most items, and `span` would take three times as long
            found.append(data[here : here + 1])
            here += 1
        elif tag < 0xB8 and tag != 0x81:
            start = here + 1
            here = start + tag - 0x80
            if here > end:
                raise RlpError("an item ends early")
            found.append(data[start:here])
        else:
            item = span(data, here, end)
            here = item.stop
            found.append(_items(data, item.start, here, depth - 1) if item.is_list else data[item.start : here])
    return found


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def uint(item: Item, bits: int) -> int:
    """Read an unsigned integer of so many bits; a leading zero is not canonical. Raises RlpError."""
    if not isinstance(item, bytes):
        raise RlpError("a number is expected")
    if item[:1] == b"\0":
        raise RlpError("a number has a leading zero")
    if len(item) * 8 > bits:
        raise RlpError(f"a number has more than {bits} bits")
    return int.from_bytes(item, "big")


def boolean(item: Item) -> bool:
    """Read a truth value, 80 or 01. Raises RlpError."""
    if item == b"":
        return False
    if item == b"\1":
        return True
    raise RlpError("a truth value is neither 80 nor 01")


def string(item: Item, *sizes: int) -> bytes:
    """Read a string, of one of these sizes if any are named. Raises RlpError."""
    if not isinstance(item, bytes):
        raise RlpError("a string is expected")
    if sizes and len(item) not in sizes:
        raise RlpError(f"a string of {' or '.join(map(str, sizes))} bytes is expected, not of {len(item)}")
    return item


def items(item: Item, *counts: int) -> list[Any]:
    """Read a list, of one of these counts if any are named. Raises RlpError."""
    if not isinstance(item, list):
        raise RlpError("a list is expected")
    if counts and len(item) not in counts:
        raise RlpError(f"a list of {' or '.join(map(str, counts))} items is expected, not of {len(item)}")
    return item


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────


def encode(item: Encodable) -> bytes:
    """Encode an item. A negative int raises OverflowError: that is ours."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        if len(item) == 1 and item[0] < 0x80:
            return bytes(item)
        return _head(0x80, len(item)) + bytes(item)
    if isinstance(item, int):
        return encode(item.to_bytes((item.bit_length() + 7) // 8, "big"))
    return pack(map(encode, item))


def pack(encoded: Any) -> bytes:
    """Make a list of items that are encoded already."""
    payload = b"".join(encoded)
    return list_head(len(payload)) + payload


@lru_cache(maxsize=4096)  # asked for each envelope, and padding makes most of them of a few sizes
def list_head(length: int) -> bytes:
    """Give what stands before the items of a list, so many bytes together."""
    return _head(0xC0, length)


def _head(tag: int, length: int) -> bytes:
    if length < 56:
        return bytes((tag + length,))
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag + 55 + len(size),)) + size
