"""Keccak: the same as another library's, and running."""

from __future__ import annotations

from Crypto.Hash import keccak as oracle
from hypothesis import given
from hypothesis import strategies as st

from restante.waku.envelope.keccak import keccak, running


def expected(data: bytes) -> bytes:
    digest: bytes = oracle.new(digest_bits=256, data=data).digest()
    return digest


def test_nothing_has_the_hash_that_ethereum_knows() -> None:
    """The code hash of an account without code (yellow paper, section 4.1); SHA-3 has a7ffc6f8…"""
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


@given(st.binary(max_size=600))
def test_a_hash_is_what_another_library_says(data: bytes) -> None:
    assert keccak(data) == expected(data)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_a_running_hash_may_be_read_and_copied_at_any_time(parts: list[bytes]) -> None:
    hasher, absorbed = running(b"seed"), b"seed"
    for part in parts:
        hasher.copy().update(b"of the copy")
        hasher.update(part)
        absorbed += part
        assert hasher.digest() == hasher.copy().digest() == expected(absorbed)
