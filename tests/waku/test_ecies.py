"""ECIES: what others encrypted is read, what we encrypt is read, and what was altered is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.envelope import ecies
from restante.waku.envelope.keys import Key
from support.mutation import mutated
from support.vectors import load

VECTORS = load("ecies")
US = Key(b"\1" * 32)
SEALED = ecies.encrypt(US.public, b"plain", ephemeral=Key(b"\2" * 32), iv=bytes(16), authenticated=b"size")


@pytest.mark.parametrize("vector", VECTORS["decrypt"], ids=lambda vector: vector["data"][2:10])
def test_ciphertexts_of_other_programs_are_decrypted(vector: dict[str, str]) -> None:
    key = Key(bytes.fromhex(vector["secret"]))
    assert ecies.decrypt(key, bytes.fromhex(vector["data"])) == vector["plain"].encode()


@given(st.binary(max_size=300), st.binary(max_size=8), st.binary(min_size=16, max_size=16))
def test_a_ciphertext_is_decrypted_by_its_key_alone(plain: bytes, authenticated: bytes, iv: bytes) -> None:
    sealed = ecies.encrypt(US.public, plain, ephemeral=Key(b"\2" * 32), iv=iv, authenticated=authenticated)
    assert len(sealed) == len(plain) + ecies.OVERHEAD_BYTES
    assert ecies.decrypt(US, sealed, authenticated) == plain
    with pytest.raises(PeerError, match="altered"):
        ecies.decrypt(Key(b"\3" * 32), sealed, authenticated)
    with pytest.raises(PeerError, match="altered"):
        ecies.decrypt(US, sealed, authenticated + b"x")


def test_no_byte_may_be_altered() -> None:
    for at in range(len(SEALED)):
        altered = bytearray(SEALED)
        altered[at] ^= 1
        with pytest.raises(PeerError):
            ecies.decrypt(US, bytes(altered), b"size")


@given(st.binary(max_size=300) | mutated(st.just(SEALED)))
def test_decrypting_raises_nothing_but_peer_errors(data: bytes) -> None:
    try:
        plain = ecies.decrypt(US, data, b"size")
    except PeerError:
        plain = b""
    assert plain == (b"plain" if data == SEALED else b"")


def test_an_invalid_public_key_is_the_peer_s_fault() -> None:
    with pytest.raises(PeerError, match="not on the curve"):
        ecies.encrypt(bytes(64), b"plain", ephemeral=US, iv=bytes(16))
