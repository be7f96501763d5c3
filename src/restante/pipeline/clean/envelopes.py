"""Verifies envelopes: each one once, when it is read for the lake.

An envelope must be canonical RLP with the structure of an envelope, must agree with the values that are stored beside
it, above all its hash, and must have a plausible time. Expired envelopes are valid: archives exist to keep them. The
proof of work is computed, but not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, NamedTuple

import numpy as np

from restante.pipeline.clean.rules import SECONDS_PER_DAY
from restante.pipeline.schemas import FIRST_DAY
from restante.waku.archive.ids import BITS, PROBES
from restante.waku.envelope.envelope import U32, parse
from restante.waku.envelope.keccak import keccaks
from restante.waku.envelope.rlp import RlpError

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Truths = np.ndarray[Any, np.dtype[np.bool_]]

NOT_AN_ENVELOPE: Final = "not an envelope"
OTHER_HASH: Final = "the hash does not match"
OTHER_TOPIC: Final = "the topic does not match"
TTL_TOO_LONG: Final = "the TTL begins before 1970"
SENT_TOO_EARLY: Final = "sent before the lake's first day"
SENT_TOO_LATE: Final = "sent after it arrived"

ENVELOPE_FAULTS: Final = ("", NOT_AN_ENVELOPE, OTHER_HASH, OTHER_TOPIC, TTL_TOO_LONG, SENT_TOO_EARLY, SENT_TOO_LATE)
"""The possible faults, in the order of the checks; an envelope gets the first that applies."""

MAX_CLOCK_SKEW_SECONDS: Final = 20
"""Seconds by which an envelope's own time may be after its arrival. A Mailserver accepts senders' clocks that are 10
s ahead of its own (restante.waku.protocol.acceptance), and its own clock may be set in the meantime."""

GAP_BYTES: Final = 32
"""Bytes behind each envelope, so that no read or write goes into another envelope, whatever its lengths say."""

TOPIC_TAG: Final = 0x84
"""The RLP tag of a string of four bytes."""

DIGEST_BYTES: Final = 32
"""Size of a hash."""

MANTISSA_BITS: Final = 53
"""Bits of a float that are exact."""

_MIN_NUMBER_BY_SIZE: Final = np.array([0, 0x80, *(1 << 8 * size for size in range(1, 8))], np.uint64)
"""The smallest number that is written with this many bytes after the tag; smaller ones have a shorter form."""

_MIN_LENGTH_BY_SIZE: Final = np.array([0, 56, 1 << 8, 1 << 16], np.int64)
"""The smallest length that is written with this many bytes."""


class StoredValues(NamedTuple):
    """The values that an archive or a file stores beside its envelopes."""

    latest: Numbers
    """When each envelope arrived, or the latest time at which it can have arrived; in seconds since 1970."""
    hashes: Sequence[bytes | None] | None = None
    topics: Numbers | None = None
    """-1 if it is not known."""
    ids: Numbers | None = None
    """The ids of an archive's rows, which contain the first bits of the hash (restante.waku.archive.ids)."""


class Verified(NamedTuple):
    """The values of envelopes, one column each. Of an envelope with a fault, only the fault has a meaning."""

    fault: np.ndarray[Any, np.dtype[np.int8]]
    """Index in ENVELOPE_FAULTS."""
    hash: list[bytes]
    topic: Numbers
    expiry: Numbers
    ttl: Numbers
    pow: Floats
    size: Numbers
    """In bytes. It also has a meaning for an envelope with a fault."""

    @property
    def sent(self) -> Numbers:
        """Return when each was sent, according to its sender."""
        return self.expiry - self.ttl


def verify(raws: Sequence[bytes], stored: StoredValues) -> Verified:
    """Verify envelopes. b"" is not an envelope."""
    verified = _read_envelopes(raws)
    sent = verified.sent
    for fault, wrong in (
        (OTHER_HASH, _other_hash(verified, stored)),
        (OTHER_TOPIC, _other_topic(verified, stored)),
        (TTL_TOO_LONG, sent < 0),
        (SENT_TOO_EARLY, sent < (FIRST_DAY - date(1970, 1, 1)).days * SECONDS_PER_DAY),
        (SENT_TOO_LATE, sent > stored.latest + MAX_CLOCK_SKEW_SECONDS),
    ):
        verified.fault[wrong & (verified.fault == 0)] = ENVELOPE_FAULTS.index(fault)
    return verified


