"""What is asked of an archive's history, and the pages it is answered in.

    cursor = sent(4) ‖ hash(32)        big-endian, as status-go has it (mailserver/db_key.go, Cursor)

A cursor means: go on behind the envelope of this name. Pages are in the order of ids, and nearly every envelope has
the id that its name says (ids.py). A page that ends anywhere else ends with the id itself,

    cursor = sent(4) ‖ the id's 31 bits, and a zero(4) ‖ MARK(28)

so that whoever goes on from a cursor that was given here goes on exactly there, whatever was pruned or saved since.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from restante.common.errors import Misuse
from restante.waku.archive import ids

PAGE_CURSOR_BYTES: Final = 36
"""Bytes of a cursor."""

ID_CURSOR_MARK: Final = b"restante: behind this place\0"
"""How a hash ends that is none."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question. Times are seconds since 1970. Raises Misuse for a limit or a cursor that is none."""

    lower: int
    """Sent not before this,"""
    upper: int
    """nor after this."""
    topics: frozenset[bytes] | None = None
    """Of these topics; with topics the bloom filter counts for nothing, as in status-go
    (mailserver/mailserver_db_leveldb.go, BuildIterator)."""
    bloom: int | None = None
    """Of topics that this filter lets through; None, or all ones, lets everything through."""
    limit: int
    """At most so many; at least 1."""
    after: bytes | None = None
    """A cursor: behind this, in the order asked for. Any 36 bytes will do, whether the archive has such an envelope
    or not; `lower` and `upper` stay in force."""
    descending: bool = False
    """The newest first."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise Misuse("a page has a limit of at least 1")
        if self.after is not None and len(self.after) != PAGE_CURSOR_BYTES:
            raise Misuse(f"a cursor has {PAGE_CURSOR_BYTES} bytes")


class Bounds(msgspec.Struct, frozen=True):
    """Where a page ends although its limit is not reached."""

    bytes: int = 8 << 20
    """Of envelopes: 16 such pages are what a server may hold for its peers at a time. The first is always given."""
    rows: int = 200_000
    """Envelopes looked at: a tenth of a second, for which others wait."""


DEFAULT_BOUNDS: Final = Bounds()


class Page(msgspec.Struct, frozen=True):
    """An answer."""

    whole: bytes
    """The envelopes' RLP, one behind the other, in the order of ids: by time, and within a second by hash, nearly
    always. As they came: they go on in as few pieces, and more may follow the last."""
    stops: list[int]
    """Where each of them ends in it."""
    last: bytes | None
    """The last one's hash."""
    cursor: bytes | None
    """Where to go on. None where nothing more matches."""
    looked: int
    """Envelopes and topics looked at, as a measure of the work: an entry in an index counts as much as a row."""
    bounded: bool
    """Whether one of the bounds ended it: then nobody knows whether more matches."""

    @property
    def raws(self) -> list[bytes]:
        """Give them one by one."""
        return [self.whole[start:stop] for start, stop in pairwise([0, *self.stops])]


def cursor(at: int, name: bytes | None) -> bytes:
    """Write the cursor that means: behind the id `at`. `name` is the hash of the envelope there, if it is known."""
    sent = (at >> ids.BITS).to_bytes(4, "big")
    if name is not None and ids.named(at >> ids.BITS, name) == at:
        return sent + name
    return sent + ((at & ids.HASH_MASK) << 1).to_bytes(4, "big") + ID_CURSOR_MARK


def read_cursor(wire: bytes) -> tuple[int, bytes | None]:
    """Read a cursor: an id, and the hash of the envelope whose id that would be, or None where it is the id alone."""
    sent, name = int.from_bytes(wire[:4], "big"), wire[4:]
    return ids.named(sent, name), None if name[4:] == ID_CURSOR_MARK else name
