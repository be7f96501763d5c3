"""The envelope: sealed data with a topic, a time to live, and work (6/WAKU1 "Envelopes").

    Envelope = [Expiry, TTL, Topic, Data, Nonce]

Numbers are canonical integers and not of fixed width, whatever the grammar of 6/WAKU1 says: that is what status-go
sends and takes (waku/common/envelope.go). An envelope's name is the hash of the very bytes received.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from restante.waku import rlp
from restante.waku.keccak import keccak

U32: Final = 0xFFFFFFFF
TOPIC: Final = 4
"""Bytes of a topic."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """One envelope, as received or made. Times are seconds since 1970."""

    expiry: int
    ttl: int
    topic: bytes
    nonce: int
    raw: bytes
    """The RLP, exactly."""
    hash: bytes

    @property
    def sent(self) -> int:
        """When it was made, or so its sender says: expiry less ttl, in 32 bits that wrap (waku/waku.go:1279)."""
        return (self.expiry - self.ttl) & U32

    @property
    def data(self) -> bytes:
        """The sealed payload."""
        found = rlp.spans(self.raw)[3]
        return self.raw[found.start : found.stop]

    def size(self) -> int:
        """Bytes as limits count them: 20 for the fields, and the data (waku/common/envelope.go, `size`)."""
        return 20 + len(self.data)

    def pow(self, late: int = 0) -> float:
        """Compute the proof of work: leading zero bits for each byte and second.

        `late` is added to the ttl, for an envelope from the near future (waku/waku.go:1285). With no time at all it
        is infinite, as it is in Go.
        """
        # The nonce is the last item: what stands before it is what the work is done on.
        inner = self.raw[rlp.span(self.raw).start : len(self.raw) - len(rlp.encode(self.nonce))]
        bare = rlp.list_head(len(inner)) + inner
        return _pow(keccak(bare + self.nonce.to_bytes(8, "big")), len(bare), self.ttl + late)


def _pow(digest: bytes, size: int, seconds: int) -> float:
    zeros = 256 - int.from_bytes(digest, "big").bit_length()
    # Divided one after the other, as Go does it: the last bit decides at an edge (waku/common/envelope.go:113-125).
    return math.ldexp(1.0, zeros) / size / seconds if seconds else math.inf


def make(expiry: int, ttl: int, topic: bytes, data: bytes, nonce: int = 0) -> Envelope:
    """Make an envelope; `seal` and `mine` are for its data and its nonce."""
    raw = rlp.encode([expiry, ttl, topic, data, nonce])
    return Envelope(expiry, ttl, topic, nonce, raw, keccak(raw))


def parse(raw: bytes) -> Envelope:
    """Read the RLP of one envelope. Raises RlpError."""
    return cut(raw, rlp.span(raw)) if rlp.span(raw).stop == len(raw) else _tail()


def _tail() -> Envelope:
    raise rlp.RlpError("bytes follow the envelope")


def cut(data: bytes, whole: rlp.Span) -> Envelope:
    """Read the envelope that stands there in a packet. Raises RlpError."""
    raw = data[whole.at : whole.stop]
    fields = rlp.spans(raw)
    if len(fields) != 5:
        raise rlp.RlpError(f"an envelope has five items, not {len(fields)}")
    expiry, ttl, topic, payload, nonce = fields
    if topic.is_list or topic.stop - topic.start != TOPIC:
        raise rlp.RlpError(f"a topic is a string of {TOPIC} bytes")
    if payload.is_list:
        raise rlp.RlpError("an envelope's data is a string")
    return Envelope(
        _number(raw, expiry, 4),
        _number(raw, ttl, 4),
        raw[topic.start : topic.stop],
        _number(raw, nonce, 8),
        raw,
        keccak(raw),
    )


def _number(raw: bytes, item: rlp.Span, size: int) -> int:
    _, start, stop, is_list = item
    if is_list or stop - start > size or (start < stop and not raw[start]):
        raise rlp.RlpError(f"a number of an envelope is not one of up to {size} bytes")
    return int.from_bytes(raw[start:stop], "big")