def _read_envelopes(raws: Sequence[bytes]) -> Verified:
    """Return the values of envelopes. An object that occurs many times, as in a hostile file, is read once."""
    distinct = {id(raw): raw for raw in raws}
    if len(distinct) < len(raws):
        index_of = {key: index for index, key in enumerate(distinct)}
        at = np.array([index_of[id(raw)] for raw in raws])
        read = _read_envelopes([*distinct.values()])
        hashes = [read.hash[index] for index in at]
        fault, topic, expiry, ttl = read.fault[at], read.topic[at], read.expiry[at], read.ttl[at]
        return Verified(fault, hashes, topic, expiry, ttl, read.pow[at], read.size[at])
    fields = Fields(raws)
    fault = np.where(fields.good, 0, ENVELOPE_FAULTS.index(NOT_AN_ENVELOPE)).astype(np.int8)
    topic, expiry, ttl = (column.astype(np.int64) for column in (fields.topic, fields.expiry, fields.ttl))
    verified = Verified(fault, keccaks(raws), topic, expiry, ttl, fields.compute_pow(), fields.size)
    for index in np.flatnonzero(~fields.good).tolist():  # rare: `parse` decides
        try:
            envelope = parse(raws[index])
        except RlpError:
            continue
        verified.fault[index] = 0
        verified.topic[index] = int.from_bytes(envelope.topic)
        verified.expiry[index], verified.ttl[index] = envelope.expiry, envelope.ttl
        verified.pow[index] = envelope.pow()
    return verified


def _other_hash(verified: Verified, stored: StoredValues) -> Truths:
    wrong = np.zeros(len(verified.hash), np.bool_)
    if stored.hashes is not None:
        others = [
            stored_hash not in (None, name) for stored_hash, name in zip(stored.hashes, verified.hash, strict=True)
        ]
        wrong |= np.array(others, np.bool_)
    if stored.ids is not None:
        starts = np.frombuffer(b"".join([name[:4] for name in verified.hash]), ">u4").astype(np.int64) >> 1
        sent = verified.sent & U32
        # If another envelope has its id, an envelope gets the next lower id that is free in its second
        # (archive/ids.py). Whether all ids between are taken is not checked: another envelope's id is that near by
        # chance once in a million.
        above = (sent << BITS | starts) - stored.ids
        wrong |= (above < 0) | (above >= PROBES) | (stored.ids >> BITS != sent)
    return wrong


def _other_topic(verified: Verified, stored: StoredValues) -> Truths:
    if stored.topics is None:
        return np.zeros(len(verified.hash), np.bool_)
    other: Truths = (stored.topics != verified.topic) & (stored.topics >= 0)
    return other


