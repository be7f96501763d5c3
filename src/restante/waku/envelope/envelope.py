"""The envelope: sealed data with a topic, a time to live and proof of work (6/WAKU1 "Envelopes").

    Envelope = [Expiry, TTL, Topic, Data, Nonce]

Numbers are canonical RLP integers. The grammar of 6/WAKU1 gives them a fixed width, but status-go sends and accepts
only canonical ones (waku/common/envelope.go). An envelope is identified by the hash of the exact bytes received.
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
"""Size of a topic in bytes."""

_MIN_NUMBERS: Final = (0, 0x80, *(1 << 8 * size for size in range(1, 8)))
"""The smallest number that needs this many bytes after its length. A smaller number has a shorter encoding."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """One envelope, received or made here. Times are seconds since 1970."""

    expiry: int
    ttl: int
    topic: bytes
    nonce: int
    raw: bytes
    """The exact RLP."""
    hash: bytes
    data_at: int
    """Offset of the data in `raw`."""
    data_stop: int
    """Offset of the end of the data, where the nonce begins."""

    @property
    def sent(self) -> int:
        """Time of sending as the sender claims it: expiry minus ttl, modulo 2^32 (waku/waku.go:1279)."""
        return (self.expiry - self.ttl) & U32

    @property
    def data(self) -> bytes:
        """The sealed payload."""
        return self.raw[self.data_at : self.data_stop]

    @property
    def bare(self) -> bytes:
        """The RLP of the envelope without its nonce: the input of the proof of work."""
        tag = self.raw[0]
        inner = self.raw[1 if tag < 0xF8 else tag - 0xF6 : self.data_stop]
        return rlp.list_head(len(inner)) + inner

    def size(self) -> int:
        """Return the size that limits apply to: 20 bytes, and the data (waku/common/envelope.go, `size`)."""
        return 20 + self.data_stop - self.data_at

    def pow(self, late: int = 0) -> float:
        """Return the proof of work: 2^(leading zero bits) per byte and second.

        `late` is added to the ttl, for an envelope whose sender's clock is ahead (waku/waku.go:1285). For a time of 0
        seconds the result is infinite, as in Go.
        """
        bare = self.bare
        return work(keccak(bare + self.nonce.to_bytes(8, "big")), len(bare), self.ttl + late)


def work(digest: bytes, size: int, seconds: int) -> float:
    """Return the proof of work that a hash shows, for an envelope of `size` bytes that lives `seconds` seconds."""
    zeros = 256 - int.from_bytes(digest, "big").bit_length()
    # The two divisions are separate, as in Go: at the threshold the last bit decides
    # (waku/common/envelope.go:113-125).
    return math.ldexp(1.0, zeros) / size / seconds if seconds else math.inf


def make(expiry: int, ttl: int, topic: bytes, data: bytes, nonce: int = 0) -> Envelope:
    """Return an envelope. Use `seal` for its data and `mine` for its nonce. Raises Misuse if a field does not fit."""
    if len(topic) != TOPIC or not (0 <= expiry <= U32 and 0 <= ttl <= U32 and 0 <= nonce <= U64):
        raise Misuse(f"an envelope has a topic of {TOPIC} bytes, times of 32 bits and a nonce of 64")
    raw = rlp.encode([expiry, ttl, topic, data, nonce])
    stop = len(raw) - len(rlp.encode(nonce))
    return Envelope(expiry, ttl, topic, nonce, raw, keccak(raw), stop - len(data), stop)


def parse(raw: bytes) -> Envelope:
    """Parse the RLP of one envelope. Raises RlpError."""
    span = rlp.item_span(raw)
    if span.stop != len(raw):
        raise rlp.RlpError("bytes follow the envelope")
    return cut(raw, span)


def cut(data: bytes, span: rlp.ItemSpan) -> Envelope:
    """Parse the envelope at a span of a packet. Raises RlpError."""
    if not span.is_list:
        raise rlp.RlpError("an envelope is a list")
    raw = data[span.at : span.stop]
    # The five items are read one by one instead of with `rlp.walk`, because this runs for every envelope from every
    # peer. Reads beyond the end are detected at the end.
    try:
        expiry, at = _read_number(raw, span.start - span.at, 4)
        ttl, at = _read_number(raw, at, 4)
        if raw[at] != 0x80 + TOPIC:
            raise rlp.RlpError(f"a topic is a string of {TOPIC} bytes")
        topic = raw[at + 1 : at + 1 + TOPIC]
        sealed = rlp.item_span(raw, at + 1 + TOPIC)
        if sealed.is_list:
            raise rlp.RlpError("an envelope's data is a string")
        nonce, at = _read_number(raw, sealed.stop, 8)
    except IndexError:
        raise rlp.RlpError("an envelope has five items, not fewer") from None
    if at != len(raw):
        raise rlp.RlpError("an envelope has five items, and no more")
    return Envelope(expiry, ttl, topic, nonce, raw, keccak(raw), sealed.start, sealed.stop)


def _read_number(raw: bytes, at: int, size: int) -> tuple[int, int]:
    """Read a number of at most `size` bytes. Return it and the offset of its end."""
    tag = raw[at]
    at += 1
    if 0 < tag < 0x80:
        return tag, at
    if 0x80 <= tag <= 0x80 + size:
        stop = at + tag - 0x80
        number = int.from_bytes(raw[at:stop], "big")
        if number >= _MIN_NUMBERS[tag - 0x80]:
            return number, stop
    raise rlp.RlpError(f"a number of an envelope is not one of up to {size} bytes")
