"""The envelope: sealed data with a topic, a time to live, and work (6/WAKU1 "Envelopes").

    Envelope = [Expiry, TTL, Topic, Data, Nonce]

Numbers are canonical integers and not of fixed width, whatever the grammar of 6/WAKU1 says: that is what status-go
sends and takes (waku/common/envelope.go). An envelope's name is the hash of the very bytes received.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from restante.common.errors import Misuse
from restante.waku.envelope import rlp
from restante.waku.envelope.keccak import keccak

U32: Final = 0xFFFFFFFF
U64: Final = 0xFFFFFFFFFFFFFFFF
TOPIC: Final = 4
"""Bytes of a topic."""

_LEAST_NUMBERS: Final = (0, 0x80, *(1 << 8 * size for size in range(1, 8)))
"""The least number that is written with so many bytes behind a length; less has a shorter form."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """One envelope, as received or made. Times are seconds since 1970."""

    expiry: int
    ttl: int
    topic: bytes
    nonce: int
    raw: bytes
    """The RLP, exactly."""
    hash: bytes
    data_at: int
    """Where the data begins in `raw`."""
    data_stop: int
    """Where the data ends, and the nonce begins."""

    @property
    def sent(self) -> int:
        """When it was made, or so its sender says: expiry less ttl, in 32 bits that wrap (waku/waku.go:1279)."""
        return (self.expiry - self.ttl) & U32

    @property
    def data(self) -> bytes:
        """The sealed payload."""
        return self.raw[self.data_at : self.data_stop]

    @property
    def bare(self) -> bytes:
        """The RLP of all but the nonce: what the work is done on."""
        tag = self.raw[0]
        inner = self.raw[1 if tag < 0xF8 else tag - 0xF6 : self.data_stop]
        return rlp.list_head(len(inner)) + inner

    def size(self) -> int:
        """Bytes as limits count them: 20 for the fields, and the data (waku/common/envelope.go, `size`)."""
        return 20 + self.data_stop - self.data_at

    def pow(self, late: int = 0) -> float:
        """Compute the proof of work: leading zero bits for each byte and second.

        `late` is added to the ttl, for an envelope from the near future (waku/waku.go:1285). With no time at all it
        is infinite, as it is in Go.
        """
        bare = self.bare
        return work(keccak(bare + self.nonce.to_bytes(8, "big")), len(bare), self.ttl + late)


def work(digest: bytes, size: int, seconds: int) -> float:
    """Compute the proof of work that a hash shows, for so many bytes that are to be kept for so many seconds."""
    zeros = 256 - int.from_bytes(digest, "big").bit_length()
    # Divided one after the other, as Go does it: the last bit decides at an edge (waku/common/envelope.go:113-125).
    return math.ldexp(1.0, zeros) / size / seconds if seconds else math.inf


def make(expiry: int, ttl: int, topic: bytes, data: bytes, nonce: int = 0) -> Envelope:
    """Make an envelope; `seal` and `mine` are for its data and its nonce. Raises Misuse for what does not fit."""
    if len(topic) != TOPIC or not (0 <= expiry <= U32 and 0 <= ttl <= U32 and 0 <= nonce <= U64):
        raise Misuse(f"an envelope has a topic of {TOPIC} bytes, times of 32 bits and a nonce of 64")
    raw = rlp.encode([expiry, ttl, topic, data, nonce])
    stop = len(raw) - len(rlp.encode(nonce))
    return Envelope(expiry, ttl, topic, nonce, raw, keccak(raw), stop - len(data), stop)


def parse(raw: bytes) -> Envelope:
    """Read the RLP of one envelope. Raises RlpError."""
    whole = rlp.span(raw)
    if whole.stop != len(raw):
        raise rlp.RlpError("bytes follow the envelope")
    return cut(raw, whole)


def cut(data: bytes, whole: rlp.Span) -> Envelope:
    """Read the envelope that stands there in a packet. Raises RlpError."""
    if not whole.is_list:
        raise rlp.RlpError("an envelope is a list")
    raw = data[whole.at : whole.stop]
    # The five items are read one by one and not by `rlp.spans`: this is done for every envelope that any peer has.
    # What reaches beyond the end is found out at the end.
    try:
        expiry, at = _number(raw, whole.start - whole.at, 4)
        ttl, at = _number(raw, at, 4)
        if raw[at] != 0x80 + TOPIC:
            raise rlp.RlpError(f"a topic is a string of {TOPIC} bytes")
        topic = raw[at + 1 : at + 1 + TOPIC]
        sealed = rlp.span(raw, at + 1 + TOPIC)
        if sealed.is_list:
            raise rlp.RlpError("an envelope's data is a string")
        nonce, at = _number(raw, sealed.stop, 8)
    except IndexError:
        raise rlp.RlpError("an envelope has five items, not fewer") from None
    if at != len(raw):
        raise rlp.RlpError("an envelope has five items, and no more")
    return Envelope(expiry, ttl, topic, nonce, raw, keccak(raw), sealed.start, sealed.stop)


def _number(raw: bytes, at: int, size: int) -> tuple[int, int]:
    """Read a number of up to so many bytes, and tell where it ends."""
    tag = raw[at]
    at += 1
    if 0 < tag < 0x80:
        return tag, at
    if 0x80 <= tag <= 0x80 + size:
        stop = at + tag - 0x80
        number = int.from_bytes(raw[at:stop], "big")
        if number >= _LEAST_NUMBERS[tag - 0x80]:
            return number, stop
    raise rlp.RlpError(f"a number of an envelope is not one of up to {size} bytes")