class Fields:
    """The fields of many envelopes, read with operations on arrays, in a tenth of the time of `parse`.

    They are those that `parse` finds; the tests compare the two. They have no meaning if an envelope is not `good`.
    That may still be valid (one of 16 MiB has a length of four bytes): `parse` decides.
    """

    def __init__(self, raws: Sequence[bytes]) -> None:
        gap = bytes(GAP_BYTES)
        self._bytes = bytearray(gap.join((b"", *raws, b"")))
        self._uint8 = np.frombuffer(self._bytes, np.uint8)
        positions = len(self._bytes) - 7
        self._uint64: np.ndarray[Any, Any] = np.ndarray((positions,), ">u8", self._bytes, strides=(1,))
        """The eight bytes that begin at each position, as a number."""
        self.size = np.fromiter(map(len, raws), np.int64, len(raws))
        stop = np.cumsum(self.size + GAP_BYTES)
        self.good: Truths = self.size > 0
        at = self._enter_list(stop - self.size, stop)
        self._inner = at
        self.expiry, at = self._read_number(at, 4)
        self.ttl, at = self._read_number(at, 4)
        self.good &= self._uint8[at] == TOPIC_TAG
        self.topic = self._read(at + 1) >> 32
        at = self._skip_string(at + 5, stop)
        self._data_stop = at
        self.nonce, at = self._read_number(at, 8)
        self.good &= at == stop

    def _read(self, at: Numbers) -> Any:
        return self._uint64[at].astype(np.uint64)

    def _enter_list(self, at: Numbers, stop: Numbers) -> Numbers:
        """Return the position of the first item of the list there, which must reach to `stop`."""
        tag = self._uint8[at].astype(np.int64)
        size = np.clip(tag - 0xF7, 0, 4)
        self.good &= (tag >= 0xC0) & (size < 4)
        length = self._read_length(at, size)
        self.good &= np.where(size == 0, tag - 0xC0, length) == stop - at - 1 - size
        inner: Numbers = at + 1 + size
        return inner

    def _read_length(self, at: Numbers, size: Numbers) -> Numbers:
        """Return the length that is written in `size` bytes, if `size` is not 0."""
        read = self._read(at + 1) >> (64 - 8 * np.maximum(size, 1)).astype(np.uint64)
        length: Numbers = read.astype(np.int64)
        self.good &= (size == 0) | (length >= _MIN_LENGTH_BY_SIZE[np.minimum(size, 3)])
        return length

    def _read_number(self, at: Numbers, max_bytes: int) -> tuple[Any, Numbers]:
        """Return numbers of up to `max_bytes`, and the positions behind them."""
        tag = self._uint8[at].astype(np.int64)
        size = np.clip(tag - 0x80, 0, max_bytes)
        behind = self._read(at + 1) >> (64 - 8 * np.maximum(size, 1)).astype(np.uint64)
        number = np.where(tag < 0x80, tag.astype(np.uint64), np.where(size > 0, behind, np.uint64(0)))
        self.good &= (tag > 0) & (tag <= 0x80 + max_bytes) & ((tag < 0x80) | (number >= _MIN_NUMBER_BY_SIZE[size]))
        return number, at + 1 + size

    def _skip_string(self, at: Numbers, stop: Numbers) -> Numbers:
        """Return the position behind the string there, or the end of the envelope if it is no string or too long."""
        tag = self._uint8[at].astype(np.int64)
        size = np.clip(tag - 0xB7, 0, 4)
        self.good &= (tag < 0xC0) & (size < 4)
        self.good &= (tag != 0x81) | (self._uint8[at + 1] >= 0x80)
        short = np.where(tag < 0x80, 0, tag - 0x80)
        behind = at + 1 + size + np.where(size == 0, short, self._read_length(at, size))
        self.good &= behind <= stop
        reached: Numbers = np.minimum(behind, stop)
        return reached

    def compute_pow(self) -> Floats:
        """Return the proof of work: see restante.waku.envelope.envelope, `Envelope.pow`.

        The bytes that are hashed are written over the envelopes' own, so no other method may be called afterwards.
        """
        at, size = self._write_bare_head()
        self._uint64[self._data_stop] = self.nonce
        bytes_ = memoryview(self._bytes)
        stops = (self._data_stop + 8).tolist()
        hashes = keccaks(bytes_[start:stop] for start, stop in zip(at.tolist(), stops, strict=True))
        first_words = np.frombuffer(b"".join(hashes), ">u8")[:: DIGEST_BYTES // 8].astype(np.uint64)
        high_bits = first_words >> np.uint64(64 - MANTISSA_BITS)
        _, exponent = np.frexp(high_bits.astype(np.float64))
        zeros = np.where(high_bits > 0, MANTISSA_BITS - exponent, 0)
        for index in np.flatnonzero(high_bits == 0).tolist():  # rare: one hash in 2^53
            zeros[index] = 256 - int.from_bytes(hashes[index], "big").bit_length()
        with np.errstate(divide="ignore", invalid="ignore"):
            work: Floats = np.ldexp(1.0, zeros) / size / self.ttl.astype(np.float64)
        return work

    def _write_bare_head(self) -> tuple[Numbers, Numbers]:
        """Write the head of the list without the nonce before the items; return its position and the total length."""
        length = self._data_stop - self._inner
        size = np.searchsorted(np.array([56, 1 << 8, 1 << 16]), length, "right")
        for bytes_ in range(4):
            selected = size == bytes_
            inner, long = self._inner[selected], length[selected]
            for byte in range(bytes_):
                self._uint8[inner - 1 - byte] = long >> 8 * byte & 0xFF
            self._uint8[inner - 1 - bytes_] = 0xF7 + bytes_ if bytes_ else 0xC0 + long
        return self._inner - 1 - size, length + 1 + size
