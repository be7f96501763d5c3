"""Keys, ECIES and Keccak: who a node is, what two agree on and who signed; what others encrypted and hashed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from Crypto.Hash import keccak as oracle
from hypothesis import given
from hypothesis import strategies as st

from restante.common.errors import PeerError
from restante.waku.envelope import ecies, keys
from restante.waku.envelope.keccak import keccak, running
from restante.waku.envelope.keys import Key, new_key
from support.dice import Fixed
from support.mutation import mutated
from support.vectors import load
from support.waku.fixed import KEY

VECTORS = load("ecies")
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Of the curve's group (SEC 2, section 2.4.1)."""

secrets = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


def test_public_keys_and_shared_secrets_are_those_of_the_vectors() -> None:
    for vector in VECTORS["public"]:
        assert Key(bytes.fromhex(vector["secret"])).public.hex() == vector["public"]
    for vector in VECTORS["agree"]:
        shared = Key(bytes.fromhex(vector["secret"])).agree(bytes.fromhex(vector["public"]))
        assert shared.hex() == vector["shared"]


@given(secrets, secrets)
def test_both_sides_compute_the_same_secret(one: bytes, other: bytes) -> None:
    a, b = Key(one), Key(other)
    assert a.agree(b.public) == b.agree(a.public)
    assert len(a.agree(b.public)) == 32


@given(secrets, st.binary(min_size=32, max_size=32))
def test_the_signer_is_recovered_for_its_digest_only(secret: bytes, digest: bytes) -> None:
    key = Key(secret)
    signature = key.sign(digest)
    assert len(signature) == keys.SIGNATURE_BYTES
    assert signature[64] in {0, 1}
    assert keys.recover(digest, signature) == key.public
    assert keys.recover(keccak(digest), signature) != key.public
    assert key.sign(digest) == signature
    with pytest.raises(PeerError, match="0 or 1"):
        keys.recover(digest, signature[:64] + bytes([signature[64] + 27]))


def test_an_invalid_private_key_is_refused() -> None:
    for secret in (bytes(32), ORDER.to_bytes(32, "big"), b"", b"\1" * 31, b"\0" + b"\1" * 32):
        with pytest.raises(ValueError):
            Key(secret)


def test_a_public_key_off_the_curve_is_the_peer_s_fault() -> None:
    for public in (bytes(64), b"\xff" * 64, b"", b"\1" * 65, b"\2" * 32):
        for use in (keys.check, Key(b"\1" * 32).agree):
            with pytest.raises(PeerError, match="not on the curve"):
                use(public)


@given(st.binary(max_size=70) | st.binary(min_size=64, max_size=64).map(lambda half: half + b"\1"))
def test_recovering_raises_nothing_but_peer_errors(signature: bytes) -> None:
    with suppress(PeerError):
        assert len(keys.recover(b"\7" * 32, signature)) == keys.PUBLIC_BYTES


def test_a_node_is_known_by_the_hash_of_its_public_key() -> None:
    public = Key(b"\1" * 32).public
    assert keys.node_id(public) == keccak(public)


def test_what_is_no_key_is_drawn_again() -> None:
    assert new_key(Fixed([bytes(32), b"\xff" * 32, KEY.secret])).public == KEY.public


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
