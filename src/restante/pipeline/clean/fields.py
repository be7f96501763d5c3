"""Reads the fields of many envelopes at once, with operations on arrays.

It finds the same fields as `waku.envelope.envelope`, which reads one envelope at a time and takes ten times as long.
An envelope that is not `good` here may still be valid (one of 16 MiB has a length of four bytes); that module
decides. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from restante.waku.envelope.keccak import keccaks

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Truths = np.ndarray[Any, np.dtype[np.bool_]]

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


class Fields:
    """The positions and values of the fields; they have no meaning if an envelope is not `good`."""

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
