"""A query for an archive's history, and the pages that answer it.

    cursor = sent(4) ‖ hash(32)        big-endian, as in status-go (mailserver/db_key.go, Cursor)

A cursor means: continue after the envelope with this time and hash. Pages are in the order of ids, and nearly every
envelope has its home id (ids.py). A page that ends at any other id has a cursor that contains the id itself:

    cursor = sent(4) ‖ the id's 31 bits, and a zero(4) ‖ MARK(28)

So a query with a cursor from this archive continues exactly there, whatever was pruned or saved since.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from restante.common.errors import Misuse
from restante.waku.archive import ids

PAGE_CURSOR_BYTES: Final = 36
"""Size of a cursor in bytes."""

ID_CURSOR_MARK: Final = b"restante: behind this place\0"
"""The end of a cursor that contains an id instead of a hash."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query. Times are seconds since 1970. Raises Misuse for an invalid limit or cursor."""

    lower: int
    """Earliest time of sending, inclusive."""
    upper: int
    """Latest time of sending, inclusive."""
    topics: frozenset[bytes] | None = None
    """Only these topics. If they are given, the bloom filter is ignored, as in status-go
    (mailserver/mailserver_db_leveldb.go, BuildIterator)."""
    bloom: int | None = None
    """Only topics that this filter passes. None, or all ones, passes every topic."""
    limit: int
    """Maximum envelopes of the page, at least 1."""
    after: bytes | None = None
    """A cursor: only envelopes after it, in the requested order. Any 36 bytes are valid, even if the archive has no
    such envelope. `lower` and `upper` still apply."""
    descending: bool = False
    """Newest first."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise Misuse("a page has a limit of at least 1")
        if self.after is not None and len(self.after) != PAGE_CURSOR_BYTES:
            raise Misuse(f"a cursor has {PAGE_CURSOR_BYTES} bytes")


class Bounds(msgspec.Struct, frozen=True):
    """Bounds at which a page ends before its limit."""

    bytes: int = 8 << 20
    """Maximum bytes of envelopes. A server may hold 16 such pages for its peers at a time. The first envelope is
    always returned."""
    rows: int = 200_000
    """Maximum envelopes examined: a tenth of a second, for which other requests wait."""


DEFAULT_BOUNDS: Final = Bounds()


class Page(msgspec.Struct, frozen=True):
    """The answer to a query."""

    encoded: bytes
    """The envelopes' RLP, concatenated, in the order of ids: nearly always by time, and within a second by hash. They
    are not split, because packets are sent in few pieces. Bytes may follow the last envelope."""
    stops: list[int]
    """The end offset of each envelope."""
    last_hash: bytes | None
    """The hash of the last envelope."""
    cursor: bytes | None
    """Where to continue. None if no other envelope matches."""
    examined: int
    """Number of envelopes and topics examined, a measure of the work. An index entry counts as much as a row."""
    bounded: bool
    """Whether a bound ended the page. Then it is unknown whether more envelopes match."""

    @property
    def raws(self) -> list[bytes]:
        """The envelopes' RLP, one by one."""
        return [self.encoded[start:stop] for start, stop in pairwise([0, *self.stops])]


def make_cursor(id_: int, digest: bytes | None) -> bytes:
    """Return the cursor that continues after the id `id_`.

    `digest` is the hash of the envelope there, if it is known.
    """
    sent = (id_ >> ids.BITS).to_bytes(4, "big")
    if digest is not None and ids.home_of(id_ >> ids.BITS, digest) == id_:
        return sent + digest
    return sent + ((id_ & ids.HASH_MASK) << 1).to_bytes(4, "big") + ID_CURSOR_MARK


def read_cursor(wire: bytes) -> tuple[int, bytes | None]:
    """Return a cursor's id and hash. The hash is None if the cursor contains the id itself."""
    sent, digest = int.from_bytes(wire[:4], "big"), wire[4:]
    return ids.home_of(sent, digest), None if digest[4:] == ID_CURSOR_MARK else digest
