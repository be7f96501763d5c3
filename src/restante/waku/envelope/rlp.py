"""RLP, the encoding of devp2p and Waku: an item is a byte string or a list of items.

Decoding is strict: an item that has a shorter encoding is refused, as in go-ethereum's decoder (rlp/decode.go,
ErrCanonSize and ErrCanonInt). Spans are separate from values, because an envelope's hash is the hash of the exact
bytes received.

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
"""A decoded item: a string, or a list of items."""

Encodable: TypeAlias = "bytes | bytearray | memoryview | int | Sequence[Any]"
"""A value that can be encoded. An int becomes its shortest big-endian string, True becomes 1, False the empty
string."""

BREACH: Final = 2
"""Disconnect reason "breach of protocol" (devp2p, rlpx.md "Disconnect")."""

MAX_DEPTH: Final = 16
"""Maximum depth of nested lists. The deepest packet of Waku has four levels."""


class RlpError(PeerError):
    """The received bytes are not canonical RLP, or the item does not have the required shape."""

    def __init__(self, text: str) -> None:
        super().__init__(BREACH, text)


class ItemSpan(msgspec.Struct, frozen=True, gc=False):
    """The position of an item: the offsets of its first byte, of its payload, and of its end."""

    at: int
    start: int
    stop: int
    is_list: bool


def item_span(data: bytes, at: int = 0, end: int | None = None) -> ItemSpan:
    """Return the span of the item at `at`, which must not extend beyond `end`. Raises RlpError."""
    if end is None:
        end = len(data)
    if at >= end:
        raise RlpError("an item is missing")
    tag = data[at]
    if tag < 0x80:
        return ItemSpan(at, at, at + 1, False)
    if tag < 0xB8:
        start = at + 1
        stop = start + tag - 0x80
        if tag == 0x81 and start < end and data[start] < 0x80:
            raise RlpError("a byte below 80 is encoded with a length")
        is_list = False
    elif 0xC0 <= tag < 0xF8:
        start = at + 1
        stop = start + tag - 0xC0
        is_list = True
    else:
        is_list = tag >= 0xF8
        start, stop = _long_payload(data, at, end, tag - (0xF7 if is_list else 0xB7))
    if stop > end:
        raise RlpError("the data ends inside an item")
    return ItemSpan(at, start, stop, is_list)


def _long_payload(data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """Return start and end of the payload of an item whose length takes `size` bytes."""
    start = at + 1 + size
    if start > end:
        raise RlpError("the data ends inside an item")
    if not data[at + 1]:
        raise RlpError("a length has a leading zero")
    length = int.from_bytes(data[at + 1 : start], "big")
    if length < 56:
        raise RlpError("a length below 56 is encoded as a long one")
    return start, start + length


def walk(data: bytes, outer: ItemSpan) -> Iterator[ItemSpan]:
    """Yield the spans of a list's items. A caller that stops early does not parse the rest. Raises RlpError."""
    if not outer.is_list:
        raise RlpError("a list is expected")
    position = outer.start
    while position < outer.stop:
        item = item_span(data, position, outer.stop)
        yield item
        position = item.stop


def decode(data: bytes, *, tail: bool = False) -> Item:
    """Decode one item. With `tail` bytes may follow it; otherwise it must be all of `data`. Raises RlpError."""
    outer = item_span(data)
    if outer.stop != len(data) and not tail:
        raise RlpError("bytes follow the item")
    return (
        _decode_items(data, outer.start, outer.stop, MAX_DEPTH) if outer.is_list else data[outer.start : outer.stop]
    )


def _decode_items(data: bytes, position: int, end: int, depth: int) -> list[Item]:
    if not depth:
        raise RlpError(f"lists are nested deeper than {MAX_DEPTH}")
    decoded: list[Item] = []
    while position < end:
        tag = data[position]
        if tag < 0x80:  # `item_span` takes three times as long; most items have these two forms
            decoded.append(data[position : position + 1])
            position += 1
        elif tag < 0xB8 and tag != 0x81:
            start = position + 1
            position = start + tag - 0x80
            if position > end:
                raise RlpError("the data ends inside an item")
            decoded.append(data[start:position])
        else:
            item = item_span(data, position, end)
            position = item.stop
            decoded.append(
                _decode_items(data, item.start, position, depth - 1) if item.is_list else data[item.start : position]
            )
    return decoded


# ── Items as numbers, booleans, strings and lists ────────────────────────────────────────────────


def uint(item: Item, bits: int) -> int:
    """Return an item as an unsigned integer of at most `bits` bits. Raises RlpError, also for a leading zero."""
    if not isinstance(item, bytes):
        raise RlpError("a number is expected")
    if item[:1] == b"\0":
        raise RlpError("a number has a leading zero")
    if len(item) * 8 > bits:
        raise RlpError(f"a number has more than {bits} bits")
    return int.from_bytes(item, "big")


def boolean(item: Item) -> bool:
    """Return an item as a boolean, 80 or 01. Raises RlpError."""
    if item == b"":
        return False
    if item == b"\1":
        return True
    raise RlpError("a boolean is neither 80 nor 01")


def string(item: Item, *sizes: int) -> bytes:
    """Return an item as a string; if `sizes` are given, of one of them. Raises RlpError."""
    if not isinstance(item, bytes):
        raise RlpError("a string is expected")
    if sizes and len(item) not in sizes:
        raise RlpError(f"a string of {' or '.join(map(str, sizes))} bytes is expected, not of {len(item)}")
    return item


def string_at(data: bytes, span: ItemSpan, *sizes: int) -> bytes:
    """Return the string at a span; if `sizes` are given, of one of them. Raises RlpError."""
    if span.is_list:
        raise RlpError("a string is expected")
    return string(data[span.start : span.stop], *sizes)


def items(item: Item, *counts: int) -> list[Any]:
    """Return an item as a list; if `counts` are given, with one of these numbers of items. Raises RlpError."""
    if not isinstance(item, list):
        raise RlpError("a list is expected")
    if counts and len(item) not in counts:
        raise RlpError(f"a list of {' or '.join(map(str, counts))} items is expected, not of {len(item)}")
    return item


# ── Encoding ─────────────────────────────────────────────────────────────────────────────────────


def encode(item: Encodable) -> bytes:
    """Encode an item. A negative int raises OverflowError: it is a bug of the caller."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        if len(item) == 1 and item[0] < 0x80:
            return bytes(item)
        return _head(0x80, len(item)) + bytes(item)
    if isinstance(item, int):
        return encode(item.to_bytes((item.bit_length() + 7) // 8, "big"))
    return pack(map(encode, item))


def pack(encoded: Any) -> bytes:
    """Return the list of items that are already encoded."""
    payload = b"".join(encoded)
    return list_head(len(payload)) + payload


@lru_cache(maxsize=4096)  # called for each envelope; because of the padding most envelopes have one of a few sizes
def list_head(length: int) -> bytes:
    """Return the head of a list whose items take `length` bytes."""
    return _head(0xC0, length)


def _head(tag: int, length: int) -> bytes:
    if length < 56:
        return bytes((tag + length,))
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag + 55 + len(size),)) + size
