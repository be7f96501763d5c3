"""Compression: what is inflated has the size it says, and is not inflated before that is known to be allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.devp2p.snappy import compress, decompress, literal_head
from support.mutation import mutated

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


def test_the_block_format_is_that_of_geth() -> None:
    for payload, compressed in (("c0", "0100c0"), ("c103", "0204c103"), ("", "00")):
        assert compress(bytes.fromhex(payload)).hex() == compressed


def test_literal_blocks_and_maximally_compressed_zeros_are_decompressed_too() -> None:
    for size in (1, 60, 127, 128, 255, 256, 65536, 65537, 1 << 20):
        assert decompress(literal_head(size) + bytes(size), size) == bytes(size)
        assert decompress(compress(bytes(size)), size) == bytes(size)


@given(payloads.filter(bool))
def test_one_byte_more_than_allowed_is_refused(payload: bytes) -> None:
    with pytest.raises(PeerError, match=f"{len(payload)} bytes uncompressed"):
        decompress(compress(payload), len(payload) - 1)


@pytest.mark.parametrize("size", [1000, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1])
def test_a_wrong_size_is_refused_before_decompression(size: int) -> None:
    with pytest.raises(PeerError, match=f"declares {size} bytes"):
        decompress(varint(size) + b"\0a", 1 << 20)


@pytest.mark.parametrize(
    "compressed", ["", "80", "05", "0561", "ffffffffffffffffff7f", "ff" * 12, "0101", "010061ff", "05fe0100"]
)
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
