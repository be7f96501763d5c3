"""Compression: what is inflated has the size it says, and is not inflated before that is known to be allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.devp2p.snappy import compress, decompress, literal_head
from support.mutation import mutated
from support.rows import every

payloads = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 99)
)


def varint(number: int) -> bytes:
    """As snappy writes a size."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


@given(payloads)
def test_compressed_bytes_are_decompressed_unchanged(payload: bytes) -> None:
    assert decompress(compress(payload), len(payload)) == payload


@pytest.mark.parametrize(("payload", "compressed"), [("c0", "0100c0"), ("c103", "0204c103"), ("", "00")])
def test_the_block_format_is_that_of_geth(payload: str, compressed: str) -> None:
    assert compress(bytes.fromhex(payload)).hex() == compressed


@every("size", [1, 60, 127, 128, 255, 256, 65536, 65537, 300_000, 1 << 20])
def test_literal_blocks_are_decompressed_too(size: int) -> None:
    payload = bytes(size)
    assert decompress(literal_head(size) + payload, size) == payload


@given(payloads.filter(bool))
def test_one_byte_more_than_allowed_is_refused(payload: bytes) -> None:
    with pytest.raises(PeerError, match=f"{len(payload)} bytes uncompressed"):
        decompress(compress(payload), len(payload) - 1)


def test_maximally_compressed_zeros_are_accepted() -> None:
    assert decompress(compress(bytes(1 << 20)), 1 << 20) == bytes(1 << 20)


@every("size", [1000, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1])
def test_a_wrong_size_is_refused_before_decompression(size: int) -> None:
    with pytest.raises(PeerError, match=f"declares {size} bytes"):
        decompress(varint(size) + b"\0a", 1 << 20)


@every("compressed", ["", "80", "05", "0561", "ffffffffffffffffff7f", "ff" * 12, "0101", "010061ff", "05fe0100"])
def test_bytes_that_are_not_compressed_are_refused(compressed: str) -> None:
    with pytest.raises(PeerError):
        decompress(bytes.fromhex(compressed), 1000)


@given(st.binary(max_size=100) | mutated(payloads.map(compress)))
def test_decompression_raises_nothing_but_peer_errors(compressed: bytes) -> None:
    try:
        payload = decompress(compressed, 500)
    except PeerError:
        return
    assert len(payload) <= 500
